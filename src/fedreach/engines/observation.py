"""What a model does that no graph of it shows: the plain module is run a few times on real batches, and watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedreach.models.copying import copied, tensor_hooks
from fedreach.models.draws import drawn_from, kept, seeded, states
from fedreach.models.state import Kept

Batch = tuple[Tensor, Tensor]
Losses = Callable[[Tensor, Tensor, None], Any]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DROPOUTS: set[Any] = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.alpha_dropout_,
    torch.feature_dropout,
    torch.feature_dropout_,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
}
# Functions that drop numbers among other things, and the place of `dropout_p` among their arguments.
ATTENTION: dict[Any, int] = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
READS_NUMBERS = ("_local_scalar_dense", "nonzero")  # what `if`, `item()` and masks as indices do
SAME = 1e-5  # of the largest output: kernels of a GPU add up in any order


class _WithoutDropout(TorchFunctionMode):
    """Has functions that drop numbers return their input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if (place := ATTENTION.get(func)) is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
            if func is F.multi_head_attention_forward:
                return func(*args, **kwargs)  # in which this mode is not in effect
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """Notes the names of torch's operations, one after the other."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch loads its compiler, which takes a second

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a copy whose layers drop nothing; functions in `forward` drop nothing under `no_dropout`.

    Example:
        >>> module = without_dropout(nn.Sequential(nn.Dropout(0.5), nn.Flatten())).train()
        >>> module(torch.ones(1, 3))
        tensor([[1., 1., 1.]])
    """
    other = copied(module)
    for layer in other.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return other


@contextmanager
def no_dropout() -> Iterator[None]:
    """Have functions such as `F.dropout` drop nothing for a while.

    Example:
        >>> with no_dropout():
        ...     F.dropout(torch.ones(3), 0.5)
        tensor([1., 1., 1.])
    """
    with _WithoutDropout():
        yield


def hidden_behaviour(module: nn.Module, batches: Sequence[Batch], losses: Losses) -> str | None:
    """Return what of a model no engine but the plain one follows, in words; None: nothing was found.

    The model is run on each batch, in training with the loss and its gradient and in evaluation. Its operations must be
    the same on all batches, whatever their size. It must not draw random numbers, read numbers out of tensors or
    remember anything outside of its parameters and buffers, and have no hooks, and no `train` or `eval` of its own.

    Args:
        module: The model, whose dropout is off (`without_dropout`, `no_dropout`); its numbers and its mode change.
        batches: Inputs and targets.
        losses: As `fedreach.engines.trainer.GroupTrainer.losses`.

    Example:
        >>> batches = [(torch.ones(2, 3), torch.tensor([0, 1]))]
        >>> def losses(outputs, targets, shift):
        ...     return F.cross_entropy(outputs, targets, reduction="none")
        >>> hidden_behaviour(nn.Linear(3, 2), batches, losses) is None
        True
        >>> layer = nn.Linear(3, 2)
        >>> _ = layer.register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
        >>> hidden_behaviour(layer, batches, losses)
        'the model has hooks'
    """
    if (why := _hidden_in_classes(module)) is not None:
        return why
    device = batches[0][0].device
    before = states(device)
    first, buffers = Kept(module), dict(module.named_buffers())
    with kept(device):
        runs = {training: _operations(module, batches, losses, training=training) for training in (True, False)}
        drew = drawn_from(before, device)
    if drew:
        return "the model draws random numbers " + (
            "other than dropout's" if drew == ["torch"] else f"by {' and '.join(drew)}"
        )
    if any(part in name for found in runs.values() for names in found for name in names for part in READS_NUMBERS):
        return "the model's code reads numbers out of tensors, and may go by them"
    if any(len(set(found)) > 1 for found in runs.values()):
        return "operations of the model are not the same on all batches"
    attributes = [name for name in first.changed() if name not in buffers]
    first.restore()
    if attributes or remembers(module, batches[0][0]):
        return "the model remembers something outside of its parameters and buffers, and begins anew with each client"
    return None


def _hidden_in_classes(module: nn.Module) -> str | None:
    """Return what is seen without running the model."""
    layers = list(module.modules())
    if any(getattr(layer, hooks) for layer in layers for hooks in HOOKS):
        return "the model has hooks"
    if any(tensor_hooks(tensor) for tensor in module.parameters()):
        return "parameters of the model have hooks"
    for layer in layers:
        for method in ("train", "eval"):
            if getattr(type(layer), method) is not getattr(nn.Module, method) or method in vars(layer):
                return f"{type(layer).__name__} has a {method}() of its own"
    return None


def _operations(
    module: nn.Module, batches: Sequence[Batch], losses: Losses, *, training: bool
) -> list[tuple[str, ...]]:
    """Return the names of the operations of each batch; of one that changes the mode of a layer, that too."""
    found = []
    for x, y in batches:
        module.train(training)
        with _Operations() as operations, torch.set_grad_enabled(training):
            outputs = module(x)
            if training and (loss := losses(outputs, y, None).mean()).requires_grad:
                loss.backward()
        module.zero_grad()  # or the next gradient would be added to this one
        found.append(tuple(operations.names))
    return found


def remembers(module: nn.Module, x: Tensor) -> bool:
    """Return whether a model in training keeps something of a batch that cannot be put back, as in a list of its own.

    It does if it returns something else for the same inputs once its buffers and plain attributes are as they were,
    see `fedreach.models.state.Kept`, where random numbers are drawn by the same seed.

    Args:
        module: The model, which is left in training, with its buffers as they were.
        x: Inputs.

    Example:
        >>> class Counting(nn.Linear):
        ...     batches = []
        ...
        ...     def forward(self, x):
        ...         self.batches.append(x)
        ...         return super().forward(x) * len(self.batches)
        >>> remembers(Counting(3, 1), torch.ones(2, 3)), remembers(nn.Linear(3, 1), torch.ones(2, 3))
        (True, False)
    """
    first, outputs = Kept(module), []
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    for _ in range(2):
        outputs.append(_output(module, x))
        first.restore()
        for buffer, values in buffers:
            with torch.no_grad():
                buffer.copy_(values)
    return not _alike(*outputs)


def repeats_itself(module: nn.Module, x: Tensor) -> bool:
    """Return whether two copies of a model return the same in training, for the same inputs and seeds.

    Example:
        >>> repeats_itself(nn.Flatten(), torch.ones(2, 3))
        True
    """
    return _alike(*(_output(copied(module), x) for _ in range(2)))


def _output(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), seeded(0, x.device):
        output: Tensor = module.train()(x).float().nan_to_num()
    return output


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= SAME * one.abs().max())

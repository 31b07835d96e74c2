"""What a model does that no graph of it shows: the plain module is run a few times on real batches, and watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedreach.models.copying import copied, tensor_hooks
from fedreach.models.draws import drawn_from, generators_kept, seeded, states
from fedreach.models.flat import narrow_types
from fedreach.models.outputs import TakeOutput
from fedreach.models.state import Snapshot

Batch = tuple[Tensor, Tensor]
Losses = Callable[[Tensor, Tensor, None], Any]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
READS_NUMBERS = ("_local_scalar_dense", "nonzero")  # what `if`, `item()` and masks as indices do
SAME = 1e-5  # of the largest output: kernels of a GPU add up in any order


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """Notes the names of torch's operations, one after the other, and whether one writes to a parameter."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch loads its compiler, which takes a second

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.names: list[str] = []
        self.places = {tensor.untyped_storage().data_ptr() for tensor in module.parameters() if tensor.numel()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        written = args[0] if args and func._schema.is_mutable else None
        if isinstance(written, Tensor) and written.untyped_storage().data_ptr() in self.places:
            self.names.append("writes to its parameters")
        return func(*args, **(kwargs or {}))


class _Hooks(TorchFunctionMode):
    """Notes whether code registers hooks on tensors as it runs."""

    registered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.registered |= func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


def _led_to(output: Tensor) -> list[Any]:
    """Return the nodes of the graph of gradients that led to an output."""
    waiting: list[Any] = [output.grad_fn]
    seen: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(seen)


def hidden_behaviour(module: nn.Module, batches: Sequence[Batch], losses: Losses) -> str | None:
    """Return what of a model no engine but the plain one follows, in words; None: nothing was found.

    The model is run on each batch, in training with the loss and its gradient and in evaluation. Its operations must be
    the same on all batches, whatever their size. It must not draw random numbers, read numbers out of tensors, write to
    its parameters, or remember anything outside of its parameters and buffers. It must have no hooks, no functions with
    gradients of their own, and no `train` or `eval` of its own: a few batches may not show what these do.

    Args:
        module: The model, whose dropout is off, see `fedreach.engines.no_dropout`; its numbers and its mode change.
        batches: Inputs and targets.
        losses: As `fedreach.engines.trainer.GroupTrainer.losses`.

    Example:
        >>> batches = [(torch.ones(2, 3), torch.tensor([0, 1]))]
        >>> def losses(outputs, targets, shift):
        ...     return nn.functional.cross_entropy(outputs, targets, reduction="none")
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
    first, buffers = Snapshot(module), dict(module.named_buffers())
    with generators_kept(device):
        with _Hooks() as hooks:  # by itself, as some layers go another way under it
            module.train()(batches[0][0])
        runs = {training: _operations(module, batches, losses, training=training) for training in (True, False)}
        drew = drawn_from(before, device)
    if drew:
        return "the model draws random numbers " + (
            "other than dropout's" if drew == ["torch"] else f"by {' and '.join(drew)}"
        )
    names = {name for found in runs.values() for operations in found for name in operations}
    for own in ("writes to its parameters", "has gradients of its own"):
        if own in names:
            return f"the model's code {own}"
    if hooks.registered:
        return "the model's code registers hooks"
    if any(part in name for name in names for part in READS_NUMBERS):
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
    if types := narrow_types(module):
        return f"parameters of the model are {types}"
    layers = list(module.modules())
    hooks = [hook for layer in layers for kind in HOOKS for hook in getattr(layer, kind).values()]
    if not all(isinstance(hook, TakeOutput) for hook in hooks):
        return "the model has hooks"
    if any(tensor_hooks(tensor) for tensor in module.parameters()):
        return "parameters of the model have hooks"
    for layer in layers:
        for method in ("train", "eval", "forward"):
            inherited = method == "forward" or getattr(type(layer), method) is getattr(nn.Module, method)
            if not inherited or method in vars(layer):
                return f"{type(layer).__name__} has a {method}() of its own"
    return None


def _operations(
    module: nn.Module, batches: Sequence[Batch], losses: Losses, *, training: bool
) -> list[tuple[str, ...]]:
    """Return the names of the operations of each batch; of one that changes the mode of a layer, that too."""
    found: list[tuple[str, ...]] = []
    for x, y in batches:
        module.train(training)
        with _Operations(module) as operations, torch.set_grad_enabled(training):
            outputs = module(x)
            if training and (loss := losses(outputs, y, None).mean()).requires_grad:
                if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in _led_to(loss)):
                    operations.names.append("has gradients of its own")
                loss.backward()
        module.zero_grad()  # or the next gradient would be added to this one
        found.append(tuple(operations.names))
    return found


def remembers(module: nn.Module, x: Tensor) -> bool:
    """Return whether a model in training keeps something of a batch that cannot be put back, as in a list of its own.

    It does if it returns something else for the same inputs once its buffers and plain attributes are as they were,
    see `fedreach.models.state.Snapshot`, where random numbers are drawn by the same seed.

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
    first, outputs = Snapshot(module), []
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


def refers_elsewhere(module: nn.Module, x: Tensor) -> bool:
    """Return whether a copy of a model trains tensors of another model in place of its own.

    Functions are not copied: one that is a hook, or an attribute of a layer, goes on with the layers that it was
    written for.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> layer.forward = lambda x: x @ layer.weight.T
        >>> refers_elsewhere(layer, torch.ones(1, 3)), refers_elsewhere(copied(layer), torch.ones(1, 3))
        (False, True)
    """
    try:
        with torch.enable_grad(), seeded(0, x.device):
            nodes = _led_to(module.train()(x))
    except Exception:  # it is told of with the client and the round
        return False
    reached = {id(node.variable): node.variable for node in nodes if hasattr(node, "variable")}
    own = {id(tensor): tensor for tensor in module.parameters() if tensor.requires_grad}
    elsewhere = {tensor.shape for place, tensor in reached.items() if place not in own}
    return any(tensor.shape in elsewhere for place, tensor in own.items() if place not in reached)


def _output(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), seeded(0, x.device):
        output: Tensor = module.train()(x).float().nan_to_num()
    return output


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= SAME * one.abs().max())

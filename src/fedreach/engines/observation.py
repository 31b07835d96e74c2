"""Detection of a module's hidden behavior in trial runs: random numbers, hooks, branches and hidden state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedreach._util.errors import ConfigError
from fedreach.engines.batches import Samples
from fedreach.engines.models.draws import changed_generators, generator_states, preserve_generators, seeded_generators
from fedreach.engines.models.flat import narrow_types
from fedreach.engines.models.outputs import TakeOutput, not_a_tensor
from fedreach.engines.models.state import ModuleSnapshot, copy_module, tensor_hooks

# --- Behavior that a graph of a model cannot show, detected on a few real batches

Batch = tuple[Tensor, Tensor]
Losses = Callable[[Tensor, Tensor, None], Any]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
READS_NUMBERS = ("_local_scalar_dense", "nonzero")  # operations of `if`, `item()` and masks as indices
REMEMBERS = "the model has state outside of its parameters and buffers, which is reset for each client"
SAME = 1e-5  # relative to the largest output, because kernels on a GPU sum in any order


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """Context manager that records the names of torch's operations in order, and writes to parameters."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch loads its compiler, which takes a second

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
    """Context manager that records whether code registers hooks on tensors."""

    registered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.registered |= func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


def _led_to(output: Tensor) -> list[Any]:
    """Return the nodes of an output's gradient graph."""
    waiting: list[Any] = [output.grad_fn]
    nodes: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(nodes)


def hidden_behavior(module: nn.Module, batches: Sequence[Batch], losses: Losses) -> str | None:
    """Describe the behavior of a model that only `sequential` supports, or return None without such behavior.

    The check runs the model on each batch, in training with the loss and its gradient, and in evaluation. The model
    must use the same operations on all batches. It must not draw random numbers, read numbers from tensors, write to
    its parameters or change its attributes. The check also rejects hooks, custom gradients and overridden `train` or
    `eval` methods, because a few batches may not show their effect.

    Args:
        module: Model without dropout (see `fedreach.engines.examination`). The check changes its parameters and its
            mode.
        batches: Inputs and targets.
        losses: Function with the arguments of `fedreach.engines.trainer.GroupTrainer.losses`.

    Example:
        >>> batches = [(torch.ones(2, 3), torch.tensor([0, 1]))]
        >>> def losses(outputs, targets, shift):
        ...     return nn.functional.cross_entropy(outputs, targets, reduction="none")
        >>> hidden_behavior(nn.Linear(3, 2), batches, losses) is None
        True
        >>> layer = nn.Linear(3, 2)
        >>> _ = layer.register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
        >>> hidden_behavior(layer, batches, losses)
        'the model has hooks'
    """
    if (why := _hidden_in_classes(module)) is not None:
        return why
    device = batches[0][0].device
    before = generator_states(device)
    first, buffers = ModuleSnapshot(module), dict(module.named_buffers())
    with preserve_generators(device):
        with _Hooks() as hooks:  # in a separate pass, because some layers use other operations under this mode
            module.train()(batches[0][0])
        runs = {training: _operations(module, batches, losses, training=training) for training in (True, False)}
        drew = changed_generators(before, device)
    if drew:
        return "the model draws random numbers " + (
            "other than dropout's" if drew == ["torch"] else f"by {' and '.join(drew)}"
        )
    names = {name for run_operations in runs.values() for operations in run_operations for name in operations}
    for hidden in ("writes to its parameters", "has custom gradients"):
        if hidden in names:
            return f"the model's code {hidden}"
    if hooks.registered:
        return "the model's code registers hooks"
    if any(part in name for name in names for part in READS_NUMBERS):
        return "the model's code reads numbers from tensors, which may change what it computes"
    if any(len(set(run_operations)) > 1 for run_operations in runs.values()):
        return "the model's operations differ between batches"
    return REMEMBERS if any(name not in buffers for name in first.changed_names()) else None


def _hidden_in_classes(module: nn.Module) -> str | None:
    """Return hidden behavior that can be found without running the model."""
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
                return f"{type(layer).__name__} overrides {method}()"
    return None


def _operations(
    module: nn.Module, batches: Sequence[Batch], losses: Losses, *, training: bool
) -> list[tuple[str, ...]]:
    """Return the names of the operations on each batch, including custom gradients."""
    operation_names: list[tuple[str, ...]] = []
    for x, y in batches:
        module.train(training)
        with _Operations(module) as operations, torch.set_grad_enabled(training):
            outputs = module(x)
            if training and (loss := losses(outputs, y, None).mean()).requires_grad:
                if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in _led_to(loss)):
                    operations.names.append("has custom gradients")
                loss.backward()
        module.zero_grad()  # else the next gradient would be added to this one
        operation_names.append(tuple(operations.names))
    return operation_names


def remembers(module: nn.Module, x: Tensor) -> bool:
    """Return whether a model in training has state that FedReach cannot restore, such as a list of batches.

    The check runs the model twice with the same inputs and seed. Between the runs, it restores the model's buffers and
    plain attributes (see `fedreach.engines.models.state.ModuleSnapshot`). If the model has other state, its outputs
    differ.

    Args:
        module: Model in training mode. Its mode does not change, and its buffers are restored.
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
    first, outputs = ModuleSnapshot(module), []
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    for _ in range(2):
        outputs.append(_output(module, x))
        first.restore()
        for buffer, values in buffers:
            with torch.no_grad():
                buffer.copy_(values)
    return not _alike(*outputs)


def repeats_itself(module: nn.Module, x: Tensor) -> bool:
    """Return whether two copies of a model have equal outputs in training for the same inputs and seeds.

    Example:
        >>> repeats_itself(nn.Flatten(), torch.ones(2, 3))
        True
    """
    return _alike(*(_output(copy_module(module), x) for _ in range(2)))


def refers_elsewhere(module: nn.Module, x: Tensor) -> bool:
    """Return whether a copy of a model trains tensors of the original model.

    A copy contains the same functions as the original model. So a hook, or a function in an attribute, still refers to
    the original layers.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> layer.forward = lambda x: x @ layer.weight.T
        >>> refers_elsewhere(layer, torch.ones(1, 3)), refers_elsewhere(copy_module(layer), torch.ones(1, 3))
        (False, True)
    """
    try:
        with torch.enable_grad(), seeded_generators(0, x.device):
            nodes = _led_to(module.train()(x))
    except Exception:  # training reports the error with the client and the round
        return False
    reached = {id(node.variable): node.variable for node in nodes if hasattr(node, "variable")}
    parameters = {id(tensor): tensor for tensor in module.parameters() if tensor.requires_grad}
    elsewhere = {tensor.shape for place, tensor in reached.items() if place not in parameters}
    return any(tensor.shape in elsewhere for place, tensor in parameters.items() if place not in reached)


def _output(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), seeded_generators(0, x.device):
        output: Tensor = module.train()(x).float().nan_to_num()
    return output


def _alike(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= SAME * first.abs().max())


# --- Behavior of a module in a trial on a few examples

TRIAL_EXAMPLES = 8
ALONE = 4  # number of examples that are also evaluated without the others
MAX_BATCH_DIFFERENCE = 1e-3  # largest relative rounding of an example's outputs, in batches of one size
MAX_SIZE_DIFFERENCE = 3e-2  # the same in batches of two sizes, which kernels for bfloat16 round differently


@dataclass(frozen=True)
class Behavior:
    """Behavior of a module in a trial.

    Attributes:
        draws: Whether the model or the loss draws random numbers in training, as dropout does.
        draws_in_evaluation: Whether the model draws random numbers in evaluation.
        remembers: Whether the model has state outside its parameters, buffers and plain attributes (see `remembers`).
        mixes: Whether an example's outputs in evaluation depend on its batch, as with BatchNorm without running
            statistics. FedReach evaluates a model with this behavior client by client.
        counts: Names of constants and plain attributes that training changes, but that the server cannot average (see
            `fedreach.engines.models.state`). Each client starts with the initial values of these constants and
            attributes.
    """

    draws: bool
    draws_in_evaluation: bool
    remembers: bool
    mixes: bool
    counts: tuple[str, ...]

    @property
    def note(self) -> str:
        """Note on the module for the user, usually empty."""
        if not self.counts:
            return ""
        return (
            f"model: training changes {', '.join(self.counts)}, which the server cannot average; every client starts "
            "from the initial value"
        )


def batches_of(x: Tensor, size: int, even: bool = False) -> Sequence[Tensor]:
    """Return batches of at most `size` examples; with `even`, their sizes differ by at most one.

    Example:
        >>> [len(part) for part in batches_of(torch.zeros(5), 4)], [len(p) for p in batches_of(torch.zeros(5), 4, True)]
        ([4, 1], [3, 2])
    """
    return torch.tensor_split(x, max(1, -(-len(x) // size))) if even else torch.split(x, size)


def normalizes_by_batch(module: nn.Module) -> bool:
    """Return whether a module has BatchNorm layers that use batch statistics in evaluation.

    Example:
        >>> normalizes_by_batch(nn.BatchNorm1d(2, track_running_stats=False)), normalizes_by_batch(nn.BatchNorm1d(2))
        (True, False)
    """
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in module.modules())


def mixes_examples(module: nn.Module, x: Tensor) -> bool:
    """Return whether a module's outputs for an example in evaluation depend on other examples in the batch.

    Args:
        module: Module, which does not change.
        x: (m, ...) different inputs, with m at least 2.

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
        >>> mixes_examples(nn.Linear(2, 1), x), mixes_examples(nn.BatchNorm1d(2, track_running_stats=False), x)
        (False, True)
    """
    with torch.no_grad(), preserve_generators(x.device):
        return normalizes_by_batch(module) or _mixes(copy_module(module).eval(), x)


def behavior_of(module: nn.Module, samples: Samples, outputs: tuple[int, ...], losses: Callable[..., Any]) -> Behavior:
    """Return the behavior of a module in a trial on a few examples, without changing the module.

    Args:
        module: Model.
        samples: Training data.
        outputs: Shape of an example's outputs: (c,), or (positions..., c) for labels per position.
        losses: Function that returns losses. Its arguments are outputs, targets and None.

    Raises:
        ConfigError: If the model does not accept the examples, its outputs have a wrong shape or are not reproducible,
            or training a copy changes the model.
    """
    trial = copy_module(module)
    first = ModuleSnapshot(trial)
    several, targets = samples.batch(torch.arange(TRIAL_EXAMPLES, device=samples.y.device).clamp(max=len(samples) - 1))
    x, y = several[:2], targets[:2]
    name, drew, counts = type(module).__name__, list[bool](), tuple[str, ...]()
    with torch.no_grad(), preserve_generators(x.device):
        for training in (True, False):
            before = generator_states(x.device)
            try:
                logits = trial.train(training)(x)
            except ConfigError:  # an error in `model.output`
                raise
            except Exception as error:
                raise ConfigError(
                    f"The model {name} must accept two examples of shape {tuple(x.shape[1:])} and type {x.dtype}; got "
                    f"an error: {error}{_advice(trial, x)}"
                ) from error
            if not isinstance(logits, Tensor):
                raise not_a_tensor(name, logits, (2, *outputs))
            if logits.shape != (2, *outputs):
                raise _other_outputs(name, logits, outputs)
            if training:
                counts = tuple(first.changed_names())
                with suppress(Exception):  # training reports a failing loss with the client and the round
                    losses(logits, y, None)
            drew.append(bool(changed_generators(before, x.device)))
        mixes = normalizes_by_batch(trial) or _mixes(trial, several)
    if refers_elsewhere(trial, x):
        raise ConfigError(
            f"The model {name} must not share layers with its copies; got hooks or functions that refer to layers of "
            "the original. Write them as methods of the module."
        )
    keeps_more = remembers(copy_module(module), x)
    if keeps_more and not repeats_itself(module, x):
        raise ConfigError(
            f"The model {name} must return the same outputs for the same inputs, parameters, buffers and seeds; got "
            "different ones. Draw random numbers from torch, numpy.random or random, and store state in buffers."
        )
    return Behavior(drew[0], drew[1], keeps_more, mixes, counts)


def _other_outputs(name: str, logits: Tensor, outputs: tuple[int, ...]) -> ConfigError:
    """Return the error for a model that returns a tensor of another shape."""
    *positions, numbers = outputs
    expected, got = f"{numbers} numbers per example, (2, {numbers})", f"{tuple(logits.shape)}."
    if positions:
        expected = f"{numbers} numbers per position, {(2, *outputs)} or {(2, numbers, *positions)}"
        got += (
            " Set num_classes if the model has more classes than the labels contain. Convert one-hot labels to class "
            "numbers, as with y.argmax(1)."
        )
    elif logits.dim() > 2:
        got += " Provide a label for every position, or return the outputs of one position, such as [:, -1]."
    return ConfigError(f"The model {name} must return {expected}; got {got}")


def _advice(module: nn.Module, x: Tensor) -> str:
    """Return advice for a model with narrow parameters, which may not accept float32 inputs; "" for other models."""
    types = narrow_types(module) if isinstance(x, Tensor) and x.is_floating_point() else ""
    return f". Its parameters are {types}. Cast inputs in forward(), as with x.to(torch.{types})" if types else ""


def _mixes(module: nn.Module, x: Tensor) -> bool:
    """Return whether an example's outputs in evaluation depend on the batch's other examples, or on its size."""
    first = ModuleSnapshot(module)

    def outputs(batch: Tensor) -> Tensor:
        first.restore()
        output: Tensor = module(batch).float()
        return output

    try:
        together, repeated, pair = outputs(x), outputs(x), outputs(x[:2])
        alone = [outputs(x[[place] * len(x)])[0] for place in range(min(ALONE, len(x)))]
    except Exception:
        return False
    if not torch.equal(together, repeated):  # the module draws random numbers in evaluation
        return False
    largest = float(together.abs().max())
    pairs = [(single, joint, MAX_BATCH_DIFFERENCE) for single, joint in zip(alone, together, strict=False)]
    pairs += [(single, joint, MAX_SIZE_DIFFERENCE) for single, joint in zip(pair, together, strict=False)]
    return not all(
        torch.allclose(single, joint, rtol=far, atol=far * largest, equal_nan=True) for single, joint, far in pairs
    )

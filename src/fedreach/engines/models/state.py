"""State of a module outside its flat vector: copies, narrow parameters, constants, and redrawn weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ConfigError
from fedreach.engines.models.flat import Layout, module_tensors

# -------------------- Copies of a model with the hooks on its tensors
# `torch.nn.utils.weight_norm` and `torch.nn.utils.spectral_norm` store a computed weight as a plain attribute of the
# layer. A hook recomputes it before each pass. `copy.deepcopy` rejects such a tensor, because it has a gradient. So the
# copy gets the tensor without its gradient.

COMPUTES_WEIGHTS = {("torch.nn.utils.weight_norm", "WeightNorm"), ("torch.nn.utils.spectral_norm", "SpectralNorm")}
"""Modules and class names of hooks that compute a layer's weight. Importing the deprecated classes causes a warning."""
TensorHook = tuple[str, Callable[..., Any]]
"""Name of the method that registers a hook on a tensor's gradient, and the hook."""


def copy_module(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module, including the hooks on its parameters.

    `copy.deepcopy` copies the hooks of modules, but not the hooks of tensors, such as a gradient mask that was
    registered with ``weight.register_hook``.

    Raises:
        ConfigError: If the module cannot be copied, for example because an attribute is computed from its parameters.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.register_hook(lambda gradient: gradient * 0)
        >>> other = copy_module(layer)
        >>> other(torch.ones(1, 2)).sum().backward()
        >>> other.weight.grad
        tensor([[0., 0.]])
    """
    computed = [vars(layer)[name] for layer in module.modules() for name in computed_weights(layer)]
    try:
        clone = copy.deepcopy(module, {id(weight): weight.detach().clone() for weight in computed})
    except Exception as error:
        raise ConfigError(
            f"A model must be a module that copy.deepcopy can copy; got an error for {type(module).__name__}: "
            f"{str(error).partition('.')[0] or type(error).__name__}. Compute such tensors in forward()."
        ) from error
    for ours, theirs in zip(clone.parameters(), module.parameters(), strict=True):
        register_hooks(ours, tensor_hooks(theirs))
    return clone


def computed_weights(layer: nn.Module) -> list[str]:
    """Return the attributes of a layer that a hook of `torch.nn.utils` recomputes before each pass.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     computed_weights(nn.utils.weight_norm(nn.Linear(2, 1)))
        ['weight']
    """
    hooks: list[Any] = list(layer._forward_pre_hooks.values())
    names = [hook.name for hook in hooks if (type(hook).__module__, type(hook).__name__) in COMPUTES_WEIGHTS]
    return [name for name in names if name in vars(layer)]


def register_hooks(tensor: Tensor, hooks: Iterable[TensorHook]) -> None:
    """Register hooks from `tensor_hooks` on the gradient of a tensor."""
    for register, hook in hooks:
        getattr(tensor, register)(hook)


def tensor_hooks(tensor: Tensor) -> list[TensorHook]:
    """Return the hooks on the gradient of a tensor, each with the name of the method that registers it."""
    kinds = {
        "register_hook": "_backward_hooks",
        "register_post_accumulate_grad_hook": "_post_accumulate_grad_hooks",
    }
    return [(register, hook) for register, key in kinds.items() for hook in (getattr(tensor, key, None) or {}).values()]


# -------------------- Training of bfloat16 and float16 parameters
# As in torch, a client computes with rounded numbers, and gradients have the type of the parameters. Solvers, clipping,
# momentum and the step use float32, and each step rounds the parameters once. Plain steps equal those of
# `torch.optim.SGD`, which on a CPU also rounds the learning rate to the type of the parameters.


class NarrowParameters:
    """Narrow trained parameters of a module that is bound to a vector (see `fedreach.engines.models.flat.bind`).

    Args:
        module: Module.
        layout: Layout of the module.
        vector: (d,) float32 vector to which the module is bound. Its numbers are replaced with rounded numbers.
        gradient: (p,) gradient of all trained parameters.

    Example:
        >>> import torch
        >>> from fedreach.engines.models.flat import bind
        >>> layer = nn.Linear(1, 1, bias=False).bfloat16()
        >>> layout, vector, gradient = Layout.of(layer), torch.tensor([1.001]), torch.zeros(1)
        >>> bind(layer, vector, gradient, layout=layout)
        >>> parameters = NarrowParameters(layer, layout, vector, gradient)
        >>> layer(torch.ones(1, 1).bfloat16()).sum().backward()
        >>> parameters.take_gradients()
        >>> vector, gradient
        (tensor([1.]), tensor([1.]))
    """

    def __init__(self, module: nn.Module, layout: Layout, vector: Tensor, gradient: Tensor) -> None:
        parameters = dict(module.named_parameters())
        weights = layout.parameter_views(vector[: layout.num_trainable])
        gradients = layout.parameter_views(gradient)
        self._parameters = [
            (parameters[name], weights[name], gradients[name]) for name in weights if name in layout.narrow
        ]
        self.take_weights()

    def take_gradients(self) -> None:
        """Move the gradients of backward() into the (p,) vector."""
        for parameter, _, gradient in self._parameters:
            if parameter.grad is not None:
                gradient.copy_(parameter.grad)
                parameter.grad = None

    def give_gradients(self) -> None:
        """Copy the rounded gradients from the vector to the parameters, for an optimizer of torch."""
        for parameter, _, gradient in self._parameters:
            parameter.grad = gradient.to(parameter.dtype)

    def take_weights(self) -> None:
        """Copy the parameters into the vector, and clear their gradients."""
        for parameter, weights, _ in self._parameters:
            weights.copy_(parameter.data)
            parameter.grad = None

    def round_weights(self) -> None:
        """Copy the vector into the parameters, rounded to their type, and copy the rounded numbers back."""
        for parameter, weights, _ in self._parameters:
            parameter.data.copy_(weights)
            weights.copy_(parameter.data)


# -------------------- Constant state of a module
# The flat vector contains trained parameters and persistent float32 buffers (see `fedreach.engines.models.flat`). All
# other tensors are *constants*: frozen parameters, buffers of other types, and buffers that are not persistent. They
# are neither averaged nor sent. Each client starts from the module's constants at the start of the run.

COUNTER = "num_batches_tracked"  # a buffer of BatchNorm that changes no output, because `momentum=None` is rejected
PLAIN_TYPES = (bool, int, float, complex, str, type(None), Tensor)


def constants_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the constants of a module by name, without copying them.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> net[0].weight.requires_grad_(False).shape
        torch.Size([3, 2])
        >>> list(constants_of(net))
        ['0.weight']
    """
    moved = set(Layout.of(module).names)
    return {name: tensor for name, tensor in module_tensors(module).items() if name not in moved}


def constant_arrays(module: nn.Module) -> dict[str, AnyArray]:
    """Return copies of a module's constants as arrays by name, except BatchNorm counters that are still 0.

    Numbers in types that numpy does not support, such as bfloat16, become integers with the same bits.

    Example:
        >>> constant_arrays(nn.BatchNorm1d(2))
        {}
    """
    arrays = {name: array_of(tensor) for name, tensor in constants_of(module).items()}
    return {name: value for name, value in arrays.items() if not (counts_batches(name) and not value.any())}


def constant_bytes(arrays: Mapping[str, AnyArray]) -> int:
    """Return the total size of constants in bytes.

    Example:
        >>> constant_bytes({"mask": np.ones(3, bool), "frozen": np.ones((2, 2), np.float32)})
        19
    """
    return sum(value.nbytes for value in arrays.values())


def set_constants(module: nn.Module, arrays: Mapping[str, AnyArray]) -> None:
    """Set the constants of a module.

    Raises:
        ConfigError: If the module's constants have other names or shapes.
    """
    constants = constants_of(module)
    for name in sorted(arrays.keys() | {name for name in constants if not counts_batches(name)}):
        expected = tuple(constants[name].shape) if name in constants else "absent"
        stored = arrays[name].shape if name in arrays else "absent"
        if expected != stored:
            raise ConfigError(
                f"The constants of a run must match its model; {name!r} is {stored} in the run and {expected} in "
                f"{type(module).__name__}. Pass the model that was trained."
            )
        constants[name].data.copy_(tensor_of(arrays[name], constants[name].dtype))


def array_of(tensor: Tensor) -> AnyArray:
    """Return a copy of a tensor as an array; types that numpy does not support become integers with the same bits."""
    plain = tensor.detach().cpu()
    try:
        array: AnyArray = np.array(plain.numpy())
    except TypeError:
        array = np.array(plain.view({1: torch.uint8, 2: torch.int16}[plain.element_size()]).numpy())
    return array


def tensor_of(array: AnyArray, dtype: torch.dtype) -> Tensor:
    """Return the tensor of the given type from which `array_of` made the array.

    Example:
        >>> half = torch.tensor([0.5], dtype=torch.bfloat16)
        >>> tensor_of(array_of(half), torch.bfloat16)
        tensor([0.5000], dtype=torch.bfloat16)
    """
    tensor = torch.from_numpy(np.array(array))
    dtypes = {torch.from_numpy(np.empty(0, array.dtype)).dtype}
    return tensor if dtype in dtypes else tensor.view(dtype)


class ModuleSnapshot:
    """Copy of a module's constants and plain attributes.

    Plain attributes are numbers, strings and tensors that are neither parameters nor buffers of the module, such as a
    counter.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> net.register_buffer("count", torch.zeros((), dtype=torch.long))
        >>> before = ModuleSnapshot(net)
        >>> _ = net.count.add_(1)
        >>> before.changed_names()
        ['count']
        >>> before.restore()
        >>> net.count
        tensor(0)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parts = dict(module.named_modules())
        self.tensors = []
        for name, tensor in constants_of(module).items():
            place, _, key = name.rpartition(".")
            self.tensors.append((name, parts[place], key, tensor.detach().clone()))
        self.attributes = [(name, part, _plain(part)) for name, part in parts.items()]

    def restore(self) -> None:
        """Restore the module's constants and plain attributes."""
        with torch.no_grad():
            for _, part, key, value in self.tensors:
                _put(part, key, value)
        for _, part, values in self.attributes:
            for key in _plain(part).keys() - values.keys():
                del part.__dict__[key]
            part.__dict__.update(
                {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}
            )

    def changed_names(self) -> list[str]:
        """Return the names of changed constants and attributes, except BatchNorm counters."""
        changed_names = []
        for name, part, key, value in self.tensors:
            now = part._parameters.get(key) if key in part._parameters else part._buffers.get(key)
            if not counts_batches(name) and not (isinstance(now, Tensor) and _same(now, value)):
                changed_names.append(name)
        for place, part, values in self.attributes:
            now_plain = _plain(part)
            names = [key for key in now_plain if key not in values or not _same(now_plain[key], values[key])]
            changed_names += [f"{place}.{key}".lstrip(".") for key in names]
        return changed_names


def counts_batches(name: str) -> bool:
    """Return whether a buffer with this name is the counter of a BatchNorm layer.

    Example:
        >>> counts_batches("1.num_batches_tracked"), counts_batches("count")
        (True, False)
    """
    return name.rpartition(".")[2] == COUNTER


def _plain(part: nn.Module) -> dict[str, Any]:
    """Return copies of a module's public plain attributes, except its mode and computed weights."""
    left_out = {"training", *computed_weights(part)}
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in vars(part).items()
        if isinstance(value, PLAIN_TYPES) and key not in left_out and not key.startswith("_")
    }


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and (
            torch.equal(first, second) or bool(((first == second) | ((first != first) & (second != second))).all())
        )
    return type(first) is type(second) and (first == second or (first != first and second != second))


def _put(part: nn.Module, key: str, value: Tensor) -> None:
    """Write a value into a parameter or buffer; replace a tensor of another shape or type from the module's code."""
    now = part._parameters.get(key) if key in part._parameters else part._buffers.get(key)
    if isinstance(now, Tensor) and now.shape == value.shape and now.dtype == value.dtype:
        now.data.copy_(value)
    elif isinstance(now, nn.Parameter):
        now.data = value.clone()
    else:
        part._buffers[key] = value.clone()


# --- Copies of a module instance, initialized again for each seed

REDRAWN = "_drawn_anew"  # attribute that marks a module whose trained parameters were redrawn


@dataclass(frozen=True, eq=False)
class ModuleInstance:
    """Callable that returns copies of a module, for `fedreach.engines.models.networks.build`.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1)
        >>> make = ModuleInstance(layer)
        >>> torch.equal(make().weight, layer.weight), torch.equal(make(keep_weights=True).weight, layer.weight)
        (False, True)
    """

    module: nn.Module

    def __call__(self, keep_weights: bool = False) -> nn.Module:
        """Return a copy; unless `keep_weights`, redraw its trained parameters from torch's generator."""
        module = copy_module(self.module)
        if not keep_weights:
            redraw(module)
            module.__dict__[REDRAWN] = True
        return module

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleInstance:
        """Return a copy, including the hooks on tensors (see `copy_module`)."""
        return ModuleInstance(copy_module(self.module))


def redraw(module: nn.Module) -> None:
    """Initialize the trained parameters of a module again with each layer's `reset_parameters`.

    Frozen parameters do not change. If the module has frozen parameters, the buffers of layers without trained
    parameters do not change either.

    Raises:
        ConfigError: If a layer with trained parameters has no method `reset_parameters`.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> before = net[0].requires_grad_(False).weight.clone()
        >>> redraw(net)
        >>> bool((net[0].weight == before).all())
        True
    """
    stays = {name: tensor.detach().clone() for name, tensor in _staying(module).items()}
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        trainable = [key for key, p in layer.named_parameters(recurse=False) if p.requires_grad]
        if not trainable and stays:
            continue
        if reset is not None and not computed_weights(layer):  # a hook would recompute such a weight
            reset()
        elif trainable:
            where = f"{type(layer).__name__} {name!r}" if name else type(layer).__name__
            raise ConfigError(
                "Each layer of a module instance must have reset_parameters(), which FedReach calls for each seed; got "
                f"{where} with parameters {', '.join(trainable)} and without this method. Pass the module's class or a "
                'function, or keep its weights for all seeds: model={"name": module, "keep_weights": True}.'
            )
    tensors = module_tensors(module)
    for name, value in stays.items():
        tensors[name].data.copy_(value)


def _staying(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that `redraw` does not change: none if all parameters of the module are trained."""
    staying: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    if not staying:
        return {}
    for place, layer in module.named_modules():
        if not any(p.requires_grad for p in layer.parameters(recurse=False)):
            staying |= {f"{place}.{key}".lstrip("."): b for key, b in layer.named_buffers(recurse=False)}
    return staying


def numbers_note(module: nn.Module) -> str:
    """Return a note on a model with frozen or redrawn parameters, or "" for other models.

    Example:
        >>> net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
        >>> numbers_note(net[0]), numbers_note(ModuleInstance(nn.Sequential(net[0].requires_grad_(False), net[1]))())
        ('', 'model: 14 parameters are trained and initialized again for each seed; 42 are frozen')
    """
    trained, frozen = (sum(p.numel() for p in module.parameters() if p.requires_grad is on) for on in (True, False))
    drawn = " and initialized again for each seed" if REDRAWN in vars(module) else ""
    if drawn and not frozen:
        return f"model: {trained} parameters are trained{drawn}; keep_weights = true keeps the module's weights"
    return f"model: {trained} parameters are trained{drawn}; {frozen} are frozen" if frozen else ""

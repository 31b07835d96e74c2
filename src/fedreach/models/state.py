"""What a module holds beside its flat vector: constants, which stay as they are when a run starts.

The flat vector (see `fedreach.models.flat`) holds what training moves: trained parameters, and persistent float32
buffers such as the statistics of BatchNorm. Everything else is *constant state*: frozen parameters, integer and boolean
buffers, buffers of other types, and buffers that are not persistent. It is neither averaged nor sent with a model. Each
client starts from the constants of the module that the run starts with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedreach.arrays import AnyArray
from fedreach.errors import ConfigError
from fedreach.models.copying import computed_weights
from fedreach.models.flat import Layout, module_tensors

COUNTER = "num_batches_tracked"  # of BatchNorm: it changes no output, as `momentum=None` is refused
PLAIN = (bool, int, float, complex, str, type(None), Tensor)


def constants_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the constant state of a module by name; these very tensors, not copies.

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
    """Return copies of a module's constants as arrays, without counters of BatchNorm that are still 0.

    Types that numpy does not know, such as bfloat16, are handed over as whole numbers of the same bits.

    Example:
        >>> constant_arrays(nn.BatchNorm1d(2))
        {}
    """
    found = {name: array_of(tensor) for name, tensor in constants_of(module).items()}
    return {name: value for name, value in found.items() if not (counts_batches(name) and not value.any())}


def constant_bytes(arrays: Mapping[str, AnyArray]) -> int:
    """Return how many bytes constants take.

    Example:
        >>> constant_bytes({"mask": np.ones(3, bool), "frozen": np.ones((2, 2), np.float32)})
        19
    """
    return sum(value.nbytes for value in arrays.values())


def set_constants(module: nn.Module, arrays: Mapping[str, AnyArray]) -> None:
    """Give a module the constants of another one of the same kind.

    Raises:
        ConfigError: If the module has other constants than these.
    """
    own = constants_of(module)
    for name in sorted(arrays.keys() | {name for name in own if not counts_batches(name)}):
        wanted = tuple(own[name].shape) if name in own else "absent"
        given = arrays[name].shape if name in arrays else "absent"
        if wanted != given:
            raise ConfigError(
                f"The constants of a run must fit its model; {name!r} is {given} in the run and {wanted} in "
                f"{type(module).__name__}. Give the model that was trained."
            )
        own[name].data.copy_(tensor_of(arrays[name], own[name].dtype))


def array_of(tensor: Tensor) -> AnyArray:
    """Return a copy of a tensor as an array; of a type that numpy does not know, its bits as whole numbers."""
    plain = tensor.detach().cpu()
    try:
        found: AnyArray = np.array(plain.numpy())
    except TypeError:
        found = np.array(plain.view({1: torch.uint8, 2: torch.int16}[plain.element_size()]).numpy())
    return found


def tensor_of(array: AnyArray, dtype: torch.dtype) -> Tensor:
    """Return the tensor that `array_of` made an array of.

    Example:
        >>> half = torch.tensor([0.5], dtype=torch.bfloat16)
        >>> tensor_of(array_of(half), torch.bfloat16)
        tensor([0.5000], dtype=torch.bfloat16)
    """
    found = torch.from_numpy(np.array(array))
    known = {torch.from_numpy(np.empty(0, array.dtype)).dtype}
    return found if dtype in known else found.view(dtype)


class Snapshot:
    """The constants of a module and its plain attributes, as they are now.

    Plain attributes are numbers, texts and tensors that a module stores outside of its parameters and buffers, such as
    a counter of its own.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> net.register_buffer("count", torch.zeros((), dtype=torch.long))
        >>> before = Snapshot(net)
        >>> _ = net.count.add_(1)
        >>> before.changed()
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
        """Let the module be as it was."""
        with torch.no_grad():
            for _, part, key, value in self.tensors:
                _put(part, key, value)
        for _, part, values in self.attributes:
            for key in _plain(part).keys() - values.keys():
                del part.__dict__[key]
            part.__dict__.update(
                {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}
            )

    def changed(self) -> list[str]:
        """Return the names of what is not as it was, without the counters of BatchNorm."""
        found = []
        for name, part, key, value in self.tensors:
            now = part._parameters.get(key) if key in part._parameters else part._buffers.get(key)
            if not counts_batches(name) and not (isinstance(now, Tensor) and _same(now, value)):
                found.append(name)
        for place, part, values in self.attributes:
            now_plain = _plain(part)
            names = [key for key in now_plain if key not in values or not _same(now_plain[key], values[key])]
            found += [f"{place}.{key}".lstrip(".") for key in names]
        return found


def counts_batches(name: str) -> bool:
    """Return whether a buffer of this name is the counter of a BatchNorm layer.

    Example:
        >>> counts_batches("1.num_batches_tracked"), counts_batches("count")
        (True, False)
    """
    return name.rpartition(".")[2] == COUNTER


def _plain(part: nn.Module) -> dict[str, Any]:
    """Return copies of a module's public attributes that hold a plain value; neither its mode nor computed weights."""
    left_out = {"training", *computed_weights(part)}
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in vars(part).items()
        if isinstance(value, PLAIN) and key not in left_out and not key.startswith("_")
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and (torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all()))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _put(part: nn.Module, key: str, value: Tensor) -> None:
    """Write a value into a parameter or buffer, or in its place where code has put another one there."""
    now = part._parameters.get(key) if key in part._parameters else part._buffers.get(key)
    if isinstance(now, Tensor) and now.shape == value.shape and now.dtype == value.dtype:
        now.data.copy_(value)
    elif isinstance(now, nn.Parameter):
        now.data = value.clone()
    else:
        part._buffers[key] = value.clone()

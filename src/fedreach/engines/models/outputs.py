"""Selection of the output of models that return a dictionary, a tuple or an object.

A forward hook selects the output. The module then returns a tensor, and its weights keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedreach._util import registry
from fedreach._util.errors import ConfigError, nearest

Output = str | int | Callable[[Any], Tensor]
"""Key, attribute or position of the output, or a function of the module's return value."""


@dataclass(frozen=True)
class TakeOutput:
    """Forward hook that selects one element of a module's return value.

    Args:
        output: Key, attribute or position of the element, or a function that extracts it.

    Raises:
        ConfigError: If the return value has no such element.

    Example:
        >>> class Net(nn.Linear):
        ...     def forward(self, x):
        ...         return {"logits": super().forward(x)}
        >>> import torch
        >>> net = Net(3, 2)
        >>> _ = net.register_forward_hook(TakeOutput("logits"))
        >>> net(torch.zeros(4, 3)).shape, list(net.state_dict())
        (torch.Size([4, 2]), ['weight', 'bias'])
    """

    output: Output

    def __call__(self, module: nn.Module, inputs: Any, returned: Any) -> Any:
        if callable(self.output):
            return self.output(returned)
        named = isinstance(self.output, str)
        try:
            if named and not isinstance(returned, Mapping):
                return getattr(returned, str(self.output))
            return returned[self.output]
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            hint = nearest(str(self.output), [str(key) for key in _parts(returned)]) if named else ""
            raise ConfigError(
                f"model.output must select a part of the return value of {type(module).__name__}, "
                f"{describe_returned(returned)}; got {self.output!r}.{hint}"
            ) from error


def is_code(output: Any) -> bool:
    """Return whether `output` is the name of a function, ``FILE.py:NAME``."""
    return isinstance(output, str) and ":" in output


def with_functions(options: Mapping[str, Any], *folders: Path) -> dict[str, Any]:
    """Return the options of a model; if ``output`` is the name of a function, replace the name with the function.

    Args:
        options: Options of the model.
        folders: Folders to search for the file, in this order.
    """
    output = options.get("output")
    if output is None or not is_code(output):
        return dict(options)
    function = registry.load_users(output, registry.base_of(output, *folders))
    if not callable(function):
        raise ConfigError(f"model.output: {output!r} must be the name of a function; got {type(function).__name__}.")
    return {**options, "output": function}


def _parts(returned: Any) -> dict[Any, Any]:
    """Return the elements of a return value by key, attribute or position."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if hasattr(returned, "_fields"):
        return {name: getattr(returned, name) for name in returned._fields}
    if isinstance(returned, Sequence) and not isinstance(returned, str):
        return dict(enumerate(returned))
    return {name: value for name, value in getattr(returned, "__dict__", {}).items() if not name.startswith("_")}


def describe_returned(returned: Any) -> str:
    """Return a description of the type and elements of a return value.

    Example:
        >>> describe_returned({"loss": 0.1, "logits": 2})
        "dict with 'loss', 'logits'"
    """
    if isinstance(returned, Tensor):
        return f"a tensor of shape {tuple(returned.shape)}"
    part_names = ", ".join(map(repr, _parts(returned)))
    return f"{type(returned).__name__} with {part_names}" if part_names else type(returned).__name__


def not_a_tensor(name: str, returned: Any, shape: tuple[int, ...]) -> ConfigError:
    """Return the error for a model that does not return a tensor.

    Args:
        name: Name of the model.
        returned: Return value of the model.
        shape: Expected shape of the output.
    """
    parts = _parts(returned)
    fitting = [key for key, value in parts.items() if isinstance(value, Tensor) and tuple(value.shape) == shape]
    best = next((key for key in ("logits", *fitting, *parts) if key in parts), None)
    output = '"FILE.py:NAME"' if best is None else f'"{best}"' if isinstance(best, str) else str(best)
    return ConfigError(
        f"The model {name} must return a tensor; got {describe_returned(returned)}. Select the output with "
        f"model.output = {output} in an experiment file, or model={{..., 'output': {output}}} in Python. The output "
        "can also be a function of the return value."
    )

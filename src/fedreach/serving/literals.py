"""How modules, numbers and a rule are written down in one Python file."""

from __future__ import annotations

import ast
import base64
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.errors import ConfigError
from fedreach.federation.values import State
from fedreach.serving.sources import Module

LOADER = '''\
import base64
import linecache
import sys
import types

import numpy as np

SOURCES = {{
{sources}}}
"""The modules that the rule consists of, those that others need first."""


def _loaded(name, source):
    """Return a module of this file, which can be imported and pickled as if this were a package."""
    module, place = types.ModuleType(f"{{__name__}}.{{name}}"), f"{{__file__}}: {{name}}"
    module.__package__ = __name__
    sys.modules[module.__name__] = module
    linecache.cache[place] = len(source), None, source.splitlines(keepends=True), place  # for tracebacks
    exec(compile(source, place, "exec", dont_inherit=True), vars(module))
    return module


def _array(kind, shape, text):
    return np.frombuffer(base64.b64decode(text), kind).reshape(shape).astype(np.dtype(kind).newbyteorder("="))


if __name__ not in sys.modules:
    raise ImportError("Put this module into sys.modules under its name before it is executed.")
for _name, _source in SOURCES.items():
    globals()[_name] = _loaded(_name, _source)
'''
LINE = 112


def loader(found: Iterable[Module]) -> str:
    """Return the lines that make modules of their sources."""
    return LOADER.format(
        sources="".join(f"    {module.name!r}: {quoted(module.source)},\n" for module in found)
    ).rstrip()


def authors(found: Iterable[Module]) -> str:
    """Return whose the modules are that are not FedReach's."""
    return "".join(f", but for {module.name}, which is its author's" for module in found if module.is_users)


def said(about: Mapping[str, Any]) -> str:
    """Return lines of a docstring that tell where something is from."""
    lines = "\n".join(textwrap.fill(f"{key}: {value}", LINE) for key, value in about.items())
    return lines.replace("\\", "\\\\").replace('"""', "'''")


def arrays(state: State) -> str:
    """Return the lines of a dictionary of arrays."""
    return "".join(f"    {name!r}: {array(np.asarray(value))},\n" for name, value in state.items())


def made(rule: Any, module: str) -> str:
    """Return the expression that makes a rule again."""
    kind = type(rule)
    if not is_dataclass(rule) or "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"{kind.__name__} must be a dataclass of its module, so that its options can be written down."
        )
    options = {field.name: getattr(rule, field.name) for field in fields(rule) if field.init}
    written = {name: repr(value) for name, value in options.items()}
    for name, value in options.items():
        if isinstance(value, float) and math.isinf(value):  # whose repr is no literal
            written[name] = f"float({str(value)!r})"
            continue
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise ConfigError(
                f"{kind.__name__}.{name} must be a number, a text or a tuple of such to be exported; got {value!r}."
            )
    return f"{module}.{kind.__qualname__}({', '.join(f'{name}={text}' for name, text in written.items())})"


def quoted(source: str) -> str:
    """Return a string literal of a source, to be read where that is possible."""
    readable = "'''" not in source and source.endswith("\n")
    return f"r'''{source}'''" if readable else repr(source)


def array(value: AnyArray) -> str:
    text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    wrapped = f'"{text}"' if len(text) <= LINE else '"""\n' + "\n".join(textwrap.wrap(text, LINE)) + '\n"""'
    return f"_array({value.dtype.str!r}, {value.shape}, {wrapped})"

"""A fitted rule as one Python file, which serves a client where there is neither FedReach nor torch: numpy alone."""

from __future__ import annotations

import ast
import base64
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedreach
from fedreach.arrays import AnyArray
from fedreach.config.own_files import code_files
from fedreach.errors import ConfigError
from fedreach.federation.protocols import Serving
from fedreach.federation.traits import Traits
from fedreach.federation.values import State
from fedreach.runs.identity import check_code
from fedreach.serving.adapter import Adapter
from fedreach.serving.saved import SavedRule, Which, read
from fedreach.serving.sources import modules

FILE = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by FedReach {version}, of whose modules it consists{users}. It needs numpy alone.
"""How a client uses a federated model: by its own inputs, which have no labels and never leave it.

{about}

Whoever holds the model computes its logits, and the rule says what they mean for this client:

    import {stem}

    adapter = {stem}.new_adapter()  # one for each client; with `model`, a rule may ask it about repaired inputs
    adapter.fit(logits)             # (m, {classes}) of its inputs; `features`, `inputs` where the rule looks at them
    adapter.predict(logits)         # (m,) classes; `predict_proba`, `partial_fit`, `prior_`, `decision_`: see Adapter
"""

import base64
import linecache
import sys
import types

import numpy as np

RUN = {{
{run}}}

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

STATE = {{
{state}}}
"""What the participants fitted."""

RULE = {rule}
Adapter = {adapter}.Adapter


def new_adapter(model=None):
    """Return a client that has seen no input yet.

    Args:
        model: Returns (logits, features) for inputs, (m, ...): where a rule repairs inputs, it asks again.
    """
    return Adapter(RULE, STATE, model)
'''
LINE = 112


def export(
    folder: Path | str, out: Path, which: Which = "last", *, cluster: int | None = None, base: Path | None = None
) -> SavedRule:
    """Write the fitted rule of a finished run as one Python file, and return what was written.

    Args:
        folder: The run folder.
        out: The file, whose name ends in .py; there must be none yet.
        which: Of the last or the best model.
        cluster: Number of the model, where the run has one a cluster.
        base: Folder that the name of a rule of one's own is relative to; default: the current one.

    Raises:
        RunFolderError: If the folder holds no fitted rule of that model, or a rule's own file is another one by now.
        ConfigError: If the rule needs labels, or more than numpy; or the file cannot be written there.
    """
    if out.suffix != ".py" or not out.stem.isidentifier():
        raise ConfigError(f"The file of a client must be named as a Python module, such as client.py; got {out.name}.")
    if out.exists():
        raise ConfigError(f"There is a file {out} already. Remove it, or name another one.")
    saved = read(folder, which, cluster=cluster, base=base)
    here = base or Path.cwd()
    check_code(saved.run, saved.name, here, code_files(saved.name, here))
    run = saved.run
    about = {
        "name": run.config["name"],
        "method": run.method,
        "seed": run.seed,
        "model": which if cluster is None else f"{which}, cluster {cluster}",
        "round": saved.round,
        "rule": repr(saved.rule),
    }
    text = written(saved.rule, saved.state, about, out.stem)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("x", encoding="utf-8") as file:
        file.write(text)
    return saved


def written(rule: Serving, state: State, about: Mapping[str, Any], stem: str = "client") -> str:
    """Return the text of the file.

    Args:
        rule: A dataclass; its options must be numbers, texts and the like.
        state: As it was fitted.
        about: What the file says of where the rule is from.
        stem: Name of the file without its ending.

    Raises:
        ConfigError: If the rule needs labels, its options cannot be written down, or it needs more than numpy.
    """
    kind = type(rule)
    if Traits.of(rule).needs_labels:
        raise ConfigError(
            f"{kind.__name__} needs the labels of those that it serves: a reference, which none can deploy."
        )
    if Traits.of(rule).needs_batchnorm:
        raise ConfigError(
            f"{kind.__name__} refreshes BatchNorm layers inside the model, which a file that needs numpy alone cannot. "
            "Export a method with serving 'label_shift'."
        )
    place: str | Path = kind.__module__
    if not kind.__module__.startswith("fedreach."):
        place = Path(inspect.getfile(kind)).resolve()
    found = modules([Adapter.__module__, place])
    sources = "".join(f"    {module.name!r}: {_quoted(module.source)},\n" for module in found.values())
    lines = "\n".join(textwrap.fill(f"{key}: {value}", LINE) for key, value in about.items())
    return FILE.format(
        version=fedreach.__version__,
        users="".join(
            f", but for {module.name}, which is its author's" for module in found.values() if module.is_users
        ),
        about=lines.replace("\\", "\\\\").replace('"""', "'''"),
        stem=stem,
        classes=len(state["base"]) if "base" in state else "c",
        run="".join(f"    {key!r}: {value!r},\n" for key, value in about.items()),
        sources=sources,
        state="".join(f"    {name!r}: {_array(np.asarray(value))},\n" for name, value in state.items()),
        rule=_made(rule, found[str(place)].name),
        adapter=found[Adapter.__module__].name,
    )


def _made(rule: Any, module: str) -> str:
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


def _quoted(source: str) -> str:
    """Return a string literal of a source, to be read where that is possible."""
    readable = "'''" not in source and source.endswith("\n")
    return f"r'''{source}'''" if readable else repr(source)


def _array(value: AnyArray) -> str:
    text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    wrapped = f'"{text}"' if len(text) <= LINE else '"""\n' + "\n".join(textwrap.wrap(text, LINE)) + '\n"""'
    return f"_array({value.dtype.str!r}, {value.shape}, {wrapped})"

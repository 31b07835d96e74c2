"""The adapter as one file that needs NumPy alone."""

from __future__ import annotations

import ast
import base64
import importlib.util
import inspect
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import fedreach
from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ConfigError
from fedreach.deploy import deployed
from fedreach.deploy.adapter import Adapter
from fedreach.deploy.fitted_rule import SavedRule, Which, check_supported, read
from fedreach.experiment.components import code_files
from fedreach.federation.base import Adaptation
from fedreach.federation.types import State
from fedreach.runs.identity import check_code

# -------------------- The sources of a rule: its module and the modules of FedReach that it imports, in one file
# Imports from FedReach become relative: ``from fedreach._util.arrays import Floats`` becomes
# ``from .arrays import Floats`` in the file. All other code is copied without changes.

CLIENT_PACKAGES = frozenset({"numpy", *sys.stdlib_module_names})
"""Packages that a client has."""
READS_TABLES = frozenset({"narwhals", "pyarrow"})
"""Packages with which FedReach's modules read tables; processes that predict tables have them."""


class Module(NamedTuple):
    """A module in the exported file."""

    name: str  # within the file
    source: str
    is_users: bool  # not FedReach's


class _Place(NamedTuple):
    """The place of a module."""

    name: str  # "fedreach._util.arrays", or the path of a user's file
    file: Path


def modules(roots: list[Path | str]) -> dict[str, Module]:
    """Return the modules that the roots need, by their full name, or by path for a user's file; imported ones first.

    Args:
        roots: Full names of FedReach's modules, or paths of a user's files.

    Raises:
        ConfigError: If a module imports anything but numpy, the standard library and FedReach.
    """
    collected: dict[str, Module] = {}
    for root in roots:
        place = _find_module(root) if isinstance(root, str) else _Place(str(root), root)
        _collect(place, collected, ())
    return collected


def _collect(place: _Place, collected: dict[str, Module], through: tuple[_Place, ...]) -> str:
    """Add a module after all that it imports; return its name within the file."""
    if place.name not in collected:
        source = place.file.read_text(encoding="utf-8")
        changes = [
            (node, _rewrite_import(node, collected, (*through, place)))
            for node in _imports(ast.parse(source))
            if _is_fedreachs(node, (*through, place))
        ]
        is_users = not place.name.startswith("fedreach.")
        collected[place.name] = Module(_free_name(place, collected), _replace_statements(source, changes), is_users)
    return collected[place.name].name


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield all imports of a module, except those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            for branch in node.orelse:
                yield from _imports(branch)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from _imports(node)


def _is_fedreachs(node: ast.Import | ast.ImportFrom, through: tuple[_Place, ...]) -> bool:
    """Return whether an import is from FedReach; reject packages that a client does not have."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    tops = {name.partition(".")[0] for name in names}
    way = " -> ".join(place.file.name for place in through)
    where = f"{way}, line {node.lineno}: an exported rule"
    if isinstance(node, ast.ImportFrom) and node.level:
        raise ConfigError(f"{where} is one file and imports nothing from beside it; got {ast.unparse(node)!r}.")
    if "fedreach" in tops:
        if isinstance(node, ast.Import):
            raise ConfigError(
                f"{where} imports names from FedReach; got {ast.unparse(node)!r}. Write 'from ... import'."
            )
        return True
    if tops - CLIENT_PACKAGES - (READS_TABLES if through[-1].name.startswith("fedreach.") else frozenset()):
        raise ConfigError(
            f"{where} may import numpy, the standard library and what of FedReach needs no more than these; got "
            f"{ast.unparse(node)!r}."
        )
    return False


def _rewrite_import(
    node: ast.Import | ast.ImportFrom, collected: dict[str, Module], through: tuple[_Place, ...]
) -> str:
    """Return the equivalent import statement within the file."""
    assert isinstance(node, ast.ImportFrom)
    assert node.module is not None
    place, lines = _find_module(node.module), []
    for alias in node.names:
        full_name = f"{node.module}.{alias.name}"
        if place.file.name == "__init__.py" and importlib.util.find_spec(full_name) is not None:
            inside = _collect(_find_module(full_name), collected, through)
            lines.append(f"from . import {inside} as {alias.asname or alias.name}")
        else:
            inside = _collect(place, collected, through)
            suffix = f" as {alias.asname}" if alias.asname else ""
            lines.append(f"from .{inside} import {alias.name}{suffix}")
    return f"\n{' ' * node.col_offset}".join(lines)


def _find_module(name: str) -> _Place:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"there is no module {name!r}.")
    return _Place(name, Path(spec.origin))


def _free_name(place: _Place, collected: dict[str, Module]) -> str:
    """Return a name within the file that no other module has."""
    if not place.name.startswith("fedreach."):
        return f"own_{place.file.stem}"
    used_names = {module.name for module in collected.values()} | LOADER_NAMES
    parts = place.name.split(".")
    names = ("_".join(parts[-length:]) for length in range(1, len(parts) + 1))
    return next(name for name in names if name not in used_names)


def _replace_statements(source: str, changes: list[tuple[ast.Import | ast.ImportFrom, str]]) -> str:
    """Return the source with some of its statements replaced."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, new in sorted(changes, key=lambda change: -change[0].lineno):
        assert node.end_lineno is not None  # ast.parse sets it for every statement
        assert node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = text[:begin] + new.encode() + text[end:]
    return text.decode()


# -------------------- Modules, numbers and a rule as text of one Python file

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
LOADER_NAMES = {"base64", "linecache", "sys", "types", "np"}
"""Names that the loader imports: no module of the file is called so."""
LINE = 112


def loader(bundled: Iterable[Module]) -> str:
    """Return the lines that load the modules from their sources."""
    return LOADER.format(
        sources="".join(f"    {module.name!r}: {quote_source(module.source)},\n" for module in bundled)
    ).rstrip()


def authors(bundled: Iterable[Module]) -> str:
    """Return a clause that excludes the user's modules from FedReach's license."""
    return "".join(f", but for {module.name}, which is its author's" for module in bundled if module.is_users)


def format_about(about: Mapping[str, Any]) -> str:
    """Return the lines of a docstring that describe an origin."""
    lines = "\n".join(textwrap.fill(f"{key}: {value}", LINE) for key, value in about.items())
    return lines.replace("\\", "\\\\").replace('"""', "'''")


def arrays(state: State) -> str:
    """Return the lines of a dictionary of arrays."""
    return "".join(f"    {name!r}: {array(np.asarray(value))},\n" for name, value in state.items())


def rule_expression(rule: Any, module: str) -> str:
    """Return an expression that evaluates to the rule."""
    kind = type(rule)
    if not is_dataclass(rule) or "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"{kind.__name__} must be a dataclass of its module, so that its options can be written down."
        )
    options = {field.name: getattr(rule, field.name) for field in fields(rule) if field.init}
    written = {name: repr(value) for name, value in options.items()}
    for name, value in options.items():
        if isinstance(value, float) and math.isinf(value):  # its repr is not a literal
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


def quote_source(source: str) -> str:
    """Return a source as a string literal, readable if possible."""
    readable = "'''" not in source and source.endswith("\n")
    return f"r'''{source}'''" if readable else repr(source)


def array(value: AnyArray) -> str:
    text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    wrapped = f'"{text}"' if len(text) <= LINE else '"""\n' + "\n".join(textwrap.wrap(text, LINE)) + '\n"""'
    return f"_array({value.dtype.str!r}, {value.shape}, {wrapped})"


# -------------------- A fitted rule as one Python file that needs numpy alone

SCRIPT_TEMPLATE = '''\
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

{loader}

RUN = {{
{run}}}

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


def export(
    folder: Path | str,
    out: Path,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    force: bool = False,
) -> SavedRule:
    """Write the fitted rule of a finished run as one Python file, and return the rule.

    Args:
        folder: The run folder.
        out: New file, whose name ends with .py.
        which: Model: the last, the best or the refitted one.
        cluster: Number of the cluster, if the run has one model per cluster.
        base: Folder that the name of a custom rule is relative to; default: the current folder.
        force: Export even if participants do not support the rule.

    Raises:
        RunFolderError: If the folder does not hold a fitted rule for that model, or the rule's file has changed.
        ConfigError: If the rule needs labels, or more than numpy; if participants do not support it; or if the file
            cannot be written.
    """
    if out.suffix != ".py" or not out.stem.isidentifier():
        raise ConfigError(f"The file of a client must be named as a Python module, such as client.py; got {out.name}.")
    if out.exists():
        raise ConfigError(f"There is a file {out} already. Remove it, or name another one.")
    saved = read(folder, which, cluster=cluster, base=base)
    if not force:
        check_supported(saved)
    code_folder = base or Path.cwd()
    check_code(saved.run, saved.name, code_folder, code_files(saved.name, code_folder))
    run = saved.run
    about = {
        "name": run.config["name"],
        "method": run.method,
        "seed": run.seed,
        "model": which if cluster is None else f"{which}, cluster {cluster}",
        "round": saved.round,
        "rule": repr(saved.rule),
    }
    text = adapter_program(saved.rule, saved.state, about, out.stem)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("x", encoding="utf-8") as file:
        file.write(text)
    return saved


def adapter_program(rule: Adaptation, state: State, about: Mapping[str, Any], stem: str = "client") -> str:
    """Return the text of the file.

    Args:
        rule: Adaptation rule, a dataclass whose options are numbers, texts or tuples of them.
        state: Fitted state of the rule.
        about: Origin of the rule, for the file's docstring.
        stem: Name of the file without its ending.

    Raises:
        ConfigError: If the rule needs labels, its options cannot be written as literals, or it needs more than numpy.
    """
    check_deployable(rule)
    place = place_of(rule)
    bundled = modules([Adapter.__module__, place])
    return SCRIPT_TEMPLATE.format(
        version=fedreach.__version__,
        users=authors(bundled.values()),
        about=format_about(about),
        stem=stem,
        classes=len(state["base"]) if "base" in state else "c",
        loader=loader(bundled.values()),
        run="".join(f"    {key!r}: {value!r},\n" for key, value in about.items()),
        state=arrays(state),
        rule=rule_expression(rule, bundled[str(place)].name),
        adapter=bundled[Adapter.__module__].name,
    )


def check_deployable(rule: Adaptation) -> None:
    """Reject a rule that needs more than inputs and a model, with a ConfigError."""
    kind = type(rule)
    if rule.is_reference:
        raise ConfigError(
            f"{kind.__name__} needs the labels of those that it adapts: a reference, which none can deploy."
        )
    if rule.needs_batchnorm:
        raise ConfigError(
            f"{kind.__name__} refreshes BatchNorm layers inside the model, which a file that needs numpy alone cannot. "
            "Export a method with adaptation 'label_shift'."
        )


def place_of(rule: Adaptation) -> str | Path:
    """Return the module of a rule: its full name, or the path of a user's file."""
    kind = type(rule)
    return kind.__module__ if kind.__module__.startswith("fedreach.") else Path(inspect.getfile(kind)).resolve()


# -------------------- The program of an exported model, which needs numpy, pyarrow, and torch or onnxruntime

Library = Literal["torch", "onnx"]

PROGRAM_TEMPLATE = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by FedReach {version}, of whose modules it consists{users}. It needs numpy, pyarrow and {package}.
"""Predict by a federated model{adaptation}.

{about}

    python {stem}.py rows.csv --out predictions.csv

    import {stem}

    {stem}.model.logits(samples)           # (m, {outputs}) of {samples}
    adapter = {stem}.model.new_adapter()   # one for each client, where the model has a rule
    answers = {stem}.model.answers(samples)
    adapter.fit(*answers).predict(*answers)
"""

{loader}

import functools
import json
from pathlib import Path

import {package}

HERE = Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "model.json").read_text(encoding="utf-8"))

STATE = {state}
"""What the participants fitted, for the rule."""

RULE = {rule}

{run}


model = {deployed}.Deployed(ABOUT, run, RULE, STATE, batch={batch})

if __name__ == "__main__":
    sys.exit({deployed}.main(model))
'''

PACKAGE = {"torch": "torch", "onnx": "onnxruntime"}
RUN = {
    "torch": """\
@functools.cache
def graph(name):
    return torch.export.load(HERE / f"{name}.pt2").module()


def run(name, x):
    with torch.no_grad():
        found = graph(name)(torch.from_numpy(x))
    return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]""",
    "onnx": """\
@functools.cache
def graph(name):
    return onnxruntime.InferenceSession(HERE / f"{name}.onnx", providers=["CPUExecutionProvider"])


def run(name, x):
    return graph(name).run(None, {"samples": x})""",
}


def program(
    about: Mapping[str, Any], library: Library, rule: Adaptation | None, state: State, batch: int, stem: str = "predict"
) -> str:
    """Return the text of the program.

    Args:
        about: Content of ``model.json``.
        library: Library that runs the graphs in the same folder.
        rule: Adaptation rule, a dataclass; None: the unadapted model.
        state: Fitted state of the rule.
        batch: Maximum number of examples per call of a graph.
        stem: Name of the file without its ending.

    Raises:
        ConfigError: If the rule cannot be deployed, its options cannot be written as literals, or it needs more than
            numpy.
    """
    roots: list[str | Path] = [deployed.__name__]
    if rule is not None:
        check_deployable(rule)
        roots.append(place_of(rule))
    bundled = modules(roots)
    summary = {key: about[key] for key in ("name", "method", "seed", "model", "cluster", "round", "rule")}
    return PROGRAM_TEMPLATE.format(
        version=fedreach.__version__,
        users=authors(bundled.values()),
        package=PACKAGE[library],
        adaptation="" if rule is None else ", each client adapted by its own inputs",
        about=format_about(summary),
        stem=stem,
        outputs=about["outputs"],
        samples="a table" if about["kind"] == "table" else f"{about['kind']} of shape {tuple(about['shape'])}",
        loader=loader(bundled.values()),
        state="None" if rule is None else "{\n" + arrays(state) + "}",
        rule="None" if rule is None else rule_expression(rule, bundled[str(roots[-1])].name),
        run=RUN[library],
        deployed=bundled[deployed.__name__].name,
        batch=batch,
    )

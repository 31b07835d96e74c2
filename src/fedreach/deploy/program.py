"""Archives for machines without FedReach: zip files with code for adaptation or prediction, which Python runs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import fedreach
from fedreach._util.errors import ConfigError
from fedreach.deploy.fitted_rule import SavedRule, Which, check_supported, read
from fedreach.experiment.components import code_files
from fedreach.federation.base import Adaptation
from fedreach.federation.types import State
from fedreach.runs.identity import check_code

# -------------------- The modules of FedReach that an archive needs

CLIENT_PACKAGES = frozenset({"numpy", *sys.stdlib_module_names})
"""Packages that are available at a client."""
READS_TABLES = frozenset({"narwhals", "pyarrow"})
"""Packages with which FedReach's modules read tables. They must be installed where tables are predicted."""
FEDREACH = Path(fedreach.__file__).parent


def modules(names: Iterable[str], users_file: Path | None = None) -> dict[str, Path]:
    """Return the files of the given modules of FedReach, and of all modules that they import, by full name.

    Args:
        names: Full names of modules of FedReach.
        users_file: File of the user, whose imports from FedReach are included.

    Raises:
        ConfigError: If a module imports a package other than numpy, the standard library and FedReach.
    """
    collected: dict[str, Path] = {}
    for name in names:
        _collect(name, collected, ())
    if users_file is not None:
        _collect_imports(users_file, collected, ())
    return collected


def _collect(name: str, collected: dict[str, Path], through: tuple[Path, ...]) -> None:
    """Add a module and all that it imports."""
    if name not in collected:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"module {name!r} not found.")
        collected[name] = Path(spec.origin)
        _collect_imports(collected[name], collected, through)


def _collect_imports(file: Path, collected: dict[str, Path], through: tuple[Path, ...]) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in _imports(tree):
        _check_packages(node, (*through, file))
        for alias in node.names:
            name = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            if name == "fedreach":  # import fedreach as fr: the names that the file uses
                local_name = alias.asname or alias.name
                attributes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
                names = [f"{name}.{each.attr}" for each in attributes if ast.unparse(each.value) == local_name]
            else:
                names = [name] if name.startswith("fedreach.") else []
            for each in names:
                _collect(_module_of(each), collected, (*through, file))


def _module_of(name: str) -> str:
    """Return the module that a name in FedReach refers to, or that defines the name."""
    module, _, attribute = name.rpartition(".")
    if module == "fedreach" and attribute in fedreach.MODULE_OF:
        return f"fedreach.{fedreach.MODULE_OF[attribute]}"
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None and importlib.util.find_spec(name) is not None:
        return name
    return module


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


def _check_packages(node: ast.Import | ast.ImportFrom, through: tuple[Path, ...]) -> None:
    """Reject an import that a client does not have, with a ConfigError."""
    where = f"{' -> '.join(file.name for file in through)}, line {node.lineno}: an exported rule"
    if isinstance(node, ast.ImportFrom) and node.level:
        raise ConfigError(
            f"{where}: a custom rule must be a single file without imports of other local files; got "
            f"{ast.unparse(node)!r}."
        )
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
    allowed = CLIENT_PACKAGES | {"fedreach"} | (READS_TABLES if FEDREACH in through[-1].parents else set())
    if {name.partition(".")[0] for name in names} - allowed:
        raise ConfigError(
            f"{where}: a custom rule may import numpy, the standard library and parts of FedReach that need only "
            f"these; got {ast.unparse(node)!r}."
        )


# -------------------- An archive: modules of FedReach, a rule with its state, and a package that brings them together

TEMPLATE = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by FedReach {version}, whose modules are in the same archive{users}.
"""{docstring}

Put the archive on the path before you import it: sys.path.insert(0, "{stem}.pyz").
"""

{code}'''


def archive(
    stem: str,
    rule: Adaptation | None,
    state: State,
    about: Mapping[str, Any],
    *,
    root: str,
    main: str,
    docstring: str,
    code: str,
) -> bytes:
    """Return the bytes of an archive whose package contains a rule and its state.

    Args:
        stem: Name of the archive without its ending, which is also the name of its package.
        rule: Adaptation rule, or None. The rule must be a dataclass whose options are numbers, texts or tuples of these
            types.
        state: Fitted state of the rule, which `fedreach.deploy.adapter.stored` reads.
        about: Origin of the rule as JSON values.
        root: Module of FedReach that `code` imports.
        main: Code that ``python ARCHIVE`` runs.
        docstring: Docstring of the package.
        code: Code of the package.

    Raises:
        ConfigError: If the rule cannot be deployed, its options cannot be stored, or it requires packages other than
            numpy.
    """
    names, users_file, made_of = ["fedreach", root], None, None
    if rule is not None:
        check_deployable(rule)
        kind = type(rule)
        module = kind.__module__
        if module.startswith("fedreach."):
            names.append(module)
        else:
            users_file, module = Path(inspect.getfile(kind)).resolve(), f"{stem}.rule"
        made_of = module, kind.__qualname__, _options_of(rule)
    with io.BytesIO() as buffer:
        named_arrays: dict[str, Any] = {name: np.asarray(value) for name, value in state.items()}
        np.savez(buffer, **named_arrays)
        arrays = buffer.getvalue()
    package = TEMPLATE.format(
        stem=stem,
        version=fedreach.__version__,
        users="" if users_file is None else ", but for rule.py, which is its author's",
        docstring=docstring,
        code=code,
    )
    contents: dict[str, str | bytes] = {
        "__main__.py": main,
        f"{stem}/__init__.py": package,
        f"{stem}/stored.json": json.dumps({"version": fedreach.__version__, "rule": made_of, "run": about}, indent=1),
        f"{stem}/state.npz": arrays,
    }
    if users_file is not None:
        contents[f"{stem}/rule.py"] = users_file.read_bytes()
    for name, file in modules(names, users_file).items():
        parts = name.split(".")
        for length in range(1, len(parts)):
            contents.setdefault("/".join([*parts[:length], "__init__.py"]), "")
        inside = [*parts, "__init__.py"] if file.name == "__init__.py" else [*parts[:-1], file.name]
        contents["/".join(inside)] = file.read_bytes()
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as written:
            for name, content in contents.items():  # ZipInfo has a fixed date: the same rule gives the same bytes
                written.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def _options_of(rule: Any) -> dict[str, Any]:
    """Return the options of a rule, which must be JSON values."""
    kind = type(rule)
    if not is_dataclass(rule) or "<locals>" in kind.__qualname__:
        raise ConfigError(f"{kind.__name__} must be a dataclass at module level, so that its options can be exported.")
    options = {field.name: getattr(rule, field.name) for field in fields(rule) if field.init}
    for name, value in options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ConfigError(
                f"{kind.__name__}.{name} must be a number, a text, or a tuple of numbers and texts to be exported; got "
                f"{value!r}."
            ) from error
    return options


def check_deployable(rule: Adaptation) -> None:
    """Raise ConfigError if a rule requires more than inputs and a model."""
    kind = type(rule)
    if rule.is_reference:
        raise ConfigError(f"{kind.__name__} needs labels of the clients that it adapts, so it cannot be deployed.")
    if rule.needs_batchnorm:
        raise ConfigError(
            f"{kind.__name__} changes BatchNorm layers inside the model, which is not possible with numpy alone. "
            "Export a method with adaptation 'label_shift'."
        )


# -------------------- A fitted rule, which needs numpy alone

ADAPTER_DOCSTRING = """\
Adapt a federated model to a client by its own inputs, without labels. It needs numpy alone.

You compute the model's logits, and the rule adapts them to this client:

    import {stem}

    adapter = {stem}.new_adapter()  # one for each client; with `model`, a rule may ask it about corrected inputs
    adapter.fit(logits)             # (m, {classes}) of its inputs; `features`, `inputs` where the rule looks at them
    adapter.predict(logits)         # (m,) classes; also `predict_proba`, `partial_fit`, `prior_`, `decision_`"""

ADAPTER_CODE = '''\
from fedreach.deploy.adapter import Adapter, stored

RUN, RULE, STATE = stored(__name__)


def new_adapter(model=None):
    """Return a client that has seen no input yet.

    Args:
        model: Returns (logits, features) for inputs, (m, ...): where a rule corrects inputs, it asks again.
    """
    return Adapter(RULE, STATE, model)
'''

ADAPTER_MAIN = """\
import {stem}

print({stem}.__doc__)
print(*(f"{{key}}: {{value}}" for key, value in {stem}.RUN.items()), sep="\\n")
"""


def export(
    folder: Path | str,
    out: Path,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    force: bool = False,
    trust_code: bool = False,
) -> SavedRule:
    """Write the fitted rule of a finished run to an archive, and return the rule.

    Args:
        folder: Run folder.
        out: Path of the new file, which ends in ``.pyz``.
        which: Model for which the rule was fitted: the last, the best or the refitted model.
        cluster: Number of the cluster, if the run has one model per cluster.
        base: Folder to which the file name of a custom rule is relative. Default: the current folder.
        force: Export even if participants do not support the rule.
        trust_code: Run the custom code that the run folder refers to, see `fedreach.deploy.saved.load`.

    Raises:
        RunFolderError: If the folder does not contain a fitted rule for the requested model, or the file that defines
            the rule was changed.
        ConfigError: If the rule requires labels or packages other than numpy, participants do not support it, or the
            file cannot be written.
    """
    if out.suffix != ".pyz" or not out.stem.isidentifier() or out.stem == "fedreach":
        raise ConfigError(
            f"The file of an adapter must be named as a Python module and end with .pyz; got {out.name}. "
            "Use a name such as adapter.pyz."
        )
    if out.exists():
        raise ConfigError(f"{out} already exists. Remove it, or choose another name.")
    saved = read(folder, which, cluster=cluster, base=base, trust_code=trust_code)
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
    content = adapter_archive(saved.rule, saved.state, about, out.stem)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("xb") as file:
        file.write(content)
    return saved


def adapter_archive(rule: Adaptation, state: State, about: Mapping[str, Any], stem: str = "adapter") -> bytes:
    """Return the bytes of an archive with a fitted rule; arguments and errors are as in `archive`."""
    return archive(
        stem,
        rule,
        state,
        about,
        root="fedreach.deploy.adapter",
        main=ADAPTER_MAIN.format(stem=stem),
        docstring=ADAPTER_DOCSTRING.format(stem=stem, classes=len(state["base"]) if "base" in state else "c"),
        code=ADAPTER_CODE,
    )


# -------------------- The program of an exported model, which needs numpy, pyarrow, and torch or onnxruntime

Library = Literal["torch", "onnx"]
STEM = "predict"
PROGRAM = f"{STEM}.pyz"

PROGRAM_DOCSTRING = """\
Predict by a federated model{adapts}. It needs numpy, pyarrow and {package}.

    python predict.pyz rows.csv --out predictions.csv

    import predict

    predict.model.logits(samples)           # (m, {outputs}) of {samples}
    adapter = predict.model.new_adapter()   # one for each client, where the model has a rule
    answers = predict.model.answers(samples)
    adapter.fit(*answers).predict(*answers)"""

PROGRAM_CODE = """\
from fedreach.deploy.deployed import main, stored_model

model = stored_model(__name__, {package!r}, batch={batch})
"""

PROGRAM_MAIN = f"""\
import sys

try:
    from {STEM} import main, model
except Exception as error:
    print(f"error: {{error}}", file=sys.stderr)
    sys.exit(getattr(error, "exit_code", 1))
sys.exit(main(model))
"""

PACKAGE = {"torch": "torch", "onnx": "onnxruntime"}


def program(about: Mapping[str, Any], library: Library, rule: Adaptation | None, state: State, batch: int) -> bytes:
    """Return the bytes of the archive of an exported model; errors are as in `archive`.

    Args:
        about: Content of ``model.json``.
        library: Library that runs the graphs, which are stored in the same folder.
        rule: Adaptation rule, which must be a dataclass. None: the model is not adapted.
        state: Fitted state of the rule, which `fedreach.deploy.adapter.stored` reads.
        batch: Largest number of examples per call of a graph.
    """
    package = PACKAGE[library]
    adapts = "" if rule is None else ", adapted to each client by its own inputs"
    samples = "a table" if about["kind"] == "table" else f"{about['kind']} of shape {tuple(about['shape'])}"
    return archive(
        STEM,
        rule,
        state,
        {key: about[key] for key in ("name", "method", "seed", "model", "cluster", "round", "rule")},
        root="fedreach.deploy.deployed",
        main=PROGRAM_MAIN,
        docstring=PROGRAM_DOCSTRING.format(adapts=adapts, package=package, outputs=about["outputs"], samples=samples),
        code=PROGRAM_CODE.format(package=package, batch=batch),
    )

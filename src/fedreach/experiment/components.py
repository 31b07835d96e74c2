"""Built-in and custom components that an experiment names."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import os
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import fedreach
from fedreach._util import registry
from fedreach._util.code import definition_of, digest_of_code, imports_for_effect, name_in
from fedreach._util.errors import ComponentError, ConfigError, DataError, FedReachError
from fedreach.data.own import FILES
from fedreach.data.stored import FILE, NOTE
from fedreach.experiment.messages import Path_
from fedreach.experiment.schema import Choice, Experiment, LocalSection
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import Adam, AdamW, LocalSGD, TorchSteps, UnevenSteps

# -------------------- Relative paths
# Paths in a TOML file are relative to its folder, all others to the current folder.

PATH_KEYS: tuple[Path_, ...] = (("data", "folder"), ("partition", "file"), ("server_data", "file"))
"""Options that are paths, in addition to files of code (``FILE.py:NAME`` in any option) and of data."""
DATA_ENDINGS = (".npz", ".npy", *FILES)


def folder_of(source: Path | None) -> Path:
    """Return the folder that paths are relative to: the TOML file's folder, or the current folder without a file."""
    return Path.cwd() if source is None or source.suffix == ".json" else source.resolve().parent


def relative_to_base(base: Path, key: Path_, value: Any) -> Any:
    """Make the paths in the value of a key, which are relative to the current folder, relative to `base`."""
    if isinstance(value, dict):
        return {name: relative_to_base(base, (*key, name), inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [relative_to_base(base, (*key, i), inner) for i, inner in enumerate(value)]
    if not isinstance(value, str) or base == Path.cwd():
        return value
    file, colon, name = value.rpartition(":")
    if not file.endswith(registry.FILES):
        file, colon, name = value, "", ""
        data = key in (("data",), ("data", "name")) and value.endswith(DATA_ENDINGS)
        if not data and key not in PATH_KEYS:
            return value
    relative = file if Path(file).is_absolute() else Path(os.path.relpath(file, base)).as_posix()
    return f"{relative}{colon}{name}"


# -------------------- The components of a federation, some of which nest others


def nested_choices(options: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the position of each nested component in the options, and the value at this position.

    A component that contains components of its type has an option ``inner`` for one component or ``parts`` for a list.
    Each nested component is a name or a table with a name.

    Example:
        >>> list(nested_choices({"max": 0.3, "inner": "entropy"}))
        [(('inner',), 'entropy')]
        >>> list(nested_choices({"parts": ["equal", {"name": "entropy"}]}))
        [(('parts', 0), 'equal'), (('parts', 1), {'name': 'entropy'})]
    """
    if options.get("inner") is not None:
        yield ("inner",), options["inner"]
    if isinstance(parts := options.get("parts"), list):
        yield from ((("parts", i), part) for i, part in enumerate(parts))


def with_nested(choice: Choice) -> Iterator[Choice]:
    """Yield a component and all components nested in it."""
    yield choice
    for _, value in nested_choices(choice.options):
        yield from with_nested(Choice.model_validate(value))


def make(kind: str, choice: Choice, base: Path) -> Any:
    """Return a component; a user's function is wrapped, and lists are converted to tuples, which are immutable.

    Raises:
        ConfigError: If the name is unknown or an option is invalid.
    """
    target = registry.find(kind, choice.name, base)
    options = choice.options
    inner_components = {
        where: make(kind, Choice.model_validate(value), base) for where, value in nested_choices(options)
    }
    for option, value in options.items():
        if (option,) in inner_components:
            options[option] = inner_components[option,]
        elif option == "parts" and isinstance(value, list):
            options[option] = tuple(inner_components[option, i] for i in range(len(value)))
        elif isinstance(value, list) and is_tuple(hints(target).get(option)):
            options[option] = tuple(value)
    wrapper = registry.wrapper(kind, target)
    try:
        return target(**options) if wrapper is None else wrapper(_with_options(target, options))
    except SystemExit as error:  # otherwise the program would end here, with status 0
        raise ConfigError(f"{choice.name!r} cannot be created: SystemExit: {error}.") from error


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {"sgd": lambda: None, "adam": Adam, "adamw": AdamW, "torch": TorchSteps}


def local_of(section: LocalSection, base: Path | None = None) -> LocalSGD:
    """Return the local training; the path of a custom schedule is relative to `base`."""
    arguments = section.model_dump()
    if ":" in section.schedule:
        arguments["schedule"] = registry.load_users(
            section.schedule, registry.base_of(section.schedule, base or Path.cwd())
        )
        if not callable(arguments["schedule"]):
            raise ConfigError(f"local.schedule must be a function of the round; got {section.schedule!r}.")
    if isinstance(arguments["steps"], dict):
        arguments["steps"] = UnevenSteps(**arguments["steps"])
    options = dict(arguments["optimizer"])
    target = OPTIMIZERS[name := options.pop("name")]
    try:
        inspect.signature(target).bind(**options)
    except TypeError as error:
        has = ", ".join(inspect.signature(target).parameters) or "none"
        raise ConfigError(f"local.optimizer {name!r}: {error}. Its options: {has}.") from error
    return LocalSGD(**arguments | {"optimizer": target(**options)})


def federation(experiment: Experiment, seed: int, base: Path) -> Federation:
    """Return the federation that `[method]` describes."""
    choices = {
        field.name: experiment.choice(field.name)
        for field in fields(Federation)
        if field.name in registry.COMPONENT_TYPES
    }
    parts = {kind: make(kind, choice, base) for kind, choice in choices.items() if choice is not None}
    method, local = experiment.method, local_of(experiment.local, base)
    return Federation(**parts, local=local, cohort_size=method.largest_cohort, schedule=method.schedule, seed=seed)


def hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the known types of the arguments of a class or function."""
    function: Any = target
    if inspect.isclass(target):
        function = vars(target).get("__init__", target)
    elif not inspect.isroutine(target):  # a callable object
        function = type(target).__call__
    try:
        return typing.get_type_hints(function)
    except NameError:  # of a class that came from another process, without all that its module imports
        resolved: dict[str, Any] = {}
        for name, hint in getattr(function, "__annotations__", {}).items():
            with contextlib.suppress(NameError):
                resolved |= typing.get_type_hints(SimpleNamespace(__annotations__={name: hint}))
        return resolved


def is_tuple(hint: Any) -> bool:
    """Return whether a type is or includes a tuple, which is a list in a TOML file."""
    return typing.get_origin(hint) is tuple or any(map(is_tuple, typing.get_args(hint)))


def _with_options(function: Any, options: dict[str, Any]) -> Any:
    if not options:
        return function

    @functools.wraps(function)  # with its name and attributes, such as `needs`
    def configured(*args: Any) -> Any:
        return function(*args, **options)

    return configured


# -------------------- The user's files that the numbers of a run depend on
# These are code with its imports, data, and files that options name. All imports in the text of the code count. For
# ``FILE.py:NAME``, only the imports that NAME refers to count (see `fedreach._util.code`), and imports for their side
# effects. FedReach cannot see a module whose name is computed at run time, or a file that the code itself opens.

LIBRARY = Path(fedreach.__file__).parent


def digest(path: Path, name: str | None = None) -> str:
    """Return the SHA-256 digest of a data file, or the digest of code; an unchanged file is not read again.

    Args:
        path: Path of the file.
        name: Name of code in a run (see `fedreach._util.code`). For ``FILE.py:NAME`` and ``module:NAME``, the digest
            includes NAME and the code that NAME refers to. For an imported module, it includes the whole file. None:
            the file is data.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        return _digest(path, name, *_stamp(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Make the file readable.") from error


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


@cache
def _digest(path: Path, name: str | None, *stamp: int) -> str:
    if name is not None:
        return digest_of_code(path, name_in(name))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_files(experiment: Experiment, base: Path, parts: list[Choice]) -> dict[str, Path]:
    """Return the data files of an experiment, by their names in the experiment.

    For a folder of arrays, and for data passed from Python, the result includes all files. For a component, it includes
    the files that the component's options name.
    """
    e = experiment
    named = [e.partition.file, None if e.server_data is None else e.server_data.file]
    named += [value for part in parts for value in part.options.values() if isinstance(value, str) and "." in value]
    paths = {name: base / name for name in named if name is not None}
    name = e.data.name
    if name.endswith((".npy", FILE)):
        folder = (base / name).parent
        # A folder that is named by its content is the same in any place.
        folder_name = Path(folder.name) if registry.BY_CONTENT.search(name) else Path(name).parent
        files = sorted({*folder.glob("*.npy"), folder / FILE, folder / NOTE})
        paths |= {(folder_name / file.name).as_posix(): file for file in files}
    elif name.endswith(DATA_ENDINGS):
        paths[name] = base / name
    return {name: path for name, path in paths.items() if _is_file(path)}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a path, such as a long text
        return False


def code_files(name: str, base: Path) -> dict[str, Path]:
    """Return the files of a user's ``FILE.py:NAME`` or ``module:NAME``.

    The key of the file is this name. The keys of the user's modules that the file imports, directly or indirectly, are
    paths relative to `base`. The module is imported first, because it may change Python's search path.
    """
    if name.rpartition(":")[0].endswith(".pkl"):  # its name contains a digest
        return {}
    with suppress(ConfigError):  # reported where the component is made
        registry.load_users(name, base)
    file = registry.code_file(name, base)
    if file is None or not file.is_file():
        return {}
    where = name.rpartition(":")[0]
    module = "" if where.endswith(".py") else where
    imported_files = {_key(path, base): path for path in imported_by(file, module, name_in(name)) if path != file}
    return {name: file, **imported_files}


def _key(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base.resolve())).as_posix()


def imported_by(file: Path, module: str = "", of: str = "") -> list[Path]:
    """Return a file of code and the files of the user's modules that it imports, directly or indirectly.

    Args:
        file: The file.
        module: Name of the file's module; "" if the file is not in a package.
        of: Function or class of the file whose imports are followed; "": all imports.
    """
    files: dict[Path, None] = {}
    waiting, first = [(file.resolve(), module)], file.resolve()
    while waiting:
        path, name = waiting.pop()
        if path in files or not _is_own(path):
            continue
        files[path] = None
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for imported_name in _imports(path, of if path == first else "", *_stamp(path)) if path.suffix == ".py" else ():
            if full_name := _absolute_name(imported_name, package):
                waiting += _find_modules(full_name, path.parent)
    return sorted(files)


def _is_own(path: Path) -> bool:
    return not registry.is_installed(str(path)) and not path.is_relative_to(LIBRARY)


@cache
def _imports(path: Path, of: str, *stamp: int) -> tuple[str, ...]:
    """Return the possible module names in a file's imports, relative ones with their dots; () if it is not code."""
    try:
        tree = ast.parse(path.read_bytes())
        nodes = [*definition_of(tree, of).statements, *imports_for_effect(tree)] if of else [tree]
    except (OSError, SyntaxError, ValueError):
        return ()
    names: dict[str, None] = {}
    for node in (inner for statement in nodes for inner in ast.walk(statement)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            joint = "" if start.endswith(".") else "."
            names |= dict.fromkeys([start, *(f"{start}{joint}{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function_name = ast.unparse(node.func).rpartition(".")[2]
            if function_name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names[node.args[0].value] = None
    return tuple(names)


def _absolute_name(imported_name: str, package: str) -> str:
    """Return the full name of a module imported in a package; "" if it cannot be imported."""
    try:
        return importlib.util.resolve_name(imported_name, package)
    except ImportError:
        return ""


def _find_modules(module: str, importing_folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the existing files of a module and of the packages around it, with their module names."""
    name = ""
    places: list[str] = []
    for step in module.split("."):
        name = f"{name}.{step}" if name else step
        try:
            spec = _find_top_module(step, importing_folder) if name == step else PathFinder.find_spec(name, places)
        except KeyError:  # a nested package without __init__.py: Python looks up parents that are not imported
            places = [str(folder) for place in places if (folder := Path(place) / step).is_dir()]
            continue
        if spec is None:
            return
        places = list(spec.submodule_search_locations or ())
        if spec.has_location and spec.origin:
            path = Path(spec.origin).resolve()
            if not _is_own(path):
                return
            yield path, name


def module_files(name: str) -> set[Path]:
    """Return the files of a user's module, given its full name, and of its imports; none for installed modules."""
    importing_folder = Path.cwd()  # searched if Python does not find the module
    return {path for file, module in _find_modules(name, importing_folder) for path in imported_by(file, module)}


def _find_top_module(name: str, importing_folder: Path) -> ModuleSpec | None:
    """Return the spec of a top-level module: from Python's path, or from the folder of the module that imports it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    return spec or PathFinder.find_spec(name, [str(importing_folder)])


# -------------------- The identity of a run, and the place of errors in the user's code


def identity(experiment: Experiment, seed: int, method: str, base: Path) -> dict[str, Any]:
    """Return the identity of a run: its method, seed, options, the user's code and data.

    The name of code that is passed from Python already identifies the code, because it contains a digest.

    Raises:
        DataError: If a file cannot be read.
    """
    return {
        "method": method,
        "seed": seed,
        "config": experiment.model_dump(mode="json"),
        **file_digests(experiment, base),
    }


def file_digests(experiment: Experiment, base: Path) -> dict[str, dict[str, str] | None]:
    """Return the digests of the user's ``code`` and ``data`` in the experiment; data is None without data files.

    The digest of code does not depend on comments or layout (see `fedreach._util.code`).

    Raises:
        DataError: If a file cannot be read.
    """
    code, data = users_code(experiment, base), data_files(experiment, base, _parts(experiment))
    return {
        "code": {name: digest(path, name) for name, path in code.items()},
        "data": {name: digest(path) for name, path in data.items()} or None,
    }


def users_code(experiment: Experiment, base: Path) -> dict[str, Path]:
    """Return the files of the user's code by their names in the experiment, or, for imported files, by their paths."""
    files: dict[str, Path] = {}
    for choice in _parts(experiment):
        if ":" in (name := registry.code_name(choice.name)):
            files |= code_files(name, base)
    return files


def _parts(experiment: Experiment) -> list[Choice]:
    """Return all components that an experiment names, nested ones included."""
    choices = [choice for kind in registry.COMPONENT_TYPES if (choice := experiment.choice(kind)) is not None]
    functions = experiment.model.output, experiment.local.schedule
    choices += [Choice(name=name) for name in functions if isinstance(name, str) and ":" in name]
    return [choice for outer in [*choices, *experiment.evaluation.metrics] for choice in with_nested(outer)]


@contextmanager
def locate_user_errors(experiment: Experiment, base: Path) -> Iterator[None]:
    """Add the line of the user's code to an exception that this code raised.

    FedReach also adds the line to errors caused by such an exception, such as the error of a failing client.
    KeyboardInterrupt does not change, because Ctrl-C may have caused it.

    Raises:
        ComponentError: If the user's code raised an exception, which becomes the cause of this error.
    """
    try:
        yield
    except FedReachError as error:
        place = None if isinstance(error, ComponentError) else _place(error.__cause__, experiment, base)
        if place is not None:
            error.args = (f"{str(error).rstrip('.')}. The error occurred in {place}.", *error.args[1:])
        raise
    except (Exception, SystemExit) as error:
        # Python turns a StopIteration that leaves a generator into a RuntimeError with that cause.
        for cause in (error, error.__cause__):
            if (place := _place(cause, experiment, base)) is not None:
                text = f": {cause}" if f"{cause}" else ""
                raise ComponentError(f"{place}: {type(cause).__name__}{text}.") from error
        raise


def _place(error: BaseException | None, experiment: Experiment, base: Path) -> str | None:
    """Return where in the user's code an error came from; None if it came from elsewhere."""
    if error is None or isinstance(error, FedReachError):
        return None
    files = {path.resolve() for path in users_code(experiment, base).values()}
    packages = {path.parent for path in files if path.name == "__init__.py"}  # as of "sklearn.metrics:log_loss"
    places = [
        f"{Path(file).name}, line {line}, in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_users(frame, file := frame.f_code.co_filename)
        or (path := Path(file).resolve()) in files
        or packages & {*path.parents}
    ]
    return places[-1] if places else None


def _is_users(frame: FrameType, file: str) -> bool:
    """Return whether code is the user's: a file, a script or interactive input, not a library."""
    module = frame.f_globals.get("__name__") or ""
    if module.partition(".")[0] == "fedreach":
        return False
    return module == "__main__" if file.startswith("<") else not registry.is_installed(file)

"""Names and digests of objects that are passed from Python."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import io
import linecache
import os
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import torch
from torch import nn

from fedreach._util import registry
from fedreach._util.code import AT_RUN_TIME, READS_ITSELF, digest_of_code
from fedreach._util.errors import ConfigError
from fedreach._util.registry import Instance
from fedreach.engines.models.state import ModuleInstance, TensorHook, copy_module, redraw, register_hooks, tensor_hooks
from fedreach.experiment.components import imported_by, module_files

# -------------------- The meaning of a live object, as a digest
# A function of a script or notebook does not have its own file. Its instructions, defaults and closure identify it,
# with the current functions, classes and values that it refers to. So lines added elsewhere, comments and docstrings
# do not change the digest, nor does the order in which the cells of a notebook were run.

TRACKER_ID = re.compile("[0-9a-f]{32}")  # cloudpickle's number of a class, which differs between processes
IGNORED_ATTRIBUTES = ("__doc__", "__firstlineno__")  # attributes of a class that do not change its meaning


def digest_meaning(thing: Any) -> str:
    """Return a digest of what an object computes.

    The digest includes the files of the user's modules that the object refers to, and of their imports.

    Raises:
        Exception: If pickling the object raises this exception.

    Example:
        >>> def twice(x): return 2 * x
        >>> def thrice(x): return 3 * x
        >>> digest_meaning(twice) == digest_meaning(thrice)
        False
    """
    content = io.BytesIO()
    pickler = _MeaningPickler(content)
    pickler.dump(thing)
    digest = hashlib.sha256(content.getvalue())
    for path in sorted(pickler.own_modules(), key=lambda path: path.as_posix()):
        digest.update(path.name.encode() + digest_of_code(path).encode())
    for text in pickler.whole_files():
        digest.update(text)
    return digest.hexdigest()[: registry.SHORT]


def tensor_reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor as an array, because torch's pickles contain memory addresses of this process."""
    return _tensor, (tensor.detach().cpu().numpy(),)


def parameter_reduced(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Return a parameter as an array with the hooks on its gradient, which torch's pickles drop."""
    hooks = tensor_hooks(parameter)
    return _parameter, (parameter.detach().cpu().numpy(), parameter.requires_grad, *([hooks] if hooks else []))


def missing_reduced(missing: Any) -> str:
    """Return the name of the value that marks a missing default of a dataclass field."""
    return "MISSING"


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def _parameter(array: Any, requires_grad: bool, hooks: Sequence[TensorHook] = ()) -> nn.Parameter:
    parameter = nn.Parameter(torch.from_numpy(array.copy()), requires_grad)
    register_hooks(parameter, hooks)
    return parameter


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not typed
    """A cloudpickle pickler that writes tensors as arrays."""

    dispatch_table: ClassVar = ChainMap(
        {torch.Tensor: tensor_reduced, nn.Parameter: parameter_reduced, type(MISSING): missing_reduced},
        cloudpickle.Pickler.dispatch_table,
    )


class _MeaningPickler(Pickler):
    """A pickler whose output is digested and never read: code as instructions, texts as numbers.

    Texts are numbers because a pickle writes equal texts differently if they are the same object.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.words: set[str] = set()
        self.imports: set[str] = set()
        self.files: set[str] = set()  # files that count as a whole

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is bytes:
            return _number(b"bytes " + obj)
        if type(obj) is not str:
            return None
        if TRACKER_ID.fullmatch(obj) and obj in cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.values():
            return 0
        self.words.add(obj)
        return _number(obj.encode("utf-8", "surrogatepass"))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return str, ("".join(self._instructions(obj)),)
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) < 6:  # pickled by its name
            return reduced
        make, arguments, (state, slots), *remainder = reduced
        if isinstance(obj, FunctionType):  # without its file and docstring
            arguments = arguments[0], {}, *arguments[2:]
            slots = {key: value for key, value in slots.items() if key not in IGNORED_ATTRIBUTES}
        else:
            state = {key: value for key, value in state.items() if key not in IGNORED_ATTRIBUTES}
        return make, arguments, (state, slots), *remainder

    def _instructions(self, code: CodeType) -> Iterator[str]:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        yield f"{code.co_name} {counts} {code.co_varnames} {code.co_freevars} {code.co_cellvars} "
        yield code.co_exceptiontable.hex()
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        ignored = {i for i, s in enumerate(steps) if s.opname == "STORE_NAME" and s.argval in IGNORED_ATTRIBUTES}
        module = ""
        for i, step in enumerate(steps):
            if not ignored & {i, i + 1}:
                yield f"\n{step.opname} {''.join(self._argument(step.argval))}"
            self._note(code, step, module)
            module = step.argval if step.opname == "IMPORT_NAME" else module

    def _argument(self, value: Any) -> Iterator[str]:
        if isinstance(value, CodeType):
            yield from self._instructions(value)
        elif isinstance(value, frozenset):
            yield f"{{{', '.join(sorted(''.join(self._argument(element)) for element in value))}}}"
        else:
            yield repr(value)

    def _note(self, code: CodeType, step: dis.Instruction, module: str) -> None:
        """Record an instruction's import, or that it makes the whole file count."""
        name = step.argval if isinstance(step.argval, str) else ""
        if step.opname == "IMPORT_NAME":
            self.imports.add(name)
        elif step.opname == "IMPORT_FROM":
            self.imports.add(f"{module}.{name}")
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in AT_RUN_TIME:
            self.files.add(code.co_filename)
        elif step.opname.startswith("LOAD_") and name == "import_module":
            self.imports |= {constant for constant in code.co_consts if isinstance(constant, str)}
        if step.opname != "LOAD_CONST" and name and READS_ITSELF.fullmatch(name.encode()):
            self.files.add(code.co_filename)

    def own_modules(self) -> set[Path]:
        """Return the files of the user's modules that the object refers to or imports, directly or indirectly."""
        paths: set[Path] = set()
        for name in self.words & sys.modules.keys() - {"__main__"}:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and name.partition(".")[0] != "fedreach" and not registry.is_installed(file):
                paths |= {*imported_by(Path(file), name)}
        for name in self.imports:
            paths |= module_files(name)
        for file in self.files:
            if Path(file).is_file():
                paths |= {*imported_by(Path(file))}
        return paths

    def whole_files(self) -> list[bytes]:
        """Return the texts of notebook cells that the digest includes completely; `own_modules` returns files."""
        return sorted("".join(linecache.getlines(file)).encode() for file in self.files if not Path(file).is_file())


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:16], "big")


# -------------------- Python objects become names with options, as in an experiment file
# Built-in components have short names; functions and classes of modules are named ``module:NAME``. Objects without a
# name, such as a lambda or a class of a notebook, are stored by their meaning (``parts/NAME-DIGEST.pkl``). So other
# processes, and the same program in a later run, find the same object.


@dataclass(eq=False)
class PickleStore:
    """A store that names objects without names and later writes them to disk."""

    folder: Path
    base: Path | None = None  # folder that names are relative to; None: the current folder
    waiting: dict[Path, bytes] = field(default_factory=dict)

    def name_of(self, thing: Any, name: str) -> str:
        """Return a name with which other processes find an object.

        Raises:
            ConfigError: If the object cannot be passed to another process.
        """
        content = to_pickle(thing, name)
        with _by_value(thing):
            digest = digest_meaning(thing)
        word = re.sub(r"\W+", "", name) or "thing"
        path = (self.folder / f"{word}-{digest}.pkl").resolve()
        self.waiting[path] = content
        registry.LOADED_OBJECTS[path] = thing
        return f"{Path(os.path.relpath(path, self.base)).as_posix()}:{word}"

    def write(self) -> None:
        """Write the objects that are not stored yet."""
        for path, content in self.waiting.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                new = path.with_suffix(f".{os.getpid()}")
                new.write_bytes(content)
                new.replace(path)
        self.waiting.clear()


def to_config(kind: str, value: Any, shelf: PickleStore) -> Any:
    """Return a component in the form of an experiment file: a name, or a table with a name.

    Args:
        kind: Component type, a key of `fedreach._util.registry.COMPONENT_TYPES`.
        value: Name, table with a name, class, function or component. The check of the experiment rejects other values.
        shelf: Store of objects without names.

    Example:
        >>> from fedreach.federation.selection.losses import PowerOfChoice
        >>> to_config("selection", PowerOfChoice(candidates=7), PickleStore(Path("parts")))
        {'name': 'power_of_choice', 'candidates': 7}
    """
    if isinstance(value, Mapping):
        if isinstance(module := value.get("name"), nn.Module):
            value = {**value, "name": _module_name(module, value.get("keep_weights") is True, shelf)}
        if kind == "model" and callable(value.get("output")):
            value = {**value, "output": to_function_name(value["output"], shelf)}
        table = {
            str(key): to_toml_value(inner) for key, inner in value.items() if key not in ("name", "inner", "parts")
        }
        if "name" in value:
            named = to_config(kind, value["name"], shelf)
            table = {**(named if isinstance(named, dict) else {"name": named}), **table}
        if "inner" in value:
            table["inner"] = to_config(kind, value["inner"], shelf)
        if isinstance(value.get("parts"), list | tuple):
            table["parts"] = [to_config(kind, part, shelf) for part in value["parts"]]
        return table
    if isinstance(value, type) or _is_function(value):
        return _thing_name(kind, value, shelf)
    if kind == "augmentation" and callable(value) and not hasattr(value, "augment"):  # a transform of torchvision
        return to_function_name(value, shelf)
    if isinstance(value, nn.Module):
        return _module_name(value, False, shelf)
    if value is None or isinstance(value, str | bytes | bool | int | float | Sequence | np.generic):
        return to_toml_value(value)
    if not registry.COMPONENT_TYPES[kind].base and callable(value):  # a factory object
        return shelf.name_of(value, type(value).__name__)
    return _part_config(kind, value, shelf)


def _is_function(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def _module_name(module: nn.Module, keep_weights: bool, shelf: PickleStore) -> str:
    """Return the name of a module, which includes its weights only with `keep_weights`."""
    if not keep_weights:
        module = copy_module(module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            redraw(module)
    return shelf.name_of(ModuleInstance(module), type(module).__name__)


def to_function_name(function: Callable[..., Any], shelf: PickleStore) -> str:
    """Return the name of a function that is not a component, such as ``module:NAME``."""
    qualified_name = getattr(function, "__qualname__", "") or type(function).__name__
    if is_importable(function):
        return f"{function.__module__}:{qualified_name}"
    return shelf.name_of(function, qualified_name.rpartition(".")[2].strip("<>"))


def _thing_name(kind: str, thing: Callable[..., Any], shelf: PickleStore) -> str:
    table = registry.table(kind)
    if getattr(thing, "__module__", "").startswith("fedreach."):
        for name in table:
            if table[name] is thing:
                return name
    return to_function_name(thing, shelf)


def _part_config(kind: str, part: Any, shelf: PickleStore) -> Any:
    """Return a component by its class and options if these describe it fully, or else by a stored object."""
    cls = type(part)
    if is_dataclass(part) and "__eq__" in vars(cls) and is_importable(cls):
        values = {option: getattr(part, option.name) for option in fields(part) if option.init}
        options = {option.name: value for option, value in values.items() if not _is_default(value, option)}
        nested = {"inner", *(["parts"] if isinstance(options.get("parts"), list | tuple) else [])}
        if all(_is_plain(value) for key, value in options.items() if key not in nested):
            table = to_config(kind, {"name": cls, **options}, shelf)
            return table if len(table) > 1 else table["name"]
    return shelf.name_of(Instance(part), cls.__name__)


def _is_default(value: Any, option: Any) -> bool:
    default = option.default if option.default_factory is MISSING else option.default_factory()
    return type(value) is type(default) and bool(value == default)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return isinstance(value, bool | int | float | str | np.bool_ | np.integer | np.floating)


def to_toml_value(value: Any) -> Any:
    """Convert a value to types of TOML: tuples and arrays to lists, NumPy numbers to Python numbers, paths to text."""
    if isinstance(value, Mapping):
        return {str(key): to_toml_value(inner) for key, inner in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [to_toml_value(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def is_importable(thing: Any) -> bool:
    """Return whether a new process can import a function or class by its module and name."""
    name, module = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", None) or ""
    loaded = sys.modules.get(module)
    if module == "__main__" or loaded is None or getattr(loaded, name, None) is not thing:
        return False
    return _is_findable(module, loaded)


def _is_findable(module: str, loaded: ModuleType) -> bool:
    places, full_name = None, ""
    for step in module.split("."):
        full_name = f"{full_name}.{step}".lstrip(".")
        spec = PathFinder.find_spec(full_name, places)
        if spec is None:
            return False
        places = spec.submodule_search_locations
    return spec is not None and spec.origin == getattr(loaded, "__file__", None)


def to_pickle(thing: Any, name: str) -> bytes:
    """Return an object as bytes for another process; the same program always returns the same bytes.

    Raises:
        ConfigError: If the object contains something that cannot be passed to another process.
    """
    content = io.BytesIO()
    try:
        with _by_value(thing):
            Pickler(content, protocol=5).dump(thing)
    except Exception as error:  # pickle raises whatever the object's methods raise
        raise ConfigError(
            f"{name} cannot be sent to other processes: {type(error).__name__}: {error}. Define it in a separate "
            "module, without open files, generators or locks."
        ) from error
    return content.getvalue()


@contextmanager
def _by_value(thing: Any) -> Iterator[None]:
    """Pickle an object by value if a fresh process would not find its module."""
    modules = list(_local_modules(thing))
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _local_modules(thing: Any) -> Iterator[ModuleType]:
    """Yield an object's modules that a fresh process would not find, such as those of a test or a ``FILE.py``."""
    inner = thing.part if isinstance(thing, Instance) else thing.module if isinstance(thing, ModuleInstance) else thing
    kinds = {getattr(inner, "__module__", None), type(inner).__module__}
    if isinstance(inner, nn.Module):
        kinds |= {type(layer).__module__ for layer in inner.modules()}
    for name in sorted({str(kind) for kind in kinds} - {"None", "__main__", "builtins"}):
        loaded = sys.modules.get(name)
        if loaded is not None and hasattr(loaded, "__file__") and not _is_findable(name, loaded):
            yield loaded

"""The component types, and the lookup of components by name.

A name refers to a built-in component, to a component of an installed package, or to a custom component,
``FILE.py:NAME``. Custom components without an importable name, such as functions of a notebook, have names like
``DIGEST.pkl:NAME``. `fedreach.experiment.naming` writes these files. Loading a ``.py`` or ``.pkl`` file runs code: load
only files that you trust.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pickle
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedreach._util.errors import RELATIVE, ConfigError, FedReachError, nearest


@dataclass(frozen=True)
class ComponentType:
    """A component type.

    Attributes refer to objects as ``"module:NAME"``. FedReach imports an object when it is first used.
    """

    table: str  # dictionary of the built-in components
    meaning: str = ""  # one sentence for `fedreach list` and the documentation
    base: str = ""  # base class of its components; "" for none
    handed: tuple[str, ...] = ()  # positional arguments that FedReach passes to functions; their names are free
    given: tuple[str, ...] = ()  # keyword arguments that FedReach passes
    path: tuple[str, ...] | None = None  # tables that contain its key in an experiment file; None: not in the file
    default: str | None = None  # default component in [method]
    checked: bool = False  # `fedreach.testing.checks` has a module of this name
    users_own: bool = True  # custom components "FILE.py:NAME" are allowed

    @property
    def function(self) -> str:
        """Wrapper class that turns a function into a component; "" if functions need no wrapper or are rejected."""
        name = self.base.rpartition(":")[2]
        return f"{self.table.partition(':')[0]}:Function{name}" if self.base and self.handed else ""


METHOD = ("method",)


def _part(table: str, meaning: str, base: str, default: str, handed: tuple[str, ...] = ()) -> ComponentType:
    """Return a component type of [method] in `fedreach.federation`."""
    base_class = f"fedreach.federation.base:{base}"
    return ComponentType(
        f"fedreach.federation.{table}", meaning, base_class, handed, path=METHOD, default=default, checked=True
    )


COMPONENT_TYPES: Mapping[str, ComponentType] = {
    "data": ComponentType(
        "fedreach.data.sets:LOADERS",
        "The data set: built-in, or your own data.",
        given=("place", "source"),
        path=(),
    ),
    "partition": ComponentType(
        "fedreach.data.partition:PARTITIONS",
        "How examples are divided among the clients.",
        handed=("labels", "num_clients", "rng"),
        given=("owners",),
        path=(),
    ),
    "noise": ComponentType(
        "fedreach.data.noise:NOISES",
        "Which training labels are wrong. Held-out and test labels stay correct.",
        handed=("labels", "rng"),
        given=("kind", "num_classes", "partition"),
        path=(),
        users_own=False,
    ),
    "shift": ComponentType(
        "fedreach.data.shifts:SHIFTS",
        "How the data of unseen clients differ from the data of participants, apart from the labels.",
        "fedreach.data.shifts:Shift",
        path=(),
    ),
    "participation": ComponentType(
        "fedreach.federation.participation:PARTICIPATIONS",
        "Which participants are available in a round, and which replies are lost.",
        "fedreach.federation.participation:Participation",
        path=("population",),
        checked=True,
    ),
    "attack": ComponentType(
        "fedreach.federation.attacks:ATTACKS",
        "What malicious participants send.",
        "fedreach.federation.attacks:Attack",
        path=(),
        checked=True,
    ),
    "model": ComponentType(
        "fedreach.engines.models.networks:MODELS",
        "The model that the clients train.",
        given=("sample_shape", "num_classes"),
        path=(),
    ),
    "augmentation": ComponentType(
        "fedreach.federation.augmentations:AUGMENTATIONS",
        "Random changes to the inputs of the clients' training batches (engine `sequential` only).",
        "fedreach.federation.augmentations:Augmentation",
        handed=("inputs",),
        path=(),
    ),
    "selection": _part(
        "selection:SELECTIONS", "Which clients train in a round.", "Selection", "uniform", ("view", "k", "rng")
    ),
    "weighting": _part(
        "weighting:WEIGHTINGS", "The weight of each client's update.", "Weighting", "by_examples", ("reports",)
    ),
    "solver": _part("solvers:SOLVERS", "How a client trains.", "LocalSolver", "fedavg"),
    "server": _part("server:SERVERS", "How the server updates the global model.", "ServerOptimizer", "average"),
    "aggregation": _part("aggregation:AGGREGATIONS", "How the server combines the updates.", "Aggregator", "mean"),
    "loss": _part("losses:LOSSES", "The loss that clients minimize.", "Loss", "cross_entropy", ("outputs", "targets")),
    "adaptation": _part(
        "adaptation:ADAPTATIONS", "How an unseen client adapts the model's predictions.", "Adaptation", "none"
    ),
    "label_statistics": _part(
        "labels:LABEL_STATISTICS", "How clients report their label counts.", "LabelStatistics", "exact"
    ),
    "allocation": ComponentType(
        "fedreach.wireless.rules:RULES",
        "The bandwidth and CPU frequency of each client in a round.",
        "fedreach.wireless.rules:AllocationRule",
        path=METHOD,
        checked=True,
    ),
    "measurement": ComponentType(
        "fedreach.federation.measurements:MEASUREMENTS",
        "A number that a client computes from its examples and reports.",
        "fedreach.federation.base:Measurement",
        checked=True,
    ),
    "metric": ComponentType(
        "fedreach.evaluation.metrics:METRICS",
        "How predictions are scored.",
        "fedreach.evaluation.metrics:Metric",
        handed=("y_true", "scores"),
        checked=True,
    ),
    "radio": ComponentType(
        "fedreach.wireless.radio:RADIOS",
        "Channels, devices and cost weights, which determine the seconds and joules of a round.",
        "fedreach.wireless.radio:Radio",
        path=(),
    ),
    "tracker": ComponentType(
        "fedreach.runs.trackers:TRACKERS",
        "Where to send the progress of a run, set by `run.trackers` or `--track`. It changes no result.",
        "fedreach.runs.callbacks:Callback",
    ),
    "engine": ComponentType("fedreach.engines:ENGINES", "The implementation of local training."),
    "theorem": ComponentType(
        "fedreach.federation.bounds:THEOREMS",
        "Theorems of the five papers, as Python functions; see reference/python/theory in the documentation.",
        users_own=False,
    ),
}
"""Component types in the order of `fedreach list`."""

VERIFIED = tuple(kind for kind, row in COMPONENT_TYPES.items() if row.checked)
"""Component types that `fedreach verify` can check."""


@cache
def import_object(where: str) -> Any:
    """Import and return the object ``"module:NAME"``."""
    module, _, name = where.partition(":")
    return vars(importlib.import_module(module))[name]


ENTRY_POINTS = "fedreach.components"
"""Entry point group for components of installed packages, such as ``selection.NAME = "package.module:CLASS"``."""


def table(kind: str) -> Mapping[str, Any]:
    """Return the built-in and installed components of a type by name."""
    built_in: Mapping[str, Any] = import_object(COMPONENT_TYPES[kind].table)
    installed = installed_components().get(kind)
    return {**{name: entry.load() for name, entry in installed.items()}, **built_in} if installed else built_in


@cache
def installed_components() -> dict[str, dict[str, importlib.metadata.EntryPoint]]:
    """Return the components of installed packages, by type and name.

    Raises:
        ConfigError: If an entry point is not named ``TYPE.NAME``, or has the name of a built-in component.
    """
    components: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        kind, _, name = entry.name.partition(".")
        if kind not in COMPONENT_TYPES or not name:
            raise ConfigError(
                f"Entry points of {ENTRY_POINTS!r} must be named TYPE.NAME; got {entry.name!r}."
                f"{nearest(kind, COMPONENT_TYPES)}"
            )
        if name in import_object(COMPONENT_TYPES[kind].table):
            raise ConfigError(f"The entry point {entry.name!r} must not have a built-in component's name. Rename it.")
        components.setdefault(kind, {})[name] = entry
    return components


def code_name(name: str) -> str:
    """Return ``module:NAME`` for the name of an installed component; return any other name unchanged."""
    entries = [components[name] for components in installed_components().values() if name in components]
    return entries[0].value if entries else name


def paragraph(thing: Any, heading: str) -> str:
    """Return a docstring's paragraph with this heading as one line; "" if the docstring has no such paragraph.

    Args:
        thing: Object with a docstring.
        heading: Regular expression of the heading, without the colon.
    """
    text = inspect.getdoc(thing) or ""
    match = re.search(rf"^{heading}:\s*(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def find(kind: str, name: str, base: Path) -> Callable[..., Any]:
    """Return the component with this name.

    Args:
        kind: Component type, a key of `COMPONENT_TYPES`.
        name: Name of a built-in component, ``FILE.py:NAME`` with a path relative to `base`, or ``module:NAME``.
        base: Folder of the experiment file.

    Raises:
        ConfigError: If the name is unknown, or the object is not callable.
    """
    row = COMPONENT_TYPES[kind]
    if ":" in name and row.users_own:
        loaded = load_users(name, base)
        if not callable(loaded):
            raise ConfigError(f"{name!r} must be a class or a function; got {type(loaded).__name__}.")
        result: Callable[..., Any] = loaded
        return result
    built_in = table(kind)
    if name not in built_in:
        hint = nearest(name, built_in) + (" Name a custom component as 'FILE.py:NAME'." if row.users_own else "")
        raise ConfigError(f"unknown {kind} {name!r}.{hint}")
    thing: Callable[..., Any] = built_in[name]
    return thing


def wrapper(kind: str, target: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the wrapper class that turns this function into a component; None if the function needs no wrapper."""
    row = COMPONENT_TYPES[kind]
    is_part = inspect.isclass(target) or isinstance(target, Instance)
    return import_object(row.function) if row.function and not is_part else None


def supplied_arguments(kind: str, name: str, target: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that FedReach passes to a callable; all other arguments are options.

    Raises:
        ConfigError: If the callable accepts too few arguments, or Python cannot read its signature.
    """
    row = COMPONENT_TYPES[kind]
    handed = row.handed if not (inspect.isclass(target) or isinstance(target, Instance)) else ()
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError as error:  # some callables written in C
        raise ConfigError(
            f"{name!r} must have a readable signature; got: {error}. Wrap it in a Python function."
        ) from error
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return row.given
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(handed):
        raise ConfigError(f"{name!r} must take the arguments ({', '.join(handed)}); got ({', '.join(positional)}).")
    return (*positional[: len(handed)], *row.given)


FILES = (".py", ".pkl")  # suffixes of files with custom components
SHORT = 12  # hex digits of the digest in the names of ``.pkl`` files and data folders
BY_CONTENT = re.compile(rf"[^/]*-[0-9a-f]{{{SHORT}}}(/own\.json|\.pkl:.*)$")
"""Names of data and components that contain a digest of the content, so that the folder is irrelevant."""
LOADED_OBJECTS: dict[Path, Any] = {}
"""Objects that this process has stored in ``.pkl`` files, by path. FedReach does not load them from disk."""


@dataclass(frozen=True)
class Instance:
    """A callable that returns an existing component, used in place of the component's class."""

    part: Any

    def __call__(self) -> Any:
        return self.part


@cache
def is_installed(place: str) -> bool:
    """Return whether a file or folder belongs to Python or to an installed package."""
    paths = sysconfig.get_paths()
    roots = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    path = Path(place).resolve()
    if {".zip", "site-packages", "dist-packages"} & {path.suffix, *path.parts}:  # also the user's and system's packages
        return True
    return any(path.is_relative_to(root) for root in roots)


def code_file(name: str, base: Path) -> Path | None:
    """Return the file that ``FILE.py:NAME`` or ``module:NAME`` refers to; None for other names and missing modules."""
    where = name.rpartition(":")[0]
    if where.endswith(FILES):
        return (base / where).resolve()
    if where:
        _require_trust(name, base)  # Python imports the packages above a module to find it
    try:
        spec = importlib.util.find_spec(where) if where else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def base_of(name: str, *folders: Path) -> Path:
    """Return the first folder that contains the file of ``FILE.py:NAME``; the first folder if none contains it.

    Example:
        >>> base_of("uniform", Path("here"), Path("there"))
        PosixPath('here')
    """
    where = name.rpartition(":")[0]
    holding = (folder for folder in folders if where.endswith(FILES) and (folder / where).is_file())
    return next(holding, folders[0])


_LOADED_NAMES: set[tuple[str, bytes, str]] = set()  # code that this process has loaded: path, digest, NAME
_UNTRUSTED: ContextVar[str] = ContextVar("untrusted", default="")  # file or folder whose code must not run; "": none


UNTRUSTED_VARIABLE = "FEDREACH_UNTRUSTED"
"""Environment variable with such a file or folder, for all threads and for worker processes."""


@contextmanager
def code_of(place: Path | str, *, trust_code: bool, workers: bool = False) -> Iterator[None]:
    """Reject code that a stored file or folder names, unless the user trusts it.

    A run folder refers to code by name. A folder from another person could therefore refer to any function that Python
    can import. Code that this process has already stored or loaded is always allowed.

    Args:
        place: File or folder.
        trust_code: Allow its code.
        workers: Also reject the code in other threads, and in processes that start in the meantime.
    """
    untrusted = "" if trust_code else str(place)
    token, before = _UNTRUSTED.set(untrusted), os.environ.get(UNTRUSTED_VARIABLE)
    if workers and untrusted:
        os.environ[UNTRUSTED_VARIABLE] = untrusted
    try:
        yield
    finally:
        _UNTRUSTED.reset(token)
        if workers and untrusted:
            os.environ.pop(UNTRUSTED_VARIABLE)
            os.environ.update({} if before is None else {UNTRUSTED_VARIABLE: before})


def _require_trust(name: str, base: Path) -> None:
    untrusted = _UNTRUSTED.get() or os.environ.get(UNTRUSTED_VARIABLE, "")
    if untrusted and _loaded_name(name, base) not in _LOADED_NAMES:
        raise ConfigError(
            f"{untrusted} names the code {name!r}, which would run on this machine. If you trust this code, add "
            "--trust-code (in Python, trust_code=True)."
        )


def _loaded_name(name: str, base: Path) -> tuple[str, bytes, str]:
    where, _, attribute = name.rpartition(":")
    path = (base / where).resolve()
    is_file = where.endswith(FILES) and path.is_file()
    digest = hashlib.sha256(path.read_bytes()).digest() if is_file else b""
    return str(path) if is_file else where, digest, attribute


NAMES_OF_DATA = ("client", "label", "target", "group", "time", "columns", "participants", "exclude_clients")
"""Keys whose values are names of columns and clients, which may contain a colon."""


def require_trust(config: Any, base: Path) -> None:
    """Raise ConfigError if a table of options names code that is not trusted (see `code_of`).

    Each text with a colon counts, because Python can import modules of any name.
    """
    if isinstance(config, Mapping):
        config = [value for key, value in config.items() if key not in NAMES_OF_DATA]
    if isinstance(config, list | tuple):
        for value in config:
            require_trust(value, base)
    elif isinstance(config, str) and ":" in config:
        _require_trust(config, base)


def load_users(name: str, base: Path) -> Any:
    """Import and return the object ``FILE.py:NAME`` or ``module:NAME``.

    Raises:
        ConfigError: If the file is missing, the import fails, or the code is not trusted (see `code_of`).
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ConfigError(f"A component's name must be 'FILE.py:NAME' or 'module:NAME'; got {name!r}.")
    path = (base / where).resolve()
    if path in LOADED_OBJECTS:
        return LOADED_OBJECTS[path]
    _require_trust(name, base)
    if where.endswith(FILES) and not path.is_file():
        raise ConfigError(f"{name!r}: file not found: {path}. {RELATIVE}")
    try:
        _LOADED_NAMES.add(_loaded_name(name, base))
        if where.endswith(".pkl"):
            return pickle.loads(path.read_bytes())
        module = _from_file(path, path.read_bytes()) if where.endswith(".py") else importlib.import_module(where)
    except FedReachError as error:
        raise ConfigError(f"{name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name!r} cannot be imported: {type(error).__name__}: {error}.") from error
    if not hasattr(module, attribute):
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        raise ConfigError(f"{name!r}: {path.name} has no {attribute!r}.{nearest(attribute, public)}")
    return getattr(module, attribute)


@cache
def _from_file(path: Path, content: bytes) -> Any:
    module_name = f"fedreach_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    exec(compile(content, path, "exec"), vars(module))  # not with its loader, which may use stale bytecode
    return module

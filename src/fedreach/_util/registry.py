"""The component types and what their names refer to: built-in components, or custom ones as ``FILE.py:NAME``.

Custom components without an importable name, such as a function of a notebook, are called ``DIGEST.pkl:NAME``:
`fedreach.experiment.naming` writes these files. Like a ``.py`` file, a ``.pkl`` file runs code: load only files that
you trust.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pickle
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedreach._util.errors import RELATIVE, ConfigError, FedReachError, nearest


@dataclass(frozen=True)
class Kind:
    """One component type.

    Objects are named as ``"module:NAME"`` and imported on first use.
    """

    table: str  # the built-in components by name
    meaning: str = ""  # a sentence for users
    base: str = ""  # base class of every component; "" if there is none
    handed: tuple[str, ...] = ()  # positional arguments of functions, under any name
    given: tuple[str, ...] = ()  # keyword arguments that FedReach passes
    path: tuple[str, ...] | None = None  # tables above its key in an experiment file; None: not in the file
    default: str | None = None  # default of a component of [method]
    checked: bool = False  # whether `fedreach.testing.checks` has a module of checks for it
    users_own: bool = True  # whether a custom component "FILE.py:NAME" is allowed

    @property
    def function(self) -> str:
        """Wrapper that makes a component of a function; "" if functions need none, or are rejected."""
        name = self.base.rpartition(":")[2]
        return f"{self.table.partition(':')[0]}:Function{name}" if self.base and self.handed else ""


METHOD = ("method",)


def _part(table: str, meaning: str, base: str, default: str, handed: tuple[str, ...] = ()) -> Kind:
    """Return a component type of [method] in `fedreach.federation`."""
    base_class = f"fedreach.federation.base:{base}"
    return Kind(f"fedreach.federation.{table}", meaning, base_class, handed, path=METHOD, default=default, checked=True)


KINDS: Mapping[str, Kind] = {
    "data": Kind(
        "fedreach.data.sets:LOADERS",
        "Data set: one of these, or your own.",
        given=("place", "source"),
        path=(),
    ),
    "partition": Kind(
        "fedreach.data.partition:PARTITIONS",
        "Division of the examples among clients.",
        handed=("labels", "num_clients", "rng"),
        given=("owners",),
        path=(),
    ),
    "noise": Kind(
        "fedreach.data.noise:NOISES",
        "Label noise in training data; held-out and test labels stay correct.",
        handed=("labels", "rng"),
        given=("kind", "num_classes", "partition"),
        path=(),
        users_own=False,
    ),
    "shift": Kind(
        "fedreach.data.shifts:SHIFTS",
        "Shift of the inputs of unseen clients.",
        "fedreach.data.shifts:Shift",
        path=(),
    ),
    "participation": Kind(
        "fedreach.federation.participation:PARTICIPATIONS",
        "Availability of participants, and loss of their replies.",
        "fedreach.federation.participation:Participation",
        path=("population",),
        checked=True,
    ),
    "model": Kind("fedreach.engines.models.networks:MODELS", "Model.", given=("sample_shape", "num_classes"), path=()),
    "augmentation": Kind(
        "fedreach.federation.augmentations:AUGMENTATIONS",
        "Random augmentation of training inputs, with the engine `sequential`.",
        "fedreach.federation.augmentations:Augmentation",
        handed=("inputs",),
        path=(),
    ),
    "selection": _part(
        "selection:SELECTIONS",
        "Selection of the clients that train in a round.",
        "Selection",
        "uniform",
        ("view", "k", "rng"),
    ),
    "weighting": _part(
        "weighting:WEIGHTINGS", "Aggregation weights of client results.", "Weighting", "by_examples", ("reports",)
    ),
    "solver": _part("solvers:SOLVERS", "Local training rule of a client.", "LocalSolver", "fedavg"),
    "server": _part(
        "server:SERVERS",
        "Server update, and training on server data.",
        "ServerOptimizer",
        "average",
    ),
    "aggregation": _part("aggregation:AGGREGATIONS", "Aggregator of client results.", "Aggregator", "mean"),
    "loss": _part("losses:LOSSES", "Training loss of a client.", "Loss", "cross_entropy", ("outputs", "targets")),
    "adaptation": _part(
        "adaptation:ADAPTATIONS",
        "Test-time adaptation of the model to an unseen client.",
        "Adaptation",
        "none",
    ),
    "label_statistics": _part(
        "labels:LABEL_STATISTICS", "Label statistics that the server learns.", "LabelStatistics", "exact"
    ),
    "allocation": Kind(
        "fedreach.wireless.rules:RULES",
        "Allocation of bandwidth and CPU frequencies.",
        "fedreach.wireless.rules:AllocationRule",
        path=METHOD,
        checked=True,
    ),
    "measurement": Kind(
        "fedreach.federation.measurements:MEASUREMENTS",
        "Measurement that a client reports.",
        "fedreach.federation.base:Measurement",
        checked=True,
    ),
    "metric": Kind(
        "fedreach.evaluation.metrics:METRICS",
        "Metric of predictions.",
        "fedreach.evaluation.metrics:Metric",
        handed=("y_true", "scores"),
        checked=True,
    ),
    "radio": Kind(
        "fedreach.wireless.radio:RADIOS",
        "Simulated channels and devices, which determine time and energy.",
        "fedreach.wireless.radio:Radio",
        path=(),
    ),
    "tracker": Kind(
        "fedreach.runs.trackers:TRACKERS",
        "Experiment tracker, for `run.trackers` or `--track`.",
        "fedreach.runs.callbacks:Callback",
    ),
    "engine": Kind("fedreach.engines:ENGINES", "Engine that computes local training."),
}
"""All component types, in the order in which they are listed."""

VERIFIED = tuple(kind for kind, row in KINDS.items() if row.checked)
"""Component types that have checks."""


@cache
def import_object(where: str) -> Any:
    """Import and return the object ``"module:NAME"``."""
    module, _, name = where.partition(":")
    return vars(importlib.import_module(module))[name]


ENTRY_POINTS = "fedreach.components"
"""Group of entry points by which installed packages add components: ``selection.NAME = "package.module:CLASS"``."""


def table(kind: str) -> Mapping[str, Any]:
    """Return the components of a type by name: the built-in ones, and those of installed packages."""
    built_in: Mapping[str, Any] = import_object(KINDS[kind].table)
    installed = installed_components().get(kind)
    return {**{name: entry.load() for name, entry in installed.items()}, **built_in} if installed else built_in


@cache
def installed_components() -> dict[str, dict[str, importlib.metadata.EntryPoint]]:
    """Return the components of installed packages, by type and name.

    Raises:
        ConfigError: If one is not called ``TYPE.NAME``, or has the name of a built-in component.
    """
    components: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        kind, _, name = entry.name.partition(".")
        if kind not in KINDS or not name:
            raise ConfigError(
                f"The entry point {entry.name!r} of {ENTRY_POINTS!r} must be called TYPE.NAME.{nearest(kind, KINDS)}"
            )
        if name in import_object(KINDS[kind].table):
            raise ConfigError(f"The entry point {entry.name!r} has the name of a built-in component. Rename it.")
        components.setdefault(kind, {})[name] = entry
    return components


def code_name(name: str) -> str:
    """Return ``module:NAME`` of a component of an installed package; any other name as it is."""
    entries = [components[name] for components in installed_components().values() if name in components]
    return entries[0].value if entries else name


def paragraph(thing: Any, heading: str) -> str:
    """Return the paragraph of a docstring that begins with a heading, as one line; "" if there is none.

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
        kind: Component type, a key of `KINDS`.
        name: A built-in name, ``FILE.py:NAME`` with a path relative to `base`, or ``module:NAME``.
        base: Folder of the experiment file.

    Raises:
        ConfigError: If the name is unknown, or the object cannot be called.
    """
    row = KINDS[kind]
    if ":" in name and row.users_own:
        loaded = load_users(name, base)
        if not callable(loaded):
            raise ConfigError(f"{name!r} must be a class or a function; got {type(loaded).__name__}.")
        result: Callable[..., Any] = loaded
        return result
    built_in = table(kind)
    if name not in built_in:
        hint = nearest(name, built_in) + (" Your own: 'FILE.py:NAME'." if row.users_own else "")
        raise ConfigError(f"there is no {kind} {name!r}.{hint}")
    thing: Callable[..., Any] = built_in[name]
    return thing


def wrapper(kind: str, target: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the wrapper that makes a component of this function; None if it needs none."""
    row = KINDS[kind]
    is_part = inspect.isclass(target) or isinstance(target, Instance)
    return import_object(row.function) if row.function and not is_part else None


def supplied_arguments(kind: str, name: str, target: Callable[..., Any]) -> tuple[str, ...]:
    """Return the arguments of a callable that FedReach passes itself, and that are therefore not options.

    Raises:
        ConfigError: If the callable takes fewer arguments than it gets, or hides its signature.
    """
    row = KINDS[kind]
    handed = row.handed if not (inspect.isclass(target) or isinstance(target, Instance)) else ()
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError as error:  # some callables written in C
        raise ConfigError(
            f"{name!r} does not tell its arguments: {error}. Wrap it in a function of your own."
        ) from error
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return row.given
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(handed):
        raise ConfigError(
            f"{name!r} must take the arguments ({', '.join(handed)}); it takes ({', '.join(positional)})."
        )
    return (*positional[: len(handed)], *row.given)


FILES = (".py", ".pkl")  # endings of files with custom components
SHORT = 12  # hex digits of the digest in the names of ``.pkl`` files and data folders
BY_CONTENT = re.compile(rf"[^/]*-[0-9a-f]{{{SHORT}}}(/own\.json|\.pkl:.*)$")
"""Names of data and components that are identified by content: their folder does not matter."""
LOADED_OBJECTS: dict[Path, Any] = {}
"""Objects by ``.pkl`` file that this process wrote or is about to write: they are not read again."""


@dataclass(frozen=True)
class Instance:
    """Wraps a component that is already made, for use in place of its class."""

    part: Any

    def __call__(self) -> Any:
        return self.part


@cache
def is_installed(place: str) -> bool:
    """Return whether a file or folder belongs to Python or to an installed package."""
    paths = sysconfig.get_paths()
    roots = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    path = Path(place).resolve()
    by_others = {".zip", "site-packages", "dist-packages"} & {path.suffix, *path.parts}  # packages of users and systems
    return bool(by_others) or any(path.is_relative_to(root) for root in roots)


def code_file(name: str, base: Path) -> Path | None:
    """Return the file of ``FILE.py:NAME`` or ``module:NAME``; None for other names or without a file."""
    where = name.rpartition(":")[0]
    if where.endswith(FILES):
        return (base / where).resolve()
    try:
        spec = importlib.util.find_spec(where) if where else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def base_of(name: str, *folders: Path) -> Path:
    """Return the first folder that holds the file of a name; the first of all if none does.

    Example:
        >>> base_of("uniform", Path("here"), Path("there"))
        PosixPath('here')
    """
    where = name.rpartition(":")[0]
    holding = (folder for folder in folders if where.endswith(FILES) and (folder / where).is_file())
    return next(holding, folders[0])


def load_users(name: str, base: Path) -> Any:
    """Import and return the object ``FILE.py:NAME`` or ``module:NAME``, or raise ConfigError with the reason."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ConfigError(f"{name!r} must be 'FILE.py:NAME' or 'module:NAME'.")
    path = (base / where).resolve()
    if path in LOADED_OBJECTS:
        return LOADED_OBJECTS[path]
    if where.endswith(FILES) and not path.is_file():
        raise ConfigError(f"{name!r}: there is no file {path}. {RELATIVE}")
    try:
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
    exec(compile(content, path, "exec"), vars(module))  # not with its loader, which may use an older cached version
    return module

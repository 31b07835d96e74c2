"""What an experiment file may say: every key, its type, its range and its default.

All mistakes are reported at once, each with file, line, the path of the key, the rule, and the nearest right name.
Options of a named thing (a partition, a policy, ...) are checked against the signature of what the name stands for.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fedreach.errors import ConfigError, nearest
from fedreach.experiments import names

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Section(BaseModel):
    """A table of the file: unknown keys are refused, types are not guessed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Choice(BaseModel):
    """Something by name, with its options: ``"uniform"`` or ``{ name = "power_of_choice", candidates = 20 }``."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class Data(Choice):
    """The data set: a name of `fedreach list data`, or the path of an ``.npz`` file."""

    name: str = "digits"
    folder: str | None = None  # where the files lie; default: FEDREACH_DATA, then the cache
    download: bool = True


class PartitionSection(Choice):
    """Which client holds which sample."""

    name: str = "dirichlet_by_class"
    clients: Positive = 50
    file: str | None = None  # a partition saved by `fedreach partition --save`, instead of drawing one
    empty: Literal["error", "drop", "merge"] = "error"


class PopulationSection(Section):
    """Who takes part, and when."""

    participants: Positive | list[int] | None = None
    exclude_clients: list[int] = []
    exclude_labels: list[int] = []
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    participation: Choice = Choice(name="always")
    seed: Seed | None = None  # of partition, noise and population; default: the seed of the run


class LocalSection(Section):
    """Local SGD, see `fedreach.federation.solvers.LocalSGD`."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    batch_size: Positive = 32
    epochs: Positive = 1
    steps: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    schedule: Literal["constant", "exponential", "cosine"] = "constant"
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0


class EngineSection(Section):
    """How training is computed; the decisions do not depend on it."""

    name: Literal["auto", "sequential", "stacked"] = "auto"
    device: str = "cpu"
    threads: Positive = 1  # of torch in one run; results are reproducible for a fixed number


class EvaluationSection(Section):
    """When the model is evaluated."""

    every: Positive = 5
    local: bool = True  # also the local models of the cohort before aggregation
    patience: Positive | None = None  # stop after so many evaluations without a better id_loss


class RunSection(Section):
    """How a run behaves; none of this changes its numbers, but `on_failure` where a client fails."""

    checkpoint_seconds: Annotated[float, Field(ge=0)] = 2.0
    on_failure: Literal["stop", "drop"] = "stop"


class Method(Section):
    """What is compared: the parts of one federation. What a method leaves out comes from `[method]`."""

    selection: Choice | None = None
    weighting: Choice | None = None
    solver: Choice | None = None
    server: Choice | None = None
    cohort: Positive | None = None
    local: dict[str, Any] = {}


class DefaultMethod(Section):
    """The parts that all methods share unless they say otherwise."""

    selection: Choice = Choice(name="uniform")
    weighting: Choice = Choice(name="by_examples")
    solver: Choice = Choice(name="fedavg")
    server: Choice = Choice(name="average")
    cohort: Positive = 10


class Experiment(Section):
    """A whole experiment file."""

    name: str = "experiment"
    rounds: Positive = 50
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    baseline: str | None = None  # default: the first method
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    data: Data = Data()
    partition: PartitionSection = PartitionSection()
    noise: Choice | None = None
    population: PopulationSection = PopulationSection()
    model: Choice = Choice(name="mlp")
    local: LocalSection = LocalSection()
    engine: EngineSection = EngineSection()
    evaluation: EvaluationSection = EvaluationSection()
    run: RunSection = RunSection()
    method: DefaultMethod = DefaultMethod()
    methods: dict[str, Method] = {}

    def resolved(self, method: str | None = None) -> Experiment:
        """Return the experiment of one method: its parts in `[method]`, and no other methods."""
        if method is None:
            return self.model_copy(update={"methods": {}, "baseline": None})
        if method not in self.methods:
            raise ConfigError(f"There is no method {method!r} in this experiment." + nearest(method, self.methods))
        chosen = self.methods[method]
        parts = {key: value for key, value in chosen if value is not None and key != "local"}
        return self.model_copy(
            update={
                "method": self.method.model_copy(update=parts),
                "local": LocalSection.model_validate({**self.local.model_dump(), **chosen.local}),
                "methods": {},
                "baseline": None,
            }
        )


class Problem(typing.NamedTuple):
    """One mistake in an experiment."""

    path: tuple[str | int, ...]
    message: str


def load(source: Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """Read and check an experiment.

    Args:
        source: A TOML file, or the ``run.json`` of a run folder; None is the embedded default.
        overrides: ``"a.b=c"``, with c written as in TOML; a bare word is taken as a string.

    Raises:
        ConfigError: With all mistakes at once.
    """
    if source is None:
        source = DEFAULT
    text, raw = _read(source)
    base = source.parent
    for override in overrides:
        _override(raw, override)
    experiment, problems = check(raw, base)
    if problems or experiment is None:
        lines = [f"{_where(source, text, p.path)}{'.'.join(map(str, p.path)) or 'file'}: {p.message}" for p in problems]
        count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
        raise ConfigError(f"{count} in {source.name}:\n  " + "\n  ".join(lines))
    return experiment


DEFAULT = Path(__file__).parent / "templates" / "digits.toml"


def check(raw: Mapping[str, Any], base: Path) -> tuple[Experiment | None, list[Problem]]:
    """Return the experiment, or all that is wrong with it."""
    problems: list[Problem] = []
    experiment = None
    try:
        experiment = Experiment.model_validate(raw)
    except pydantic.ValidationError as error:
        problems += [_explained(e) for e in error.errors()]
    for kind, path in _choices(raw):
        value = _at(raw, path)
        choice = {"name": value} if isinstance(value, str) else value
        if isinstance(choice, dict) and isinstance(choice.get("name", ""), str):
            problems += _check_choice(kind, path, choice, base)
    methods = raw.get("methods")
    for name, method in methods.items() if isinstance(methods, dict) else ():
        local = method.get("local") if isinstance(method, dict) else None
        if isinstance(local, dict):
            try:
                LocalSection.model_validate(local)
            except pydantic.ValidationError as error:
                problems += [_explained(e, ("methods", name, "local"), LocalSection) for e in error.errors()]
    if experiment is not None:
        problems += _contradictions(experiment)
    return experiment, problems


def _contradictions(e: Experiment) -> list[Problem]:
    problems = []
    if e.baseline is not None and e.baseline not in e.methods:
        problems.append(
            Problem(("baseline",), f"must name a method; got {e.baseline!r}." + nearest(e.baseline, e.methods))
        )
    if len(set(e.seeds)) < len(e.seeds):
        problems.append(Problem(("seeds",), f"must not repeat a seed; got {e.seeds}."))
    for name in e.methods:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.+=-]*", name):
            problems.append(
                Problem(("methods", name), "a method's name becomes a folder: use letters, digits, _ . + = -.")
            )
    participants = e.population.participants
    limit = participants if isinstance(participants, int) else len(participants) if participants else None
    limit = e.partition.clients if limit is None and e.partition.name != "natural" else limit
    methods: dict[str | None, int | None] = {name: m.cohort for name, m in e.methods.items()} or {None: None}
    for method, cohort in methods.items():
        size = cohort or e.method.cohort
        if limit is not None and size > limit and e.resolved(method).method.selection.name != "full":
            path = ("methods", method, "cohort") if method is not None and cohort else ("method", "cohort")
            problems.append(
                Problem(path, f"must be at most the {limit} participants; got {size}. Lower it or let more take part.")
            )
    return problems


# ------------------------------------------------------------------------------------- options of named things


def _choices(raw: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Return (kind, path) of every named thing that the file sets."""
    places: list[tuple[str, tuple[str, ...]]]
    places = [(kind, (kind,)) for kind in ("data", "partition", "noise", "model")]
    places.append(("participation", ("population", "participation")))
    parts = ("selection", "weighting", "solver", "server")
    places += [(part, ("method", part)) for part in parts]
    methods = raw.get("methods")
    for name in methods if isinstance(methods, dict) else ():
        places += [(part, ("methods", name, part)) for part in parts]
    return [(kind, path) for kind, path in places if _at(raw, path) is not None]


_OWN_KEYS: dict[str, type[Choice]] = {"data": Data, "partition": PartitionSection}


def _check_choice(kind: str, path: tuple[str, ...], choice: Mapping[str, Any], base: Path) -> list[Problem]:
    own = _OWN_KEYS.get(kind, Choice)
    name = choice.get("name", own.model_fields["name"].default)
    if kind == "partition" and choice.get("file") is not None:
        return []
    if kind == "data" and name.endswith(".npz"):
        return []  # its options are checked as it is read
    try:
        target = names.find(kind, name, base)
    except ConfigError as error:
        return [Problem((*path, "name"), str(error))]
    options = {key: value for key, value in choice.items() if key not in own.model_fields}
    model = options_model(target, names.GIVEN[kind])
    if model is None:
        return []
    try:
        model.model_validate(options)
    except pydantic.ValidationError as error:
        known = [*model.model_fields, *(key for key in own.model_fields if key != "name")]
        return [_explained(e, path, known=known, owner=f"{kind} {name!r}") for e in error.errors()]
    if kind in names.PARTS:
        try:
            target(**options)
        except ConfigError as error:
            return [Problem(path, str(error))]
    return []


def options_model(target: Callable[..., Any], given: Sequence[str]) -> type[BaseModel] | None:
    """Return a model of the options that a callable takes; None where it takes anything.

    Args:
        target: A class or function whose annotations say the types.
        given: Arguments that FedReach hands in itself.
    """
    signature = inspect.signature(target)
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return None
    function: Any = vars(target)["__init__"] if inspect.isclass(target) and "__init__" in vars(target) else target
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        hints = {}
    fields: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name in given:
            continue
        hint = hints.get(name, Any)
        if not _is_plain(hint):
            hint = Any
        fields[name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return pydantic.create_model("Options", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _is_plain(hint: Any) -> bool:
    """Say whether a type can stand in a TOML file; others are left to the callable itself."""
    if hint in (int, float, str, bool, type(None)):
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return True
    return origin is not None and all(_is_plain(a) for a in arguments if a is not Ellipsis)


# --------------------------------------------------------------------------------------- reading and explaining


def _read(source: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = source.read_text(encoding="utf-8")
        if source.suffix == ".json":
            stored = json.loads(text)
            return text, stored.get("config", stored)
        return text, tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {source}. `fedreach init` writes a commented one.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {error}.") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{source.name} is not valid {source.suffix[1:].upper() or 'TOML'}: {error}.") from error


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"--set must be of the form a.b=c; got {override!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    table = raw
    for step in path[:-1]:
        inner = table.get(step)
        if isinstance(inner, str):  # selection = "uniform" becomes a table when an option is set
            inner = {"name": inner}
        table[step] = inner if isinstance(inner, dict) else {}
        table = table[step]
    table[path[-1]] = parsed


def _at(raw: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = raw
    for step in path:
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def _explained(
    error: Any,
    prefix: tuple[str | int, ...] = (),
    section: type[BaseModel] = Experiment,
    known: Sequence[str] | None = None,
    owner: str = "",
) -> Problem:
    """Return a pydantic error in our words."""
    loc = tuple(step for step in error["loc"] if not _is_tag(step))
    path = (*prefix, *loc)
    kind, got = error["type"], error["input"]
    if kind == "extra_forbidden":
        options = known if known is not None else _keys_at(section, loc[:-1])
        what = f"{owner} has no such option." if owner else "unknown key."
        return Problem(path, what + (nearest(str(loc[-1]), options) if options else " It has no options."))
    if kind == "missing":
        return Problem(path, f"{owner or 'this table'} needs this option.")
    message = re.sub(r"^Input should be ", "must be ", error["msg"]).replace("must be a valid", "must be a")
    message = re.sub(r"^(List|Dictionary|Tuple) should", r"must", message)
    return Problem(path, f"{message}; got {got!r} ({type(got).__name__}).")


def _is_tag(step: str | int) -> bool:
    """Say whether a step of pydantic's path names a member of a union, such as ``list[int]``, and no key."""
    return isinstance(step, str) and (step in ("int", "float", "str", "bool", "none") or "[" in step)


def _keys_at(section: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    model: Any = section
    for step in path:
        if model is dict:
            model = Method
            continue
        annotation = model.model_fields[step].annotation
        options = [annotation, *typing.get_args(annotation)]
        classes = [a for a in options if inspect.isclass(a) and issubclass(a, BaseModel)]
        model = dict if typing.get_origin(annotation) is dict else classes[0]
    return list(model.model_fields)


def _where(source: Path, text: str, path: Sequence[str | int]) -> str:
    """Return ``"file:line: "`` of a key, or of the closest table above it; nothing for JSON and overrides."""
    if source.suffix == ".json":
        return ""
    steps = [str(step) for step in path]
    table: list[str] = []
    best, found = 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?([^\]]+)\]", line)
        key = re.match(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=", line)
        if header:
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            full = table
        elif key:
            full = table + [part.strip().strip("\"'") for part in key[1].split(".")]
        else:
            continue
        if full == steps[: len(full)] and len(full) > best:
            best, found = len(full), number
    return f"{source.name}:{found}: " if found else ""

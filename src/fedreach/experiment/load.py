"""Reading experiment files."""

import copy
import csv
import json
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from fedreach._util.errors import ConfigError, FedReachError, nearest
from fedreach._util.registry import KINDS
from fedreach.data.splits import share_of
from fedreach.evaluation.statistics import MIN_PILOT
from fedreach.experiment import components
from fedreach.experiment.components import folder_of, relative_to_base
from fedreach.experiment.messages import Path_, Problem, explain_errors, format_problems
from fedreach.experiment.options import check_choice
from fedreach.experiment.schema import (
    PARTS,
    Choice,
    Experiment,
    LocalSection,
    Range,
    Section,
    Setting,
    format_setting,
    format_value,
)
from fedreach.federation.base import name_of
from fedreach.federation.round import server_tunes

# -------------------- From the text of an experiment to raw tables

MOST_NESTED = 50  # depth of tables and lists
UNFIT = re.compile("[\0\ud800-\udfff]")  # invalid in files, pages and terminals


def read(source: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of an experiment file, or of a run.json, and its raw tables.

    Raises:
        ConfigError: If the file cannot be read, or is not valid TOML or JSON.
    """
    what = "TOML" if source.suffix != ".json" else "JSON"
    try:
        text = source.read_text(encoding="utf-8")
        return text, tomllib.loads(text) if what == "TOML" else _config_of(source, json.loads(text))
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {source}. `fedreach init` writes a commented one.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{source} is a folder. Name the TOML file in it.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source} is not a text in UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}. Make it readable.") from error
    except (ValueError, RecursionError) as error:  # a number of 5000 digits raises a ValueError, not a decode error
        raise ConfigError(
            f"{source} is not valid {what}: {_describe_error(error)}. `fedreach init` writes a valid one."
        ) from error


def _config_of(source: Path, stored: Any) -> dict[str, Any]:
    if not isinstance(stored, dict) or not isinstance(stored.get("config", {}), dict):
        raise ConfigError(f"{source} must hold a table of options, as run.json of a run folder does.")
    return dict(stored.get("config", stored))


def toml_value(text: str) -> Any:
    """Return a value written as in TOML; a bare word is a string.

    Raises:
        ConfigError: If the value is nested too deeply, or is a number with too many digits.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{reprlib.repr(text)} is no value: {_describe_error(error)}.") from error
    check_plain(value, "a value")
    return value


def names_in(text: str) -> list[str]:
    """Return names separated by commas; a name that contains a comma must be quoted, as in a CSV file.

    Example:
        >>> names_in('north,"St. Mary, London", 007')
        ['north', 'St. Mary, London', '007']
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]


def check_plain(value: Any, where: str) -> None:
    """Reject nesting deeper than `MOST_NESTED`, integers beyond 64 bits, and invalid characters.

    Raises:
        ConfigError: If the value holds one of these; the message gives the place.

    Example:
        >>> check_plain({"name": "x", "seeds": [0]}, "x.toml")
        >>> check_plain({"name": "a\\0b"}, "x.toml")
        Traceback (most recent call last):
        fedreach.ConfigError: x.toml must not hold the character U+0000; it stands in 'a\\x00b'. Leave it out.
    """
    level = [value]
    for _ in range(MOST_NESTED + 1):
        for part in level:
            if isinstance(part, str) and (unfit := UNFIT.search(part)):
                rule = f"must not hold the character U+{ord(unfit[0]):04X}; it stands in {reprlib.repr(part)}"
                raise ConfigError(f"{where} {rule}. Leave it out.")
            if isinstance(part, int) and part.bit_length() > 63:
                raise ConfigError(f"{where}: a whole number must be of 64 bits, as TOML has them; got {_number(part)}.")
        keys = [key for table in level if isinstance(table, Mapping) for key in table]
        inner = [part for table in level if isinstance(table, Mapping) for part in table.values()]
        level = keys + inner + [part for values in level if isinstance(values, list | tuple) for part in values]
    if level:
        raise ConfigError(f"{where} nests tables and lists more than {MOST_NESTED} deep, as no experiment does.")


def _number(value: int) -> str:
    return f"{value}" if value.bit_length() < 200 else f"one of {value.bit_length()} bits"


def _describe_error(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")


# -------------------- Settings of options

LONGEST = 80  # characters of a setting's folder


class Sweep(Section):
    """The option that a recipe varies, the horizontal axis of a panel.

    A step ``*`` of `key` means all methods, as in ``methods.*.selection.min_examples``. With training, the values of
    an option of methods make one comparison; each value of any other option needs its own.
    """

    key: str
    values: Annotated[list[int | float], Field(min_length=2)]
    label: str  # of the axis, with its unit
    unit: Annotated[float, Field(gt=0)] = 1.0  # the label's unit, in units of the option


def expand_key(key: str, methods: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that a key expands to, given the methods."""
    yield from (key.replace("*", method, 1) for method in methods) if "*" in key else (key,)


def set_option(table: dict[str, Any], key: str, value: Any) -> None:
    """Set an option in nested tables; a component given by name becomes a table with that name."""
    *steps, last = key.split(".")
    for step in steps:
        inner = table.get(step)
        table[step] = {"name": inner} if isinstance(inner, str) else inner if isinstance(inner, dict) else {}
        table = table[step]
    table[last] = value


def with_setting(raw: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Return the tables of an experiment with a setting; `raw` is changed."""
    methods = tuple(raw.get("methods") or ())
    for key, value in setting.items():
        for path in expand_key(key, methods):
            set_option(raw, path, value)
    return raw


def folders(settings: Sequence[Setting], where: Path) -> list[Path]:
    """Return a folder for each setting, named after it.

    Example:
        >>> [path.as_posix() for path in folders([{"partition.alpha": 0.1}, {"partition.alpha": 1.0}], Path("cells"))]
        ['cells/partition.alpha=0.1', 'cells/partition.alpha=1.0']
    """
    names: dict[str, int] = {}
    paths = []
    for setting in settings:
        text = format_setting(setting).replace(" = ", "=").replace(", ", ",")
        name = re.sub(r"[^\w.,=+-]", "_", text, flags=re.ASCII)[:LONGEST]
        names[name] = names.get(name, 0) + 1
        paths.append(where / (name if names[name] == 1 else f"{name}~{names[name]}"))
    return paths


NOT_SWEPT: Mapping[str, str] = {
    "name": "is no option of a run",
    "seeds": "is the same for all settings: each is tried with all seeds",
    "baseline": "is no option of a run",
    "target_accuracy": "changes no run",
    "statistics": "changes no run",
    "engine": "changes no run but by rounding",
    "run": "changes no run",
    "sweep": "cannot be swept itself",
    "tune": "cannot be swept itself",
}
"""Keys that cannot be swept or tuned, with the reason."""

NOT_TUNED: Mapping[str, str] = {
    "data": "says what is learnt",
    "partition": "says who holds what",
    "population": "says who takes part",
    "noise": "says what the labels are",
    "shift": "says what unseen clients hold",
    "server_data": "says what the server holds",
    "budget": "says what a run may spend",
    "radio": "says where clients are",
    "evaluation": "says how models are scored",
    "rounds": "says how long a run is",
    "method.adaptation": "comes after training, and a setting is chosen by the model that was trained",
}
"""Keys that can be swept but not tuned, as they are the same for all methods of a comparison, with the reason."""


def check_settings(
    raw: Mapping[str, Any], e: Experiment, wrong: Callable[[dict[str, Any]], list[Problem]]
) -> list[Problem]:
    """Return the problems of ``[sweep]`` and ``[tune]``, checking each value separately.

    Args:
        raw: Tables of an experiment that is otherwise valid.
        e: The experiment.
        wrong: Function that returns the problems of tables.
    """
    problems = []
    plain = {key: table for key, table in raw.items() if key not in ("sweep", "tune")}
    for section, grid in (("sweep", e.sweep), ("tune", e.tune)):
        for key, values in () if grid is None else grid.values.items():
            if why := explain_refused_key(key, tuned=section == "tune"):
                problems.append(Problem((section, key), f"{why}."))
                continue
            for value in (values.min, values.max) if isinstance(values, Range) else values:
                for problem in wrong(with_setting(copy.deepcopy(plain), {key: value}))[:1]:
                    where, value_text = ".".join(map(str, problem.path)), format_value(value)
                    problems.append(Problem((section, key), f"{value_text} cannot be: {where}: {problem.message}"))
    if e.sweep is not None and e.plan.detect_points is not None:
        rule = "has the number of seeds follow from one comparison, and a [sweep] makes several. Leave out one of them."
        problems.append(Problem(("statistics", "detect_points"), rule))
    if e.tune is not None and not e.methods:
        problems.append(Problem(("tune",), "chooses for each method of a comparison: add [methods.NAME] tables."))
    return problems


def explain_refused_key(key: str, *, tuned: bool) -> str:
    """Return why an option cannot be swept or tuned, or "" if it can."""
    for rules in (NOT_SWEPT, NOT_TUNED if tuned else {}):
        for head, why in rules.items():
            if key == head or key.startswith(f"{head}."):
                return f"{head} {why}" + (
                    ". Show it under [sweep]" if rules is NOT_TUNED and head != "method.adaptation" else ""
                )
    if tuned and re.match(r"methods\.[^.]+\.adaptation(\.|$)", key):
        return NOT_TUNED["method.adaptation"]
    return ""


# -------------------- Reading an experiment
# All mistakes are reported at once, each with file, line, the path of the key and the rule.

DEFAULT = Path(__file__).parent / "templates" / "digits.toml"
CLASSES_TEMPLATE = DEFAULT.with_name("classes.toml")  # for a table named on the command line
NUMBERS_TEMPLATE = DEFAULT.with_name("numbers.toml")
COLUMNS = ("data", "columns")  # its keys are lists of names: --set data.columns.drop=insurer,ward
LONGEST_NAME = 100  # bytes of a name that becomes a folder
FOLDER_NAME = f"no slash, no control character, no dot in front, no name of a device, at most {LONGEST_NAME} bytes"


def load(source: Path | None, overrides: Sequence[str] = (), default: Path | None = None) -> Experiment:
    """Read and check an experiment.

    Args:
        source: A TOML file, or the ``run.json`` of a run folder; None: the default file.
        overrides: Options ``"a.b=c"``, with c written as in TOML; a bare word is a string. Paths here are relative to
            the current folder, and in the experiment to `folder_of` the source.
        default: Default file; None: `DEFAULT`.

    Raises:
        ConfigError: If the experiment is invalid; the message lists all mistakes.

    Example:
        >>> load(None, ["local.lr=0.5", "method.selection=full"]).local.lr
        0.5
    """
    base, named_file = folder_of(source), source
    source = (default or DEFAULT) if source is None else source
    text, raw = read(source)
    check_plain(raw, str(source))
    if source.suffix != ".json":
        raw.setdefault("name", name_after(source.with_suffix(""), "experiment"))
    overridden = [_override(raw, override, base) for override in overrides]
    check_plain(raw, "--set")
    experiment, problems = check(raw, base)
    if problems or experiment is None:
        raise ConfigError(format_problems(problems, named_file, text, overridden))
    return experiment


def check(raw: Mapping[str, Any], base: Path) -> tuple[Experiment | None, list[Problem]]:
    """Return the experiment, or None if it cannot be parsed, and all its problems."""
    problems: list[Problem] = []
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(raw)
    except pydantic.ValidationError as error:
        problems += explain_errors(error, raw)
        experiment = _parse_accepted(raw, error)
    for kind, path in _choices(raw):
        value = _value_at(raw, path)
        choice = {"name": value} if isinstance(value, str) else value
        if isinstance(choice, dict):
            problems += check_choice(kind, path, choice, base)
    methods = raw.get("methods")
    for name in methods if isinstance(methods, dict) else ():
        local = _value_at(raw, ("methods", name, "local"))
        if isinstance(local, dict):
            try:
                LocalSection.model_validate(local)
            except pydantic.ValidationError as error:
                problems += explain_errors(error, local, ("methods", name, "local"), LocalSection)
    if experiment is not None:
        refused = {problem.path for problem in problems}  # replaced by their defaults
        problems += [problem for problem in _find_contradictions(experiment, base) if problem.path not in refused]
        problems += _find_clashes(experiment, base, problems)
        problems += _check_metrics(experiment, base, problems)
        if not problems:
            problems = check_settings(raw, experiment, lambda tables: check(tables, base)[1])
    return experiment, problems


def _parse_accepted(raw: Mapping[str, Any], error: pydantic.ValidationError) -> Experiment | None:
    """Return the experiment without the rejected keys, so that the others are checked at the same time."""
    accepted = copy.deepcopy(dict(raw))
    for refusal in error.errors():
        table: Any = accepted
        for i, step in enumerate(refusal["loc"], start=1):
            if i == len(refusal["loc"]) or not isinstance(table.get(step), dict):
                table.pop(step, None)
                break
            table = table[step]
    try:
        return Experiment.model_validate(accepted)
    except pydantic.ValidationError:
        return None


def name_after(path: Path, default: str) -> str:
    """Return the last part of a path, or the default if that is not a valid name of an experiment.

    Example:
        >>> name_after(Path("comparisons/first"), "comparison"), name_after(Path("comparisons/.hidden"), "comparison")
        ('first', 'comparison')
    """
    name = path.resolve().name
    return name if _names_a_folder(name) else default


def _names_a_folder(name: str) -> bool:
    """Return whether a name is a valid folder name on all systems."""
    plain = re.fullmatch(r"[^/\\\x00-\x1f\x7f]+", name) is not None and not name.startswith((".", " "))
    reserved = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name, re.IGNORECASE) is not None
    return plain and not reserved and len(name.encode()) <= LONGEST_NAME


def _find_contradictions(e: Experiment, base: Path) -> list[Problem]:
    problems = []
    if e.baseline is not None and e.baseline not in e.methods:
        hint = nearest(e.baseline, e.methods) if e.methods else " There is no [methods.NAME] table."
        problems.append(Problem(("baseline",), f"must name a method; got {e.baseline!r}.{hint}"))
    if len(set(e.seeds)) < len(e.seeds):
        problems.append(Problem(("seeds",), f"must not repeat a seed; got {e.seeds}."))
    if not _names_a_folder(e.name):
        problems.append(Problem(("name",), f"becomes a folder in runs/: {FOLDER_NAME}; got {reprlib.repr(e.name)}."))
    for name in e.methods:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.+=-]*", name) or not _names_a_folder(name):
            rule = f"a method's name becomes a folder: use letters, digits, _ . + = -; {FOLDER_NAME}."
            problems.append(Problem(("methods", name), rule))
    for name in ("seconds", "joules"):
        if getattr(e.budget, name) is not None and e.radio is None:
            problems.append(Problem(("budget", name), "is counted by a [radio], and there is none: add one."))
    problems += _check_statistics(e)
    server_data = e.server_data
    if server_data is not None and (server_data.examples is None) == (server_data.file is None):
        got = "neither" if server_data.file is None else "both"
        problems.append(Problem(("server_data",), f"give either `examples` or `file`; got {got}."))
    participants, clients = e.population.participants, e.partition.clients
    drawn = e.partition.file is None and e.partition.name != "natural"  # else the file or the data set the number
    if drawn and isinstance(participants, int) and participants > clients:
        rule = f"must be at most the {clients} clients of the partition; got {participants}."
        problems.append(Problem(("population", "participants"), f"{rule} Lower it or raise partition.clients."))
    limit, share = clients if drawn else None, ""
    if isinstance(participants, float) and drawn:
        limit, share = share_of(participants, clients), f" ({participants:g} of {clients} clients)"
    elif isinstance(participants, int):
        limit = participants
    elif isinstance(participants, list) and participants:
        limit = len(participants)
    for path, cohort, selection in _cohorts(e):
        if limit is not None and cohort > limit and not _ignores_cohort(selection, base):
            rule = f"must be at most the {limit} participants{share}; got {cohort}."
            problems.append(Problem(path, f"{rule} Lower it or let more take part."))
    return problems


def _check_statistics(e: Experiment) -> list[Problem]:
    """Return the problems of a comparison's statistics section."""
    plan, where, problems = e.plan, ("statistics",), []
    if not plan.contrasts:
        rule = 'must hold a pair of methods at least, such as [["mine", "uniform"]]; got [].'
        problems.append(Problem((*where, "contrasts"), rule))
    if not isinstance(plan.contrasts, str):
        for i, pair in enumerate(plan.contrasts):
            place = (*where, "contrasts", i)
            if len(pair) != 2:
                problems.append(Problem(place, f"must be two methods, first minus second; got {list(pair)!r}."))
            elif unknown := [name for name in pair if name not in e.methods]:
                rule = f"must name two methods; got {unknown[0]!r}."
                problems.append(Problem(place, rule + nearest(unknown[0], e.methods)))
            elif pair[0] == pair[1]:
                problems.append(Problem(place, f"must name two different methods; got {pair[0]!r} twice."))
            elif set(map(frozenset, plan.contrasts[:i])) & {frozenset(pair)}:
                problems.append(Problem(place, f"is there before: {pair[0]!r} and {pair[1]!r}."))
    evaluations = -(-e.rounds // e.evaluation.every)
    if plan.last_rounds > evaluations:
        rule = f"must be at most the {evaluations} evaluated rounds; got {plan.last_rounds}."
        problems.append(Problem((*where, "last_rounds"), f"{rule} Lower it or evaluation.every."))
    if plan.detect_points is not None:
        if len(e.methods) == 1:
            problems.append(Problem((*where, "detect_points"), "is a difference of two methods, and there is one."))
        if len(e.seeds) < MIN_PILOT:
            rule = f"needs a pilot of at least {MIN_PILOT} seeds; `seeds` has {len(e.seeds)}. Say --seeds 20."
            problems.append(Problem((*where, "detect_points"), rule))
        if plan.max_seeds < len(e.seeds):
            rule = f"must be at least the {len(e.seeds)} seeds of the pilot; got {plan.max_seeds}."
            problems.append(Problem((*where, "max_seeds"), f"{rule} Raise it, or lower `seeds`."))
    return problems


def _cohorts(e: Experiment) -> list[tuple[Path_, int, Choice]]:
    """Return for each method where its cohort size is set, the size, and its selection."""
    shared: Path_ = ("method", "cohort_size")
    selection = dict(e.method)["selection"]
    if not e.methods:
        return [(shared, e.method.cohort_size, selection)]
    return [
        (
            ("methods", name, "cohort_size") if m.cohort_size else shared,
            m.cohort_size or e.method.cohort_size,
            dict(m)["selection"] or selection,
        )
        for name, m in e.methods.items()
    ]


def _ignores_cohort(selection: Choice, base: Path) -> bool:
    try:
        ignores: bool = components.make("selection", selection, base).ignores_cohort
        return ignores
    except Exception:
        return True  # an unknown or invalid policy, which is reported elsewhere


def _find_clashes(e: Experiment, base: Path, known_problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of components that are valid alone but not together; skip components with known problems."""
    problems = _check_local(e, base, known_problems)
    known_problems = [*known_problems, *problems]
    for name in e.methods or [None]:
        where: Path_ = ("method",) if name is None else ("methods", name)
        method_parts = {} if name is None else dict(e.methods[name])
        places = {kind: (*(where if method_parts.get(kind) else ("method",)), kind) for kind in (*PARTS, "cohort_size")}
        wrong = [*places.values(), ("local",), (*where, "local"), ("radio",), ("augmentation",)]
        if any(problem.path[: len(path)] == path for problem in known_problems for path in wrong):
            continue
        try:
            federation = components.federation(e.resolved(name), 0, base)
            federation.needs()
            federation.measurements()
            last, before = (server_tunes(federation, number, 2) for number in (2, 1))
        except FedReachError as error:
            problems.append(Problem(where, str(error)))
            continue
        except Exception as error:  # in a custom component
            problems.append(Problem(where, f"the parts cannot be joined: {type(error).__name__}: {error}."))
            continue
        if federation.learning_server is not None and e.server_data is None:
            rule = "trains on data of the server's own, and there is none. Add `[server_data] examples = 100`."
            problems.append(Problem(places["server"], f"{name_of(federation.server)} {rule}"))
        early = "evaluation.patience" if e.evaluation.patience is not None else "[budget]" if e.budget.limits else ""
        if last and not before and early:
            rule = f"tunes the model after the last round, which {early} may leave out. Leave out {early}."
            problems.append(Problem(places["server"], f"{name_of(federation.server)} {rule}"))
    return problems


def _check_local(e: Experiment, base: Path, known_problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of local training, which all methods share, so that they are reported once."""
    if any(problem.path[:1] == ("local",) for problem in known_problems):
        return []
    try:
        components.local_of(e.local, base)
    except FedReachError as error:
        return [Problem(("local",), str(error))]
    return []


def _check_metrics(e: Experiment, base: Path, known_problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of metrics that are valid alone but not together, such as two with the same name."""
    from fedreach.evaluation.metrics import additional_metrics

    where: Path_ = ("evaluation", "metrics")
    if any(problem.path[: len(where)] == where for problem in known_problems):
        return []
    try:
        additional_metrics([components.make("metric", choice, base) for choice in e.evaluation.metrics])
    except FedReachError as error:
        return [Problem(where, str(error))]
    return []


def _choices(raw: Mapping[str, Any]) -> list[tuple[str, Path_]]:
    """Return (component type, path) of every named choice that the file makes."""
    places: list[tuple[str, Path_]] = [(k, (*row.path, k)) for k, row in KINDS.items() if row.path is not None]
    methods = raw.get("methods")
    for name in methods if isinstance(methods, dict) else ():
        places += [(part, ("methods", name, part)) for part in PARTS]
    for kind, path in {"metric": ("evaluation", "metrics"), "tracker": ("run", "trackers")}.items():
        several = _value_at(raw, path)
        places += [(kind, (*path, i)) for i in range(len(several) if isinstance(several, list) else 0)]
    return [(kind, path) for kind, path in places if _value_at(raw, path) is not None]


def _value_at(raw: Mapping[str, Any], path: Path_) -> Any:
    value: Any = raw
    for step in path:
        if isinstance(step, int):
            value = value[step]
        elif not isinstance(value, Mapping) or step not in value:
            return None
        else:
            value = value[step]
    return value


def _override(raw: dict[str, Any], override: str, base: Path) -> Path_:
    """Set one option and return its path; a number is a step into a list, as in ``parts[1]``."""
    key, equals, value = override.partition("=")
    path: list[str | int] = [step.strip() for step in re.sub(r"\[(\d+)\]", r".\1", key).split(".")]
    if not equals or not all(path):
        raise ConfigError(f"--set must be of the form a.b=c, such as local.lr=0.05; got {override!r}.")
    table: Any = raw
    for i, step in enumerate(path):
        if isinstance(table, list):
            step = path[i] = _index(step, table, override)
        if i == len(path) - 1:
            is_list = tuple(path[:-1]) == COLUMNS and step != "decimal" and not value.strip().startswith("[")
            table[step] = names_in(value) if is_list else relative_to_base(base, tuple(path), toml_value(value))
            break
        inner = table.get(step) if isinstance(table, dict) else table[step]
        if isinstance(inner, str):  # selection = "uniform" becomes a table when an option is set
            inner = {"name": inner}
        table[step] = inner if isinstance(inner, dict | list) else {}
        table = table[step]
    return tuple(path)


def _index(step: str | int, table: Sequence[Any], override: str) -> int:
    if not str(step).isdecimal() or int(step) >= len(table):
        rule = f"must name an element of the list by its number, 0 to {len(table) - 1}"
        raise ConfigError(f"--set {override}: {step!r} {rule}. Or set the whole list.")
    return int(step)

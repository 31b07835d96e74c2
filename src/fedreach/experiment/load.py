"""Functions that read and check experiment files."""

import copy
import csv
import json
import re
import reprlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from fedreach._util.errors import ConfigError, FedReachError, nearest, regular
from fedreach._util.registry import COMPONENT_TYPES
from fedreach.data.splits import share_of
from fedreach.evaluation.statistics import MIN_PILOT
from fedreach.experiment import components
from fedreach.experiment.components import folder_of, relative_to_base
from fedreach.experiment.messages import Path_, Problem, explain_errors, format_problems
from fedreach.experiment.options import check_choice
from fedreach.experiment.schema import (
    PARTS,
    Experiment,
    LocalSection,
    Range,
    Setting,
    format_setting,
    format_value,
)
from fedreach.federation.base import name_of
from fedreach.federation.round import server_tunes

# -------------------- From the text of an experiment to raw tables

MOST_NESTED = 50  # depth of tables and lists
MAX_BYTES = 1e8  # size of an experiment file
UNFIT = re.compile("[\0\ud800-\udfff]")  # invalid in files, pages and terminals


def read(source: Path) -> dict[str, Any]:
    """Return the raw tables of an experiment file, or of a run.json.

    Raises:
        ConfigError: If the file cannot be read, or is not valid TOML or JSON.
    """
    is_json = source.suffix == ".json"
    try:
        text = regular(source, MAX_BYTES).read_text(encoding="utf-8")
        raw = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"{source} cannot be read: {error.strerror}. Name a TOML file; `fedreach init` writes a commented file."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of 5000 digits raises a ValueError, not a decode error
        what = "JSON" if is_json else "TOML"
        if source.name.endswith((".csv", ".csv.gz", ".tsv", ".parquet")):
            raise ConfigError(f"{source} is a table, not an experiment file. Use --data {source}.") from error
        raise ConfigError(
            f"{source} is not valid {what}: {_describe_error(error)}. `fedreach init` writes a valid file."
        ) from error
    config = raw.get("config", raw) if is_json and isinstance(raw, dict) else raw
    if not isinstance(config, dict):
        raise ConfigError(
            f"{source} must contain a table of options; got a {type(config).__name__}. Use run.json of a run folder."
        )
    return config


def toml_value(text: str) -> Any:
    """Parse a TOML value; a word without quotes is a string.

    Raises:
        ConfigError: If the value is nested too deeply, or is a number with too many digits.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{reprlib.repr(text)} is not a TOML value: {_describe_error(error)}.") from error
    check_plain(value, "a value")
    return value


def names_in(text: str) -> list[str]:
    """Return names separated by commas; a name that contains a comma must be quoted, as in a CSV file.

    Example:
        >>> names_in('north,"St. Mary, London", 007')
        ['north', 'St. Mary, London', '007']
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]


def check_plain(value: Any, where: str, depth: int = 0) -> None:
    """Reject nesting deeper than `MOST_NESTED`, integers beyond 64 bits, and invalid characters.

    Raises:
        ConfigError: If the value contains one of these; the message names its position.

    Example:
        >>> check_plain({"name": "x", "seeds": [0]}, "x.toml")
        >>> check_plain({"name": "a\\0b"}, "x.toml")
        Traceback (most recent call last):
        fedreach.ConfigError: x.toml must not contain the character U+0000; got 'a\\x00b'. Remove it.
    """
    if depth > MOST_NESTED:
        raise ConfigError(f"{where} nests tables and lists more than {MOST_NESTED} levels deep.")
    if isinstance(value, str) and (unfit := UNFIT.search(value)):
        rule = f"must not contain the character U+{ord(unfit[0]):04X}; got {reprlib.repr(value)}"
        raise ConfigError(f"{where} {rule}. Remove it.")
    if isinstance(value, int) and value.bit_length() > 63:
        raise ConfigError(f"{where}: a whole number must fit into 64 bits, as in TOML; got {hex(value)[:40]}.")
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    for part in value if isinstance(value, list | tuple) else ():
        check_plain(part, where, depth + 1)


def _describe_error(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")


# -------------------- Settings of options

LONGEST = 80  # characters of a setting's folder


def set_option(table: dict[str, Any], key: str, value: Any) -> None:
    """Set an option in nested tables; a component given by name becomes a table with that name."""
    *steps, last = key.split(".")
    for step in steps:
        inner = table.get(step)
        table[step] = {"name": inner} if isinstance(inner, str) else inner if isinstance(inner, dict) else {}
        table = table[step]
    table[last] = value


def with_setting(raw: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Apply a setting to the tables of an experiment, and return the changed `raw`."""
    methods = tuple(raw.get("methods") or ())
    for key, value in setting.items():  # a step * means all methods
        for path in [key.replace("*", method, 1) for method in methods] if "*" in key else [key]:
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


NOT_SWEPT = ("name", "seeds", "baseline", "target_accuracy", "statistics", "engine", "run", "sweep", "tune")
"""Keys that cannot be swept or tuned: they are the same for all settings, or change results only by rounding."""
COMMON = (
    *("data", "partition", "population", "attack", "noise", "shift"),
    *("server_data", "budget", "radio", "evaluation", "rounds"),
)
"""Keys that can be swept but not tuned, because they are the same for all methods of a comparison."""


def check_settings(
    raw: Mapping[str, Any], e: Experiment, wrong: Callable[[dict[str, Any]], list[Problem]]
) -> list[Problem]:
    """Check each value of ``[sweep]`` and ``[tune]`` separately, and return the problems.

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
                    problems.append(Problem((section, key), f"{value_text} is not valid: {where}: {problem.message}"))
    if e.sweep is not None and e.plan.detect_points is not None:
        rule = (
            "chooses the number of seeds for one comparison, but a [sweep] has several comparisons. Remove one of the "
            "two."
        )
        problems.append(Problem(("statistics", "detect_points"), rule))
    if e.tune is not None and not e.methods:
        rule = "chooses settings for each method of a comparison. Add [methods.NAME] tables."
        problems.append(Problem(("tune",), rule))
    return problems


def explain_refused_key(key: str, *, tuned: bool) -> str:
    """Return why an option cannot be swept or tuned, or "" if it can."""
    head = key.partition(".")[0]
    if head in NOT_SWEPT:
        return f"{head} must be the same for all settings. Remove it"
    if tuned and head in COMMON:
        return f"{head} must be the same for all methods. Move it to [sweep]"
    if tuned and re.match(r"(method|methods\.[^.]+)\.adaptation(\.|$)", key):
        return "adaptation follows training, but tuning scores the model before adaptation. Remove it"
    return ""


# -------------------- Reading an experiment
# All mistakes are reported at once, each with file, line, the path of the key and the rule.

DEFAULT = Path(__file__).parent / "templates" / "digits.toml"
CLASSES_TEMPLATE = DEFAULT.with_name("classes.toml")  # for a table named on the command line
NUMBERS_TEMPLATE = DEFAULT.with_name("numbers.toml")
COLUMNS = ("data", "columns")  # its keys are lists of names: --set data.columns.drop=insurer,ward
LONGEST_NAME = 100  # bytes of a name that becomes a folder
FOLDER_NAME = (
    'no slash, none of : * ? " < > |, no control character, no dot or space at the beginning or end, no name of a '
    f"device, at most {LONGEST_NAME} bytes"
)


def load(
    source: Path | None, overrides: Sequence[str] = (), default: Path | None = None, *, alone: bool = False
) -> Experiment:
    """Read and check an experiment.

    Args:
        source: TOML file, or ``run.json`` of a run folder. None: the default file.
        overrides: Options ``"a.b=c"``, where c is a TOML value or a word without quotes. Paths in overrides are
            relative to the current folder. Paths in the experiment are relative to `folder_of(source)`.
        default: Default file; None: `DEFAULT`.
        alone: Ignore the methods of the default file, which a run of `[method]` does not use.

    Raises:
        ConfigError: If the experiment is invalid. The message lists all mistakes.

    Example:
        >>> load(None, ["local.lr=0.5", "method.selection=full"]).local.lr
        0.5
    """
    base, named_file = folder_of(source), source
    source = (default or DEFAULT) if source is None else source
    raw = read(source)
    if alone and named_file is None:
        raw = {key: value for key, value in raw.items() if key not in ("methods", "baseline")}
    check_plain(raw, str(source))
    if source.suffix != ".json":
        raw.setdefault("name", name_after(source.with_suffix(""), "experiment"))
    overridden = [_override(raw, override, base) for override in overrides]
    check_plain(raw, "--set")
    return checked(raw, base, "" if named_file is None else named_file.name, overridden)


def checked(raw: Mapping[str, Any], base: Path, place: str, overridden: Sequence[Path_] = ()) -> Experiment:
    """Return the experiment, or raise ConfigError with all problems of the current stage of `check`.

    Args:
        raw: Tables of the experiment.
        base: Folder that paths in the experiment are relative to.
        place: Name of the source of the tables, for the message.
        overridden: Keys that were set with --set.
    """
    experiment, problems = check(raw, base)
    if problems or experiment is None:
        raise ConfigError(format_problems(problems, place, overridden))
    return experiment


def check(raw: Mapping[str, Any], base: Path) -> tuple[Experiment | None, list[Problem]]:
    """Return the experiment, or None if it cannot be parsed, and its problems.

    The function first checks keys, types, ranges and components, then their combination, then the settings to try. It
    stops after the first stage with problems.
    """
    problems: list[Problem] = []
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(raw)
    except pydantic.ValidationError as error:
        problems += explain_errors(error, raw)
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
                problems += explain_errors(error, local, ("methods", name, "local"), LocalSection.model_fields)
    if experiment is not None and not problems:
        problems = [*_find_contradictions(experiment), *_find_clashes(experiment, base)] or check_settings(
            raw, experiment, lambda tables: check(tables, base)[1]
        )
    return experiment, problems


def name_after(path: Path, default: str) -> str:
    """Return the last part of a path, or the default if this part is not a valid name of an experiment.

    Example:
        >>> name_after(Path("comparisons/first"), "comparison"), name_after(Path("comparisons/.hidden"), "comparison")
        ('first', 'comparison')
    """
    name = path.resolve().name
    return name if _names_a_folder(name) else default


def _names_a_folder(name: str) -> bool:
    """Return whether a name is a valid folder name on all systems."""
    plain = re.fullmatch(r"[^/\\:*?\"<>|\x00-\x1f\x7f]+", name) is not None and name == name.strip(". ")
    reserved = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name, re.IGNORECASE) is not None
    return plain and not reserved and len(name.encode()) <= LONGEST_NAME


def _find_contradictions(e: Experiment) -> list[Problem]:
    problems = []
    if e.baseline is not None and e.baseline not in e.methods:
        problems.append(
            Problem(("baseline",), f"must name a method; got {e.baseline!r}.{nearest(e.baseline, e.methods)}")
        )
    if len(set(e.seeds)) < len(e.seeds):
        problems.append(Problem(("seeds",), f"must not repeat a seed; got {e.seeds}."))
    if not _names_a_folder(e.name):
        rule = f"must be a valid name of a folder: {FOLDER_NAME}; got {reprlib.repr(e.name)}."
        problems.append(Problem(("name",), rule))
    for name in e.methods:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.+=-]*", name) or not _names_a_folder(name):
            rule = f"a method's name is also the name of a folder. Use only letters, digits, _ . + = -; {FOLDER_NAME}."
            problems.append(Problem(("methods", name), rule))
        alike = [method for method in e.methods if method.lower() == name.lower()]
        if name != alike[0]:
            rule = f"has the same folder as {alike[0]!r} on systems that ignore case. Rename one of them."
            problems.append(Problem(("methods", name), rule))
    for name in ("seconds", "joules"):
        if name in e.limits and e.radio is None:
            problems.append(Problem(("budget", name), "requires a [radio] section. Add one."))
    server_data = e.server_data
    if server_data is not None and (server_data.examples is None) == (server_data.file is None):
        problems.append(Problem(("server_data",), "must have either `examples` or `file`."))
    participants, clients = e.population.participants, _drawn_clients(e)
    if clients is not None and isinstance(participants, int) and participants > clients:
        rule = f"must be at most the {clients} clients of the partition; got {participants}."
        problems.append(Problem(("population", "participants"), f"{rule} Lower it or raise partition.clients."))
    return problems + _check_statistics(e) + _check_cohorts(e)


def _check_cohorts(e: Experiment) -> list[Problem]:
    """Return the problems of methods whose cohorts are as large as those of another method."""
    problems = []
    for name in e.methods or [None]:
        method = e.resolved(name).method
        has_size = name is not None and e.methods[name].cohort_size is not None
        where: Path_ = (*(("methods", name) if name and has_size else ("method",)), "cohort_size")
        if method.schedule is not None and method.method_to_follow is None and len(method.schedule.amounts) < e.rounds:
            rule = f"must have an amount for each of the {e.rounds} rounds; got {len(method.schedule.amounts)}."
            problems.append(Problem((*where, "amounts"), rule))
        chain = [name]
        while (target := e.resolved(chain[-1]).method.method_to_follow) is not None:
            chain.append(target)
            if target not in e.methods:
                hint = nearest(target, e.methods) if e.methods else " A single run has no other methods; use a number."
                rule = f"must name another method of the comparison; got {target!r}.{hint}"
                problems.append(Problem((*where, "as"), rule))
                break
            if target in chain[:-1]:
                rule = f"must lead to a method with a cohort size of its own; got {' -> '.join(map(str, chain))}."
                problems.append(Problem((*where, "as"), rule))
                break
        if len(chain) > 1 and e.tune is not None:
            rule = "must be a number if settings are tuned, because candidates have no other method to follow."
            problems.append(Problem(where, rule))
    return problems


def _drawn_clients(e: Experiment) -> int | None:
    """Return the number of clients; None if a file or the data set it."""
    return e.partition.clients if e.partition.file is None and e.partition.name != "natural" else None


def _count_participants(e: Experiment) -> int | None:
    """Return the number of participants; None if it is not known before the data are read."""
    participants, clients = e.population.participants, _drawn_clients(e)
    if isinstance(participants, list) and participants:
        return len(participants)
    if isinstance(participants, float) and clients is not None:
        return share_of(participants, clients)
    return participants if isinstance(participants, int) else clients


def _check_statistics(e: Experiment) -> list[Problem]:
    """Return the problems of a comparison's statistics section."""
    plan, where, problems = e.plan, ("statistics",), []
    pairs = [] if isinstance(plan.contrasts, str) else [list(pair) for pair in plan.contrasts]
    for i, pair in enumerate(pairs):
        unknown = [name for name in pair if name not in e.methods]
        if unknown or len({*pair}) < 2 or {*pair} in map(set, pairs[:i]):
            rule = f"must be two different methods, first minus second, each pair once; got {pair!r}."
            rule += nearest(unknown[0], e.methods) if unknown else ""
            problems.append(Problem((*where, "contrasts", i), rule))
    evaluations = -(-e.rounds // e.evaluation.every)
    if plan.last_rounds > evaluations:
        rule = f"must be at most the {evaluations} evaluated rounds; got {plan.last_rounds}."
        problems.append(Problem((*where, "last_rounds"), f"{rule} Lower it or evaluation.every."))
    if plan.detect_points is not None:
        if len(e.methods) == 1:
            problems.append(Problem((*where, "detect_points"), "requires at least two methods; got one."))
        if len(e.seeds) < MIN_PILOT:
            rule = f"needs a pilot of at least {MIN_PILOT} seeds; `seeds` has {len(e.seeds)}. Use --seeds 20 or more."
            problems.append(Problem((*where, "detect_points"), rule))
        if plan.max_seeds < len(e.seeds):
            rule = f"must be at least the {len(e.seeds)} seeds of the pilot; got {plan.max_seeds}."
            problems.append(Problem((*where, "max_seeds"), f"{rule} Raise it, or lower `seeds`."))
    return problems


def _find_clashes(e: Experiment, base: Path) -> list[Problem]:
    """Return the problems of components that are valid alone but not together."""
    from fedreach.evaluation.metrics import additional_metrics

    problems = []
    where: Path_ = ("evaluation", "metrics")
    try:
        additional_metrics([components.make("metric", m, base) for m in e.evaluation.metrics])
        where = ("local",)  # of all methods, so that it is reported once
        components.local_of(e.local, base)
    except FedReachError as error:
        return [Problem(where, str(error))]
    limit = _count_participants(e)
    for name in e.methods or [None]:
        where = ("method",) if name is None else ("methods", name)
        method_options = {} if name is None else dict(e.methods[name])
        places = {
            part: (*(where if method_options.get(part) else ("method",)), part) for part in ("server", "cohort_size")
        }
        try:
            federation = components.federation(e.resolved(name), 0, base)
            federation.needs()
            federation.measurements()
            last, before = (server_tunes(federation, number, 2) for number in (2, 1))
        except FedReachError as error:
            problems.append(Problem(where, str(error)))
            continue
        except Exception as error:  # in a custom component
            problems.append(Problem(where, f"the components cannot be combined: {type(error).__name__}: {error}."))
            continue
        if limit is not None and federation.cohort_size > limit and not federation.selection.ignores_cohort:
            rule = f"must be at most the {limit} participants; got {federation.cohort_size}."
            problems.append(Problem(places["cohort_size"], f"{rule} Lower it, or let more clients participate."))
        if federation.learning_server is not None and e.server_data is None:
            rule = "trains on server data; got none. Add `[server_data] examples = 100`."
            problems.append(Problem(places["server"], f"{name_of(federation.server)} {rule}"))
        for key, is_set in {
            "evaluation.patience": e.evaluation.patience is not None,
            "[budget]": bool(e.limits),
            "population.refit": e.population.refit,
        }.items():
            if federation.is_private and is_set:
                rule = f"does not account for {key}, which reads further data of the clients. Remove {key}."
                problems.append(Problem((*where, "aggregation"), f"{name_of(federation.aggregation)} {rule}"))
        early = "evaluation.patience" if e.evaluation.patience is not None else "[budget]" if e.limits else ""
        if last and not before and early:
            rule = f"tunes the model after the last round, but {early} may end the run earlier. Remove {early}."
            problems.append(Problem(places["server"], f"{name_of(federation.server)} {rule}"))
    return problems


def _choices(raw: Mapping[str, Any]) -> list[tuple[str, Path_]]:
    """Return (component type, path) of every named choice that the file makes."""
    places: list[tuple[str, Path_]] = [
        (k, (*row.path, k)) for k, row in COMPONENT_TYPES.items() if row.path is not None
    ]
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
        raise ConfigError(f"--set {override}: {step!r} {rule}. Or set the complete list.")
    return int(step)

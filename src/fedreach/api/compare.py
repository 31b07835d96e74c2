"""Compare methods from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedreach._util import registry
from fedreach._util.errors import ConfigError, TrainingError
from fedreach.api import terminal
from fedreach.api.comparison import Study
from fedreach.data.datasets import Dataset, Recipe
from fedreach.data.federated import FederatedData, Origin
from fedreach.data.stored import FILE, OwnData, OwnTable, store
from fedreach.experiment.build import Builder
from fedreach.experiment.compare import compare as compare_all
from fedreach.experiment.components import locate_user_errors
from fedreach.experiment.load import check, named_after
from fedreach.experiment.messages import listed
from fedreach.experiment.naming import Shelf, function_said, plain, said
from fedreach.experiment.schema import PARTS, Data, Experiment
from fedreach.experiment.workers import ComparisonStatus
from fedreach.report.concerns import concerns
from fedreach.report.read import seeds_to_detect

# -------------------- What is compared, as Python says it

Part = Any
"""A name, a table ``{"name": ..., option: value}``, a class, a function where functions are parts, or a part itself."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The parts of one federated method; what is left out is what `compare` is told as `method`, or the default.

    Each part may be a name of ``fedreach list``, a dictionary with a ``name`` and options, one of FedReach's classes or
    one's own, an instance of them, or, where the kind allows it, a plain function.

    Example:
        >>> from fedreach.federation.selection.losses import PowerOfChoice
        >>> Method(selection=PowerOfChoice(candidates=20), server="adam", local={"rate": 0.05}).cohort is None
        True
    """

    selection: Part = None  # who trains; default: uniform
    weighting: Part = None  # how much each report counts; default: by_examples
    solver: Part = None  # how clients train; default: fedavg
    server: Part = None  # what the server makes of the reports; default: average
    aggregation: Part = None  # how reports become one; default: mean
    loss: Part = None  # what clients' models are trained to make small; default: cross_entropy, of numbers mse
    serving: Part = None  # how an unseen client is served; default: none
    label_statistics: Part = None  # what the server hears of clients' labels; default: exact
    allocation: Part = None  # who gets which share of the band, with a radio
    cohort: int | None = None  # clients a round
    local: Mapping[str, Any] | None = None  # options of `fedreach.federation.local_sgd.LocalSGD` that differ

    def said(self) -> dict[str, Any]:
        """Return what is not left out."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


# -------------------- A study as Python asks for it becomes an experiment, checked as one from a TOML file is

BASIS = ["accuracy", "loss"]  # metrics that are always there
COHORT = 10  # clients a round, where nothing is said and so many take part


@dataclass(eq=False)
class PythonStudy:
    """An experiment that Python asked for, and what of it this process holds in its hands."""

    experiment: Experiment
    dataset: Dataset | OwnData
    shelf: Shelf
    out: Path
    base: Path = field(default_factory=Path.cwd)

    def federated(self) -> FederatedData:
        """Return the data of the first seed, which all methods take."""
        with locate_user_errors(self.experiment, self.base):
            return Builder(self.experiment, self.base).compared(self.dataset)

    def written(self) -> PythonStudy:
        """Write what other processes need: parts without names, and data of one's own."""
        self.shelf.write()
        if self.experiment.data.name != FILE:
            return self
        place = store(self.dataset, self.out / "data")
        data = Data(name=Path(os.path.relpath(place)).as_posix())
        self.experiment = self.experiment.model_copy(update={"data": data})
        return self


def ask(
    data: FederatedData | Recipe | Dataset,
    methods: Mapping[str, Any] | None,
    *,
    method: Any,
    model: Any,
    metrics: Sequence[Any],
    seeds: int | Sequence[int],
    cohort: int | None,
    out: Path,
    called: str,
    trackers: Sequence[Any] = (),
    **tables: Any,
) -> PythonStudy:
    """Return the experiment that Python asks for.

    Args:
        data: What the clients hold.
        methods: To compare, by name; None where there is one only.
        method: Parts that all methods share.
        model: What is trained.
        metrics: Beside accuracy and loss.
        seeds: How many, or which.
        cohort: Clients a round; None: 10, or all who take part where they are fewer.
        out: Where what has no name is kept.
        called: The function that was called, for messages.
        trackers: Who else is told of runs.
        **tables: Further keys of an experiment file; None is left out.

    Raises:
        ConfigError: With all mistakes at once, by their keys in an experiment file.
    """
    shelf, origin = Shelf(out / "parts"), origin_of(data)
    raw: dict[str, Any] = {key: _table(key, value, shelf) for key, value in tables.items() if value is not None}
    for kind, row in registry.KINDS.items():
        if row.path == () and kind in raw:
            raw[kind] = said(kind, raw[kind], shelf)
    raw |= {key: plain(table) for key, table in origin.tables.items() if key not in raw}
    raw["partition"] = said("partition", origin.tables["partition"], shelf)
    raw["population"] = {**plain(origin.tables["population"]), **_population(raw.get("population"), shelf)}
    raw["data"] = plain(getattr(origin.data, "section", None) or {"name": FILE})
    raw["model"] = said("model", model, shelf)
    number = plain(seeds)
    raw["seeds"] = list(range(number)) if isinstance(number, int) and not isinstance(number, bool) else number
    evaluation = raw.get("evaluation", {})
    asked = [*_several(evaluation.get("metrics", ())), *_several(metrics)] if isinstance(evaluation, Mapping) else []
    if asked:
        named = [said("metric", each, shelf) for each in asked]
        raw["evaluation"] = {**evaluation, "metrics": BASIS + [each for each in named if each not in BASIS]}
    if several := _several(trackers):
        raw["run"] = {"trackers": [said("tracker", each, shelf) for each in several]}
    raw["method"] = _method(method, shelf, called, "method")
    if isinstance(origin.data, OwnTable) and not origin.data.num_classes:  # of a column that was named as `target`
        raw["method"].setdefault("loss", "mse")
    if "cohort" not in raw["method"]:
        raw["method"]["cohort"] = min(COHORT, _participants(data)) if cohort is None else plain(cohort)
    if methods is not None:
        if not isinstance(methods, Mapping) or not methods:
            raise ConfigError(f'{called}() needs methods by name, such as {{"fedavg": {{}}}}; got {methods!r}.')
        raw["methods"] = {str(name): _method(one, shelf, called, f"methods.{name}") for name, one in methods.items()}
    experiment, problems = check(raw, Path.cwd())
    if problems or experiment is None:
        raise ConfigError(listed(problems, Path(f"{called}()"), "", ()))
    return PythonStudy(experiment, origin.data, shelf, out)


def origin_of(data: FederatedData | Recipe | Dataset) -> Origin:
    """Return what data were made of, and what an experiment says of how."""
    if isinstance(data, Dataset):
        if data.owners is None:
            raise ConfigError(
                f"{data.name} has no clients of its own: say how it is divided, such as "
                'data.partition("dirichlet_by_class", clients=50, alpha=0.3).'
            )
        data = data.partition("natural")
    if isinstance(data, Recipe):
        return Origin(data.dataset, data.tables())
    if not isinstance(data, FederatedData):
        raise ConfigError(
            f"data must be FederatedData, or a data set that is divided by .partition(...); got {type(data).__name__}. "
            "FederatedData.from_frame, from_torch, from_clients and from_huggingface make them of one's own."
        )
    origin = data.by_experiment
    if origin is None:
        raise ConfigError(
            "These FederatedData do not say how they came about, or were changed since, so that no other seed and no "
            "other process can make them. Hand over what FederatedData.from_... or .partition(...) returned; label "
            "noise, shifts and data of the server are the arguments `noise`, `shift` and `server_data`."
        )
    return origin


def _participants(data: FederatedData | Recipe | Dataset) -> int:
    """Return how many take part, as far as that is known before the data are divided."""
    if isinstance(data, FederatedData):
        return len(data.population.participants)
    if isinstance(data, Recipe):
        clients = data.clients
        if data.kind == "natural" and data.dataset.owners is not None:
            clients = int(data.dataset.owners.max()) + 1
        who = data.participants
        if who is None:
            return clients
        if isinstance(who, int | float):
            return who if isinstance(who, int) else max(1, round(who * clients))
        return len(who)
    return _participants(data.partition("natural"))


def _method(method: Any, shelf: Shelf, called: str, where: str) -> dict[str, Any]:
    if isinstance(method, Method):
        method = method.said()
    if not isinstance(method, Mapping):
        raise ConfigError(f"{called}(): {where} must be a Method or a dictionary of parts; got {method!r}.")
    return {
        key: said(key, value, shelf) if key in PARTS else _table(key, value, shelf) for key, value in method.items()
    }


def _several(things: Any) -> Sequence[Any]:
    """Return metrics or trackers as a list, one by itself, too."""
    alone = isinstance(things, str | Mapping) or not isinstance(things, Iterable)
    return [things] if alone else list(things)


def _population(table: Mapping[str, Any] | None, shelf: Shelf) -> dict[str, Any]:
    """Return what was said of the population beside the data."""
    found = dict(table or {})
    if "participation" in found:
        found["participation"] = said("participation", found["participation"], shelf)
    return found


def _table(key: str, value: Any, shelf: Shelf) -> Any:
    if key == "local" and isinstance(value, Mapping) and callable(value.get("schedule")):
        value = {**value, "schedule": function_said(value["schedule"], shelf)}
    return plain(dict(value)) if isinstance(value, Mapping) else value if key in registry.KINDS else plain(value)


# -------------------- ``fedreach.compare``: methods on the same clients, from Python

Table = Mapping[str, Any] | None
"""A table of an experiment file: options by name; None leaves all as it is by default."""


def compare(
    data: FederatedData | Recipe | Dataset,
    methods: Mapping[str, Method | Mapping[str, Any]],
    *,
    model: Part = "mlp",
    rounds: int = 50,
    cohort: int | None = None,
    seeds: int | Sequence[int] = 1,
    metrics: Sequence[Part] = (),
    out: Path | str | None = None,
    method: Method | Mapping[str, Any] | None = None,
    local: Table = None,
    baseline: str | None = None,
    name: str | None = None,
    target_accuracy: float | None = None,
    population: Table = None,
    augmentation: Part = None,
    noise: Part = None,
    shift: Part = None,
    server_data: Table = None,
    budget: Table = None,
    radio: Part = None,
    engine: Table = None,
    evaluation: Table = None,
    statistics: Table = None,
    tune: Table = None,
    trackers: Sequence[Part] = (),
    workers: int | None = None,
    add_seeds: bool = False,
    redo: Sequence[str] = (),
    progress: bool = True,
) -> Study:
    """Train by several methods, with several seeds, and return what came out.

    The same as ``fedreach compare`` with a TOML file: the same check, the same run folders. The same call again goes on
    with what is unfinished and repeats nothing. A part without a name, such as a lambda, is known by its code and what
    it holds: if that changes it is another study.

    Args:
        data: What clients hold. FederatedData of one's own: who holds what is fixed, and each seed draws who takes
            part, unless participants are named. A data set divided by ``partition``: each seed draws all of it anew.
        methods: By name: a `Method`, or a dictionary of its fields.
        model: A name, ``{"name": ..., option: value}``, a function or class that makes a ``torch.nn.Module``, handed
            `sample_shape` and `num_classes` where it has such arguments; or a module, which is copied and whose
            trained weights are drawn anew for each seed, unless ``{"name": module, "keep_weights": True}``.
        rounds: Of training, at most.
        cohort: Clients a round. Default: 10, or all that take part if they are fewer.
        seeds: How many (0, 1, ...), or which.
        metrics: Beside accuracy (of numbers the mean absolute error) and loss: names, functions
            ``f(y_true, probabilities) -> float``, or metrics.
        out: Folder of the study. Default: ``runs/NAME``.
        method: What all methods share.
        local: How clients train, see `fedreach.federation.local_sgd.LocalSGD`.
        baseline: The method that others are compared with. Default: the first.
        name: In tables and on the page. Default: that of the folder, or "study".
        target_accuracy: In [0, 1]; what it takes to reach it is told. Not where targets are numbers.
        population: Further keys of that table, such as ``{"participation": "always"}``.
        augmentation: Of clients' training batches: a name, or a function ``f(inputs) -> inputs``.
        noise: On training labels, such as ``{"name": "symmetric", "rate": 0.2}``.
        shift: Of unseen clients.
        server_data: Of the server's own, such as ``{"examples": 100}``.
        budget: What a run may spend, such as ``{"megabytes": 100.0}``: it ends with the round that reaches it.
        radio: Channels and devices; seconds and joules are then counted.
        engine: How training is computed.
        evaluation: When and on what models are scored.
        statistics: What is asked, such as ``{"detect_points": 2.0}``: then `seeds` are the pilot's.
        tune: Settings of which each method is given the best, by its participants' own data that it is not scored on:
            ``{"local.rate": [0.01, 0.1]}``, or drawn: ``{"samples": 20, "local.rate": {"least": 0.001, "most": 1.0,
            "log": True}}``.
        trackers: Who else is told of each run as it goes on: "tensorboard", "mlflow", "csv", or a `fedreach.Callback`
            of one's own, of which each run is handed a copy. Changes no number.
        workers: Processes at a time; changes no number.
        add_seeds: Whether seeds may be added although there are results; there is no verdict then.
        redo: Methods whose runs are moved aside, into ``redone/``, and made again.
        progress: Whether what goes on is told on standard error.

    Returns:
        The study, as `fedreach.open` finds it later.

    Raises:
        ConfigError: If something is asked for that cannot be, all of it at once; before any data are read or written.
        DataError: If the data cannot be used.
        RunFolderError: If `out` holds another study.
        TrainingError: If a run failed; the others are kept.

    Example:
        >>> import tempfile
        >>> import fedreach as fr
        >>> study = fr.compare(
        ...     fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8),
        ...     {"uniform": {}, "entropy": fr.Method(weighting="entropy")},
        ...     rounds=2, cohort=4, out=tempfile.mkdtemp() + "/digits", progress=False)
        >>> study
        Study(digits: uniform, entropy; 1 seed)
    """
    arguments = {key: value for key, value in locals().items() if key not in ("data", "methods")}
    question, out = asked(data, methods, "compare", **arguments)
    experiment, base = question.experiment, question.base

    with terminal.compare_progress(quiet=not progress) as shown:
        begin = terminal.Beginning(experiment, question.federated, quiet=not progress)
        further = None if experiment.plan.detect_points is None else seeds_to_detect
        status = compare_all(
            experiment,
            out=out,
            base=base,
            workers=workers,
            callbacks=[begin, *shown],
            add_seeds=add_seeds,
            redo=redo,
            further=further,
        )
    refuse_failed(status, out)
    study = Study(out)
    if progress:
        for sentence in concerns(study.analysis.comparison):
            print(sentence, file=sys.stderr)
    return study


NOT_OF_THE_EXPERIMENT = ("workers", "add_seeds", "redo", "progress", "out", "name")


def asked(
    data: FederatedData | Recipe | Dataset,
    methods: Mapping[str, Method | Mapping[str, Any]],
    called: str,
    *,
    out: Path | str | None,
    name: str | None,
    method: Method | Mapping[str, Any] | None,
    **arguments: Any,
) -> tuple[PythonStudy, Path]:
    """Return the experiment that is asked for by the arguments of `compare`, written, and its folder."""
    known = name or ("study" if out is None else named_after(Path(out), "study"))
    out = Path("runs") / known if out is None else Path(out)
    said = {key: value for key, value in arguments.items() if key not in NOT_OF_THE_EXPERIMENT}
    return ask(data, methods, method=method or {}, out=out, called=called, name=known, **said).written(), out


def refuse_failed(status: ComparisonStatus, out: Path) -> None:
    """Say which runs failed, if some did."""
    if status.failed:
        each = "\n  ".join(f"{job.label}: {cause}" for job, cause in status.failed.items())
        raise TrainingError(
            f"{len(status.failed)} of {len(status.jobs)} runs failed. The others are kept, fedreach.open({str(out)!r}) "
            f"shows them; the same call tries again.\n  {each}"
        )

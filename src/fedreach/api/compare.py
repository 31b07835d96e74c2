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
from fedreach._util.tables import visible_lines
from fedreach.api import terminal
from fedreach.api.comparison import Comparison
from fedreach.data.datasets import Dataset, PartitionSpec
from fedreach.data.federated import FederatedData, Provenance
from fedreach.data.stored import FILE, OwnData, OwnTable, store
from fedreach.experiment.build import Builder
from fedreach.experiment.compare import compare as compare_all
from fedreach.experiment.components import locate_user_errors
from fedreach.experiment.load import checked, name_after
from fedreach.experiment.naming import PickleStore, to_config, to_function_name, to_toml_value
from fedreach.experiment.schema import Data, Experiment
from fedreach.report.concerns import concerns
from fedreach.report.read import seeds_to_detect

# ---- Methods as Python describes them

Part = Any
"""Component: name, table ``{"name": ..., option: value}``, class, instance, or function if the type allows it."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The components of one federated method; the argument `method` of `compare` sets the defaults.

    Each component may be a name from ``fedreach list``, a dictionary with a ``name`` and options, a built-in or custom
    class, or an instance. Some component types also accept a plain function.

    Example:
        >>> from fedreach.federation.selection.losses import PowerOfChoice
        >>> Method(selection=PowerOfChoice(candidates=20), server="adam", local={"lr": 0.05}).cohort_size is None
        True
    """

    selection: Part = None  # client selection; default: uniform
    weighting: Part = None  # aggregation weights; default: by_examples
    solver: Part = None  # local training rule; default: fedavg
    server: Part = None  # server update; default: average
    aggregation: Part = None  # aggregator of client results; default: mean
    loss: Part = None  # training loss; default: cross_entropy, for numeric targets mse
    adaptation: Part = None  # adaptation to unseen clients; default: none
    label_statistics: Part = None  # how the server learns label statistics of clients; default: exact
    allocation: Part = None  # bandwidth allocation, with a radio
    cohort_size: int | Mapping[str, Any] | None = None  # clients per round, or {"as": METHOD} for as many as a method
    local: Mapping[str, Any] | None = None  # changed options of `fedreach.federation.local_sgd.LocalSGD`

    def said(self) -> dict[str, Any]:
        """Return the components and options that are set."""
        return {part.name: value for part in fields(self) if (value := getattr(self, part.name)) is not None}


# ---- From Python arguments to an experiment, with the checks of a TOML file

BASE_METRICS = ["accuracy", "loss"]  # metrics of every experiment
DEFAULT_COHORT_SIZE = 10  # default number of clients per round, if there are that many participants


@dataclass(eq=False)
class ExperimentRequest:
    """An experiment described in Python, with its data and components in memory."""

    experiment: Experiment
    dataset: Dataset | OwnData
    shelf: PickleStore
    out: Path
    base: Path = field(default_factory=Path.cwd)

    def federated(self) -> FederatedData:
        """Return the data of the first seed, which all methods share."""
        with locate_user_errors(self.experiment, self.base):
            return Builder(self.experiment, self.base).compared(self.dataset)

    def written(self) -> ExperimentRequest:
        """Write the files that other processes need: components without names, and custom data."""
        self.shelf.write()
        if self.experiment.data.name != FILE:
            return self
        place = store(self.dataset, self.out / "data")
        data = Data(name=Path(os.path.relpath(place)).as_posix())
        self.experiment = self.experiment.model_copy(update={"data": data})
        return self


def build_request(
    data: FederatedData | PartitionSpec | Dataset,
    methods: Mapping[str, Any] | None,
    *,
    method: Any,
    model: Any,
    metrics: Sequence[Any],
    seeds: int | Sequence[int],
    cohort_size: int | None,
    out: Path,
    function_name: str,
    trackers: Sequence[Any] = (),
    **tables: Any,
) -> ExperimentRequest:
    """Return the experiment that the arguments of a Python function describe.

    Args:
        data: Data of the clients.
        methods: Methods to compare, by name; None for a single method.
        method: Components that all methods share.
        model: Model to train.
        metrics: Additional metrics.
        seeds: Number of seeds, or a list of them.
        cohort_size: Number of clients per round. None: 10, or all participants if there are fewer than 10.
        out: Folder for components and data without names.
        function_name: Name of the calling function, for messages.
        trackers: Trackers of the runs.
        **tables: Other keys of an experiment file. Keys with the value None are ignored.

    Raises:
        ConfigError: If arguments are invalid. The message lists all problems by their keys in an experiment file.
    """
    shelf, origin = PickleStore(out / "parts"), provenance_of(data)
    raw: dict[str, Any] = {key: _to_raw(key, value, shelf) for key, value in tables.items() if value is not None}
    raw |= {key: to_toml_value(table) for key, table in origin.tables.items() if key not in raw}
    raw["partition"] = to_config("partition", origin.tables["partition"], shelf)
    raw["population"] = {**to_toml_value(origin.tables["population"]), **raw.get("population", {})}
    raw["data"] = to_toml_value(getattr(origin.data, "section", None) or {"name": FILE})
    raw["model"] = to_config("model", model, shelf)
    number = to_toml_value(seeds)
    raw["seeds"] = list(range(number)) if isinstance(number, int) and not isinstance(number, bool) else number
    evaluation = raw.get("evaluation", {})
    if isinstance(evaluation, Mapping) and (more := [*_several(evaluation.get("metrics", ())), *_several(metrics)]):
        named = [to_config("metric", metric, shelf) for metric in more]
        named = BASE_METRICS + [metric for metric in named if metric not in BASE_METRICS]
        raw["evaluation"] = {**evaluation, "metrics": named}
    if several := _several(trackers):
        raw["run"] = {"trackers": [to_config("tracker", tracker, shelf) for tracker in several]}
    raw["method"] = _method(method, shelf, function_name, "method")
    if isinstance(origin.data, OwnTable) and not origin.data.num_classes:  # numeric targets
        raw["method"].setdefault("loss", "mse")
    if "cohort_size" not in raw["method"]:
        raw["method"]["cohort_size"] = (
            min(DEFAULT_COHORT_SIZE, _participants(data)) if cohort_size is None else to_toml_value(cohort_size)
        )
    if methods is not None:
        if not isinstance(methods, Mapping) or not methods:
            raise ConfigError(f'{function_name}() needs methods by name, such as {{"fedavg": {{}}}}; got {methods!r}.')
        raw["methods"] = {
            str(name): _method(parts, shelf, function_name, f"methods.{name}") for name, parts in methods.items()
        }
    return ExperimentRequest(checked(raw, Path.cwd(), f"{function_name}()"), origin.data, shelf, out)


def provenance_of(data: FederatedData | PartitionSpec | Dataset) -> Provenance:
    """Return the source of data, and the tables of an experiment that reproduce them."""
    if isinstance(data, Dataset):
        if data.owners is None:
            raise ConfigError(
                f"{data.name} has no natural clients. Divide it among clients, for example with "
                'data.partition("dirichlet_by_class", clients=50, alpha=0.3).'
            )
        data = data.partition("natural")
    if isinstance(data, PartitionSpec):
        return Provenance(data.dataset, data.tables())
    if not isinstance(data, FederatedData):
        raise ConfigError(
            f"data must be FederatedData, or a data set with .partition(...); got {type(data).__name__}. "
            "FederatedData.from_frame, from_torch, from_clients and from_huggingface create FederatedData from your "
            "own data."
        )
    origin = data.by_experiment
    if origin is None:
        raise ConfigError(
            "These FederatedData were changed after they were created, so other seeds and processes cannot create "
            "them again. Pass the result of FederatedData.from_... or .partition(...). For label noise, shifts and "
            "server data, use the arguments `noise`, `shift` and `server_data`."
        )
    return origin


def _participants(data: FederatedData | PartitionSpec | Dataset) -> int:
    """Return the number of participants if it is known before the data are partitioned."""
    if isinstance(data, FederatedData):
        return len(data.population.participants)
    if isinstance(data, PartitionSpec):
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


def _method(method: Any, shelf: PickleStore, function_name: str, where: str) -> dict[str, Any]:
    if isinstance(method, Method):
        method = method.said()
    if not isinstance(method, Mapping):
        raise ConfigError(f"{function_name}(): {where} must be a Method or a dictionary of components; got {method!r}.")
    return {key: _to_raw(key, value, shelf) for key, value in method.items()}


def _several(things: Any) -> Sequence[Any]:
    """Return metrics or trackers as a list; a single one becomes a list."""
    alone = isinstance(things, str | Mapping) or not isinstance(things, Iterable)
    return [things] if alone else list(things)


def _to_raw(key: str, value: Any, shelf: PickleStore) -> Any:
    """Return the value of a key as an experiment file has it."""
    if key in registry.COMPONENT_TYPES:
        return to_config(key, value, shelf)
    if key == "local" and isinstance(value, Mapping) and callable(value.get("schedule")):
        value = {**value, "schedule": to_function_name(value["schedule"], shelf)}
    if key == "population" and isinstance(value, Mapping) and "participation" in value:
        value = {**value, "participation": to_config("participation", value["participation"], shelf)}
    return to_toml_value(value)


# ---- ``fedreach.compare``

Table = Mapping[str, Any] | None
"""A table of an experiment file: options by name; None keeps all defaults."""


def compare(
    data: FederatedData | PartitionSpec | Dataset,
    methods: Mapping[str, Method | Mapping[str, Any]],
    *,
    model: Part = "mlp",
    rounds: int = 50,
    cohort_size: int | None = None,
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
    attack: Part = None,
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
    rerun: Sequence[str] = (),
    progress: bool = True,
) -> Comparison:
    """Train several methods with several seeds, and return the comparison.

    This function corresponds to ``fedreach compare`` with a TOML file. It performs the same checks and writes the same
    run folders. Repeat an interrupted call to resume it. FedReach does not repeat finished runs. It identifies a
    component without a name, such as a lambda, by its code and values. If these change, the comparison is a different
    one.

    Args:
        data: Data of the clients. With custom FederatedData, clients keep their examples for all seeds, and each seed
            draws the participants unless you name them. With a data set and ``partition``, each seed draws a new
            partition.
        methods: Methods by name, each a `Method` or a dictionary of its fields.
        model: Name, ``{"name": ..., option: value}``, module, or function or class that returns a ``torch.nn.Module``.
            A function or class may accept `sample_shape` and `num_classes`. A module is copied. Each seed draws new
            weights, except with ``{"name": module, "keep_weights": True}``.
        rounds: Maximum number of training rounds.
        cohort_size: Number of clients per round. Default: 10, or all participants if there are fewer than 10.
        seeds: Number of seeds (0, 1, ...), or a list of them.
        metrics: Metrics in addition to loss and accuracy (for numeric targets, mean absolute error): names, functions
            ``f(y_true, probabilities) -> float``, or metric objects.
        out: Folder of the comparison. Default: ``runs/NAME``.
        method: Components and options that all methods share.
        local: Options of local training (see `fedreach.federation.local_sgd.LocalSGD`).
        baseline: Method with which the other methods are compared. Default: the first method.
        name: Name in tables and in the HTML report. Default: the name of the folder, or "comparison".
        target_accuracy: Accuracy in [0, 1]. FedReach reports the cost of reaching it. Not available for numeric
            targets.
        population: Options of the table `population`, such as ``{"participation": "always"}``.
        augmentation: Augmentation of training batches: a name, or a function ``f(inputs) -> inputs``.
        noise: Label noise on training data, such as ``{"name": "symmetric", "rate": 0.2}``.
        shift: Distribution shift of unseen clients.
        attack: Attack of malicious participants, such as ``{"name": "sign_flip", "share": 0.1}``.
        server_data: Data of the server, such as ``{"examples": 100}``.
        budget: Limits of a run, such as ``{"megabytes": 100.0}``. A run ends with the round that reaches a limit.
        radio: Channels and devices, from which FedReach simulates seconds and joules.
        engine: Engine that computes training, and its options.
        evaluation: Options of evaluations, such as ``{"every": 10}``.
        statistics: Planned comparisons and their analysis. With ``{"detect_points": 2.0}``, for example, `seeds` are
            the seeds of the pilot.
        tune: Settings from which FedReach chooses the best one for each method, on validation data: ``{"local.lr":
            [0.01, 0.1]}``, or drawn at random: ``{"samples": 20, "local.lr": {"min": 0.001, "max": 1.0, "log":
            True}}``.
        trackers: Trackers of each run: "tensorboard", "mlflow", or a custom `fedreach.Callback`, which is copied for
            each run. Trackers do not affect results.
        workers: Number of processes, which does not affect results.
        add_seeds: Add seeds to existing results. The report then draws no conclusion.
        rerun: Methods whose runs are moved into ``rerun/`` and rerun.
        progress: Show progress on stderr.

    Returns:
        The comparison, as `fedreach.open` returns it later.

    Raises:
        ConfigError: If arguments are invalid. The message lists all problems. FedReach checks arguments before it reads
            or writes data.
        DataError: If the data cannot be used.
        RunFolderError: If `out` contains another comparison.
        TrainingError: If a run failed. The results of other runs are kept.

    Example:
        >>> import tempfile
        >>> import fedreach as fr
        >>> comparison = fr.compare(
        ...     fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8),
        ...     {"uniform": {}, "entropy": fr.Method(weighting="entropy")},
        ...     rounds=2, cohort_size=4, out=tempfile.mkdtemp() + "/digits", progress=False)
        >>> comparison
        Comparison(digits: uniform, entropy; 1 seed)
    """
    arguments = {key: value for key, value in locals().items() if key not in ("data", "methods")}
    comparison = Comparison(run_call(data, methods, "compare", **arguments))
    if progress:
        for sentence in concerns(comparison.analysis.comparison):
            print(visible_lines(f"Warning: {sentence}"), file=sys.stderr)
        comparison.shows_concerns = False
    return comparison


def run_call(
    data: FederatedData | PartitionSpec | Dataset,
    methods: Mapping[str, Method | Mapping[str, Any]],
    function_name: str,
    *,
    out: Path | str | None,
    name: str | None,
    method: Method | Mapping[str, Any] | None,
    workers: int | None,
    add_seeds: bool,
    rerun: Sequence[str],
    progress: bool,
    **tables: Any,
) -> Path:
    """Run the comparison or sweep that the arguments of `compare` describe, and return its folder.

    Raises:
        TrainingError: If a run failed.
    """
    name = name or ("comparison" if out is None else name_after(Path(out), "comparison"))
    out = Path("runs") / name if out is None else Path(out)
    question = build_request(
        data, methods, method=method or {}, out=out, function_name=function_name, name=name, **tables
    ).written()
    with terminal.compare_progress(quiet=not progress) as progress_bar:
        status = compare_all(
            question.experiment,
            out=out,
            base=question.base,
            workers=workers,
            callbacks=[
                terminal.ComparisonStart(question.experiment, question.federated, quiet=not progress),
                *progress_bar,
            ],
            add_seeds=add_seeds,
            rerun=rerun,
            further=seeds_to_detect,
        )
    if status.failed:
        failures = "\n  ".join(f"{job.label}: {cause}" for job, cause in status.failed.items())
        raise TrainingError(
            f"{len(status.failed)} of {len(status.jobs)} runs failed. fedreach.open({str(out)!r}) shows the finished "
            f"runs. Repeat the call to rerun the failed runs.\n  {failures}"
        )
    return out

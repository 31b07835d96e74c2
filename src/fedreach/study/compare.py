"""``fedreach.compare``: methods on the same clients, from Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreach.config.load import named_after
from fedreach.data.datasets import Dataset, Recipe
from fedreach.data.federated import FederatedData
from fedreach.errors import TrainingError
from fedreach.experiments.compare import compare as compare_all
from fedreach.experiments.jobs import ComparisonStatus
from fedreach.report.analysis.concerns import concerns
from fedreach.report.detect import seeds_to_detect
from fedreach.study import terminal
from fedreach.study.method import Method, Part
from fedreach.study.question import PythonStudy, ask
from fedreach.study.study import Study

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

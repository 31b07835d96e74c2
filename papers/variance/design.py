"""A nested design of runs: partitions, participants within each, initial models within these, batches within those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedreach._util.errors import ConfigError, nearest
from fedreach.experiment.components import identity
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import ComparisonStatus, Job, Resources, run_jobs
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import finished_result
from fedreach.runs.schema import Record

Place = tuple[int, int, int, int]
"""Of a run: which partition, which participants of it, which initial model with these, which batches with that."""

MOST = 100  # draws of each


@dataclass(frozen=True)
class Design:
    """How often partitions, participants within each, initial models and batches are drawn.

    Seeds are the place's digits, two each, as far as their part goes: partition 3 has the seed 3, its participants 1
    the seed 301, and so on. So no two draws share a seed, and a larger design holds the runs of a smaller one.

    Example:
        >>> design = Design((2, 2, 2, 2))
        >>> len(list(design.places())), design.seeds((1, 0, 1, 1))
        (16, (1, 100, 10001, 1000101))
    """

    draws: Place

    def __post_init__(self) -> None:
        if not all(2 <= number <= MOST for number in self.draws):
            raise ConfigError(
                "draws must be four numbers from 2 to 100: of partitions, of participants within each, of initial "
                f"models within these and of batches within those; got {','.join(map(str, self.draws))}. What is drawn "
                "once cannot be separated from the next level."
            )

    @property
    def size(self) -> int:
        """Number of places."""
        return prod(self.draws)

    def places(self) -> Iterator[Place]:
        """Yield all places, all of one partition before the next."""
        yield from product(*map(range, self.draws))

    def seeds(self, place: Place) -> Place:
        """Return the seeds of partition, population, model and run."""
        partition, participants, model, batches = place
        population = MOST * partition + participants
        initial = MOST * population + model
        return partition, population, initial, MOST * initial + batches


@dataclass(frozen=True, eq=False, kw_only=True)
class DesignRecord(Record):
    """Two methods on a nested design, see `Design`."""

    FILE = "design.json"

    name: str
    methods: Sequence[str]  # the baseline first
    draws: Sequence[int]  # of partitions, participants within each, initial models within these, batches within those
    seeds: int  # of the comparison that the design is to speak of
    runs: Mapping[str, Mapping[str, str]]  # method -> place, such as "0-1-0-1" -> folder, relative to this one
    config: Mapping[str, Any]


def chosen_methods(experiment: Experiment, named: Sequence[str] = ()) -> tuple[str, str]:
    """Return the two methods whose difference is looked at, the baseline first: those named, or the first two.

    Raises:
        ConfigError: If the experiment lacks two such methods.
    """
    names = list(experiment.methods)
    if len(names) < 2:
        raise ConfigError("A difference needs two methods: the experiment has no two [methods.NAME] tables.")
    baseline = experiment.baseline or names[0]
    first, second = named or (baseline, next(name for name in names if name != baseline))
    for name in (first, second):
        if name not in names:
            raise ConfigError(f"There is no method {name!r} in this experiment." + nearest(name, names))
    if first == second:
        raise ConfigError(f"The two methods must differ; got {first!r} twice.")
    return first, second


def plan(experiment: Experiment, design: Design, methods: Sequence[str], out: Path) -> list[Job]:
    """Return the runs of a design, both methods of one place before the next.

    Raises:
        ConfigError: If the experiment's partition is a file, so that there is nothing to draw.
    """
    if experiment.partition.file is not None:
        raise ConfigError("partition.file holds one partition, and the design draws several. Remove it.")
    return [
        Job(
            method,
            design.seeds(place)[-1],
            _folder(out, method, place),
            drawn_experiment(experiment, design, place, method),
            out,
        )
        for place in design.places()
        for method in methods
    ]


def drawn_experiment(experiment: Experiment, design: Design, place: Place, method: str) -> Experiment:
    """Return the experiment of one run, its partition, participants and initial model pinned by seeds of their own."""
    e = experiment.resolved(method)
    partition, population, model, _ = design.seeds(place)
    return e.model_copy(
        update={
            "partition": e.partition.model_copy(update={"seed": partition}),
            "population": e.population.model_copy(update={"seed": population}),
            "model": e.model.model_copy(update={"seed": model}),
        }
    )


def run_design(
    experiment: Experiment,
    design: Design,
    methods: Sequence[str],
    *,
    out: Path,
    **resources: Any,
) -> ComparisonStatus:
    """Run what is not finished of a design; arguments are those of `fedreach.experiment.compare.compare`.

    A failing run does not stop the others. A folder that cannot be used ends it at once, as all runs are needed.

    Raises:
        RunFolderError: If a folder holds another run or cannot be read, or another process writes to `out`.
        ConfigError: If the experiment cannot be drawn again, or the executor's machines cannot run it.
    """
    status, folder = ComparisonStatus(plan(experiment, design, methods, out)), RunFolder(out)
    how = Resources(out=out, **resources)
    with folder.locked():
        waiting: list[Job] = []
        for job in status.jobs:
            done = finished_result(RunFolder(job.folder), identity(job.experiment, job.seed, job.method, how.base))
            (waiting if done is None else status.finished).append(job)
        status.skipped = len(status.finished)
        folder.write(record(experiment, design, methods, out))
        run_jobs(experiment.engine, waiting, status, how)
    return status


def record(experiment: Experiment, design: Design, methods: Sequence[str], out: Path) -> DesignRecord:
    """Return the record of a design."""
    return DesignRecord(
        name=experiment.name,
        methods=list(methods),
        draws=list(design.draws),
        seeds=len(experiment.seeds),
        runs={
            method: {_name(place): _folder(out, method, place).relative_to(out).as_posix() for place in design.places()}
            for method in methods
        },
        config=experiment.model_dump(mode="json"),
    )


def _name(place: Place) -> str:
    return "-".join(map(str, place))


def _folder(out: Path, method: str, place: Place) -> Path:
    return out / "runs" / method / _name(place)

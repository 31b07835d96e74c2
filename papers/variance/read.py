"""The runs of a nested design -> arrays of what methods are judged by, checked to be the design that they claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.errors import RunFolderError
from fedreach._util.processes import map_forked
from fedreach.evaluation.scores import ACCURACY
from fedreach.report.numbers import RunData
from fedreach.report.read import read_run, without_garbage_collection
from papers.variance.components import Floats, of_sample
from papers.variance.design import DesignRecord

Place = tuple[int, ...]

WINDOW = 3  # evaluated rounds at the end: by more of them, noise that falls during training would be overestimated
COLUMNS = ("unseen_accuracy", "test_accuracy", "participant_accuracy")
"""What methods are judged by: the first that all runs have."""


@dataclass(frozen=True, eq=False)
class DesignResults:
    """Two methods on a nested design of a x b x c x d draws, at the last t evaluated rounds."""

    name: str
    methods: tuple[str, str]  # the baseline first
    draws: tuple[int, ...]  # (a, b, c, d)
    seeds: int  # of the comparison that the decomposition is about
    column: str  # of `COLUMNS`
    rounds: tuple[int, ...]  # (t,), of the first run
    scores: Floats  # (2, a, b, c, d, t), each method's
    sampling: Floats | None  # (3, a): variance of the mean over unseen clients, of the methods and their difference
    unseen: float  # clients, their median number

    @property
    def final(self) -> Floats:
        """What is judged, (3, a, b, c, d): each method at the last round, and the difference to the baseline."""
        return self.with_difference(self.scores[..., -1])

    @staticmethod
    def with_difference(scores: Floats) -> Floats:
        """Return scores (2, ...) of both methods with the second minus the first, (3, ...)."""
        return np.concatenate([scores, scores[1:] - scores[:1]])


@without_garbage_collection()
def read_results(folder: Path, design: DesignRecord) -> DesignResults:
    """Read the runs of a design.

    Args:
        folder: That the places of the design's runs are relative to.
        design: Its record.

    Raises:
        RunFolderError: If a run is not finished, or not the one that the design has at its place: seeds must be shared
            by all runs of a draw and by no others, and both methods must have the same clients.
    """
    draws, methods = tuple(design.draws), (design.methods[0], design.methods[1])
    keys = list(product(methods, product(*map(range, draws))))
    paths = [design.runs[method]["-".join(map(str, place))] for method, place in keys]
    runs = dict(zip(keys, map_forked(lambda path: read_run(folder / path, Path(path).as_posix()), paths), strict=True))
    _check(runs)
    column = next((name for name in COLUMNS if all(np.isfinite(run.column(name)).any() for run in runs.values())), None)
    if column is None and all(run.judged_by is not ACCURACY for run in runs.values()):
        raise RunFolderError(f"{folder} predicts numbers, and the decomposition of variance needs accuracies.")
    if column is None:
        raise RunFolderError(
            f"{folder} has no accuracy that all runs report. Leave some clients unseen, see population.participants."
        )
    evaluated = {
        key: np.flatnonzero(np.isfinite(run.column(column)) & (run.rounds["round"] > 0)) for key, run in runs.items()
    }
    t = min(WINDOW, *(len(rows) for rows in evaluated.values()))
    scores = np.zeros((2, *draws, t))
    for (method, place), run in runs.items():
        scores[(methods.index(method), *place)] = run.column(column)[evaluated[method, place][-t:]]
    first = (methods[0], (0,) * len(draws))
    sampling = _sampling(runs, methods, draws) if column == "unseen_accuracy" else None
    return DesignResults(
        name=design.name,
        methods=methods,
        draws=draws,
        seeds=design.seeds,
        column=column,
        rounds=tuple(runs[first].rounds["round"][evaluated[first][-t:]].astype(int).tolist()),
        scores=scores,
        sampling=sampling,
        unseen=float(np.median([len(run.partition.unseen) for run in runs.values()])),
    )


def _check(runs: Mapping[tuple[str, Place], RunData]) -> None:
    """Refuse runs that are not nested as their places say, or that are not pairs."""
    seeds_by_place: list[dict[Place, int]] = [{}, {}, {}, {}]
    clients: dict[Place, str] = {}
    for (method, place), run in runs.items():
        if run.status != "finished":
            raise RunFolderError(f"{run.path} is {run.status}, and all runs are needed. Run the same command again.")
        if run.method != method:
            raise RunFolderError(f"{run.path} must hold the method {method!r}; it holds {run.method!r}.")
        if clients.setdefault(place[:2], run.partition.hash) != run.partition.hash:
            raise RunFolderError(f"{run.path} has other clients than the runs that it is compared with.")
        for level, seed in enumerate(_seeds(run)):
            if seeds_by_place[level].setdefault(place[: level + 1], seed) != seed:
                raise RunFolderError(f"{run.path} was drawn by other seeds than the runs that it is compared with.")
    if any(len(set(seeds.values())) < len(seeds) for seeds in seeds_by_place):
        raise RunFolderError("Two draws of the design have the same seed, so that they are one. Move the folder away.")


def _seeds(run: RunData) -> tuple[int, int, int, int]:
    config: Mapping[str, Any] = run.config
    pinned = (config.get(table, {}).get("seed") for table in ("partition", "population", "model"))
    partition, population, model = (-1 if seed is None else int(seed) for seed in pinned)
    return partition, population, model, run.seed


def _sampling(runs: Mapping[tuple[str, Place], RunData], methods: tuple[str, str], draws: Place) -> Floats | None:
    """Return the (3, a) variance of a mean over unseen clients, by the spread between clients in each run."""
    variances: list[list[float]] = []
    for place in product(*map(range, draws)):
        baseline, second = (runs[method, place].clients["unseen"] for method in methods)
        if not np.array_equal(baseline.ids, second.ids):
            raise RunFolderError(f"{runs[methods[1], place].path} scores other unseen clients than the baseline.")
        scored = (baseline.score, second.score, second.score - baseline.score)
        variances.append([of_sample(scores) for scores in scored])
    means: Floats = np.array(variances).T.reshape(3, draws[0], -1).mean(axis=2)
    return means if np.isfinite(means).all() else None

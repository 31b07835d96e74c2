"""What a run folder holds, as frozen values.

Rows become one numpy array per column, nan where a round has no such number. Runs that failed, have not
finished or never began are kept and named; `Comparison.counted` says which ones the numbers are from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.evidence.plan import AnalysisPlan
from fedreach.evidence.scores import MainScore, main_score_of
from fedreach.runs.schema import BaselinesRecord, FederationRecord, ServingRecord, TuningRecord

Columns = Mapping[str, Floats]
DECLARED = AnalysisPlan()  # where nothing was


@dataclass(frozen=True)
class RoundsTable:
    """Who was chosen in each round and how much each report counted, laid end to end."""

    chosen_round: Ints  # (total chosen,)
    chosen: Ints  # (total chosen,) client ids
    weight_round: Ints  # (total replies,)
    weight_client: Ints  # (total replies,)
    weight: Floats  # (total replies,)
    metrics: Columns  # what the replies measured -> (total replies,), nan in rounds that did not measure it


@dataclass(frozen=True)
class ClientScores:
    """Every client's score at one evaluation."""

    round: int
    ids: Ints
    score: Floats


@dataclass(frozen=True)
class Run:
    """One federation trained once: one method, one seed."""

    path: str  # as the comparison names it, or the folder's name
    method: str
    seed: int
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    git: Mapping[str, Any]
    partition: FederationRecord
    rounds: Columns  # column -> (rounds,)
    theory: Columns  # term, see `theory.TERMS` -> (rounds,), nan where it cannot be said
    airtime: Columns  # part, see `airtime.PARTS` -> (rounds,) mean over the chosen clients; empty without radio
    replies: RoundsTable
    clients: Mapping[str, ClientScores]  # population -> scores at its last evaluation
    timing: Columns
    status: str  # "finished", "failed" or "unfinished"
    best_round: int | None
    error: str | None
    refit_rounds: int | None = None  # on all rows, for the model that is handed on; None: that was not asked for
    refused: tuple[tuple[int, str, str], ...] = ()  # round, "client 3" or "node 7", what it said that cannot be
    serving: ServingRecord | None = None  # where the method has a rule, and the run is finished
    baselines: BaselinesRecord | None = None  # of its federation, where the run is finished and the simulator's

    def column(self, name: str) -> Floats:
        """Return a column of the rounds; all nan if this run has no such column."""
        found = self.rounds.get(name)
        return found if found is not None else np.full(len(self.rounds["round"]), np.nan)

    def main_column(self, population: str) -> Floats:
        """Return what the main score of a population is in each round."""
        return self.column(f"{population}_{self.judged_by.name}")

    @property
    def evaluated(self) -> Ints:
        """The rows of evaluated rounds: those that say how participants do; if none does, those that say of others."""
        for populations in (("id",), ("unseen", "test", "train")):
            known = [np.isfinite(self.main_column(population)) for population in populations]
            if np.any(known):
                return np.flatnonzero(np.any(known, axis=0))
        return np.empty(0, np.int64)

    @property
    def judged_by(self) -> MainScore:
        """The score that stands in its rows."""
        return main_score_of(self.rounds)

    @property
    def last_round(self) -> int:
        """The last round that was written; -1 if none was."""
        return int(self.rounds["round"][-1]) if len(self.rounds["round"]) else -1


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same federation, over several seeds; a single run is the smallest one."""

    name: str
    baseline: str
    target_accuracy: float | None
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    absent: tuple[tuple[str, int], ...]  # (method, seed) that the comparison names but that never began
    config: Mapping[str, Any]
    plan: AnalysisPlan = DECLARED  # which differences are judged, and how
    pilot: tuple[int, ...] | None = None  # the seeds whose spread gave the number of seeds, where it was not declared
    looks: tuple[int, ...] = ()  # numbers of seeds declared before, whose results could be seen when seeds were added
    lengths: tuple[int, ...] = ()  # rounds of its runs before these were made longer
    tuning: TuningRecord | None = None  # which setting each method was given, where that was chosen
    labels: tuple[str, ...] = ()  # of the comparisons that it is made of; empty where it is one
    differs: tuple[tuple[str, tuple[str, ...]], ...] = ()  # option -> what each of these says

    @property
    def provisional(self) -> bool:
        """Whether no run has finished, so that the numbers are those of runs under way."""
        return not any(run.status == "finished" for run in self.runs)

    def counted(self, method: str) -> tuple[Run, ...]:
        """Return the runs of a method that its numbers are from: the finished ones, by seed.

        While no run of the whole comparison has finished, all runs with an evaluated round count.
        """
        runs = [r for r in self.runs if r.method == method and len(r.evaluated)]
        return tuple(r for r in runs if self.provisional or r.status == "finished")

    @property
    def all_counted(self) -> tuple[Run, ...]:
        """All counted runs, method by method."""
        return tuple(run for method in self.methods for run in self.counted(method))

    @property
    def primary(self) -> str:
        """The column that methods are judged by: unseen clients, else the test set, else participants."""
        for name in (f"unseen_{self.score.name}", f"test_{self.score.name}"):
            if any(np.isfinite(run.column(name)).any() for run in self.all_counted):
                return name
        return self.seen

    @property
    def seen(self) -> str:
        """The column of participants' held-out data."""
        return f"id_{self.score.name}"

    @property
    def score(self) -> MainScore:
        """What methods are judged by."""
        return main_score_of(name for run in self.runs for name in run.rounds)

    @property
    def margin(self) -> float | None:
        """Within which methods are as good as equal; of errors none is declared, as their unit is the data's."""
        return self.plan.margin if self.score.percent else None

    @property
    def radio(self) -> bool:
        """Whether any counted run tells the simulated seconds and joules of its rounds."""
        return any(np.isfinite(run.column("seconds_total")).any() for run in self.all_counted)

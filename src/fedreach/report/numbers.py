"""Text of numbers in tables, and the classes of runs and comparisons that were read."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.evaluation.scores import ACCURACY, MainScore, main_score_of
from fedreach.evaluation.statistics import AnalysisPlan, PairedTest, Spread
from fedreach.runs.schema import AdaptationRecord, BaselinesRecord, FederationRecord, TuningRecord

# ---- Captions

TEMPLATES = Path(__file__).with_name("templates")
CAPTIONS: dict[str, dict[str, str]] = tomllib.loads((TEMPLATES / "captions.toml").read_text(encoding="utf-8"))
"""Titles and captions of figures, and explanations of tables, by name."""

# ---- Formatted numbers

ABSENT = "-"
SEVERAL_HOURS = 7200.0  # seconds from which times are shown in hours


@dataclass(frozen=True)
class Unit:
    """A unit of time or energy."""

    name: str
    size: float = 1.0  # in seconds or joules

    def text(self, value: float) -> str:
        """Return a value in seconds or joules with this unit.

        Example:
            >>> Unit("kJ", 1000.0).text(53210.0)
            '53.2 kJ'
        """
        return f"{number(value / self.size)} {self.name}"


def number(value: float | None) -> str:
    """Return a number with three significant digits, or with all digits before the point.

    Example:
        >>> number(0.03127), number(312.6), number(999.7), number(12345.6), number(None)
        ('0.0313', '313', '1,000', '12,346', '-')
    """
    if value is None:
        return ABSENT
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def unit_of(quantity: str, values: Iterable[float | None]) -> Unit:
    """Return the unit for ``"seconds"`` or ``"joules"`` that suits the median of the values.

    Example:
        >>> unit_of("seconds", [311.0]).text(311.0), unit_of("seconds", [7560.0]).text(7560.0)
        ('311 s', '2.1 h')
    """
    finite = [value for value in values if value is not None and np.isfinite(value)]
    middle = float(np.median(finite)) if finite else 0.0
    if quantity == "seconds":
        return Unit("h", 3600.0) if middle >= SEVERAL_HOURS else Unit("s")
    return Unit("kJ", 1000.0) if middle >= 1000.0 else Unit("J")


def with_unit(quantity: str, value: float) -> str:
    """Return a number of seconds or joules in a suitable unit.

    Example:
        >>> with_unit("seconds", 3599.0), with_unit("joules", 1234.0)
        ('3,599 s', '1.23 kJ')
    """
    return unit_of(quantity, [value]).text(value)


def plus_minus(spread: Spread, places: int, scale: float = 1.0) -> str:
    """Return a mean, with its standard deviation if available.

    Example:
        >>> plus_minus(Spread(5, 0.7134, 0.0081, 0.70, 0.73), 3)
        '0.713 ± 0.008'
    """
    if spread.mean is None:
        return ABSENT
    return f"{scale * spread.mean:.{places}f}" + (f" ± {scale * spread.sd:.{places}f}" if spread.sd is not None else "")


def percent(spread: Spread, by: MainScore = ACCURACY) -> str:
    """Return the spread of a fraction in percent, such as ``"71.3 ± 0.8"``, or of an error in its own unit.

    Example:
        >>> percent(Spread(5, 0.7134, 0.0081, 0.70, 0.73))
        '71.3 ± 0.8'
    """
    return ABSENT if spread.mean is None else by.spread(spread.mean, spread.sd)


def points(value: float, *, sign: bool = False, by: MainScore = ACCURACY) -> str:
    """Return a difference of fractions in percentage points, or of errors in their own unit, with a true minus sign.

    Example:
        >>> points(-0.021), points(0.021, sign=True), points(-0.0001, sign=True)
        ('−2.1', '+2.1', '0.0')
    """
    return by.number(value, sign=sign)


def interval(low: float | None, high: float | None, *, sign: bool = False, by: MainScore = ACCURACY) -> str:
    """Return `` [low, high]``, formatted like `points`; empty without an interval."""
    if low is None or high is None:
        return ""
    return f" [{points(low, sign=sign, by=by)}, {points(high, sign=sign, by=by)}]"


def estimate(judged: PairedTest | None, by: MainScore = ACCURACY) -> str:
    """Return a difference with its CI, formatted like `points` with signs, and a star if it is significant.

    Example:
        >>> estimate(PairedTest(20, 0.021, 0.004, 0.038, conclusion="better")), estimate(None)
        ('+2.1 [+0.4, +3.8]*', '-')
    """
    if judged is None or judged.estimate is None:
        return ABSENT
    limits = interval(judged.low, judged.high, sign=True, by=by)
    return points(judged.estimate, sign=True, by=by) + limits + _star(judged)


def _star(judged: PairedTest) -> str:
    return "*" * (judged.conclusion in ("better", "worse"))


def nats(change: PairedTest) -> str:
    """Return a change in nats, with its confidence interval if available.

    Example:
        >>> nats(PairedTest(50, -0.0049, -0.0106, 0.0004)), nats(PairedTest(1, 0.0117))
        ('−0.005 [−0.011, 0.000]', '+0.012')
    """
    if change.estimate is None:
        return ABSENT
    middle, *ends = (
        "0.000" if float(text) == 0 else text.replace("-", "−")
        for text in (f"{value:+.3f}" for value in (change.estimate, change.low, change.high) if value is not None)
    )
    return (f"{middle} [{', '.join(ends)}]" if ends else middle) + _star(change)


def p_text(value: float | None) -> str:
    """Return a p-value for a table cell."""
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def detectable(judged: PairedTest, by: MainScore = ACCURACY) -> str:
    """Return the minimum detectable effect, formatted like `points`."""
    return ABSENT if judged.mde is None else points(judged.mde, by=by)


def conclusion(judged: PairedTest) -> str:
    """Return the conclusion; if it is inconclusive, add the number of seeds that would be needed, and its limit.

    Example:
        >>> conclusion(PairedTest(20, 0.01, conclusion="inconclusive", seeds_needed=143, seeds_needed_high=390))
        'inconclusive (~143, at most 390)'
    """
    if judged.seeds_needed is None:
        return judged.conclusion or ABSENT
    limit = "no limit" if judged.seeds_needed_high is None else f"at most {number(judged.seeds_needed_high)}"
    return f"{judged.conclusion} (~{number(judged.seeds_needed)}, {limit})"


# ---- Runs and comparisons as read
# Rows become one array per column, nan where a round has no such number. Runs that failed or have not finished are
# kept and named; `RunSet.counted` returns those that count.

Columns = Mapping[str, Floats]
DEFAULT_PLAN = AnalysisPlan()  # default plan


@dataclass(frozen=True)
class RoundsTable:
    """The cohort of each round and the weight of each reply, concatenated over rounds."""

    chosen_round: Ints  # (total chosen,)
    chosen: Ints  # (total chosen,) client ids
    weight_round: Ints  # (total replies,)
    weight_client: Ints  # (total replies,)
    weight: Floats  # (total replies,)
    metrics: Columns  # measurement of the replies -> (total replies,), nan in rounds without it


@dataclass(frozen=True)
class ClientScores:
    """The score of each client at one evaluation."""

    round: int
    ids: Ints
    score: Floats


@dataclass(frozen=True)
class RunData:
    """One run of one method with one seed."""

    path: str  # within the comparison's folder, or the folder's name
    method: str
    seed: int
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    git: Mapping[str, Any]
    partition: FederationRecord
    rounds: Columns  # column -> (rounds,)
    theory: Columns  # term, see `theory.TERMS` -> (rounds,), nan where it is undefined
    airtime: Columns  # part, see `airtime.PARTS` -> (rounds,) mean over the chosen clients; empty without radio
    replies: RoundsTable
    clients: Mapping[str, ClientScores]  # population -> scores at its last evaluation
    timing: Columns
    status: str  # "finished", "failed" or "unfinished"
    best_round: int | None
    error: str | None
    refit_rounds: int | None = None  # rounds on all rows for the exported model; None: no refit
    privacy: str = ""  # statement on differential privacy; empty without it
    refused: tuple[tuple[int, str, str], ...] = ()  # round, "client 3" or "node 7", reason for rejecting its reply
    adaptation: AdaptationRecord | None = None  # if the method has an adaptation rule and the run is finished
    baselines: BaselinesRecord | None = None  # of its federation, if the run is finished and simulated
    learned: Sequence[Mapping[str, str]] = ()  # what the server learns about clients; empty in older folders

    def column(self, name: str) -> Floats:
        """Return a column of the rounds; all values are nan if the run lacks the column."""
        values = self.rounds.get(name)
        return values if values is not None else np.full(len(self.rounds["round"]), np.nan)

    def main_column(self, population: str) -> Floats:
        """Return the main score of a population in each round."""
        return self.column(f"{population}_{self.judged_by.name}")

    @property
    def evaluated(self) -> Ints:
        """Rows of evaluated rounds: rows with a score on participants or, if no row has one, on other populations."""
        for populations in (("participant",), ("unseen", "test", "train")):
            measured = [np.isfinite(self.main_column(population)) for population in populations]
            if np.any(measured):
                return np.flatnonzero(np.any(measured, axis=0))
        return np.empty(0, np.int64)

    @property
    def judged_by(self) -> MainScore:
        """The main score of the rows."""
        return main_score_of(self.rounds)

    @property
    def last_round(self) -> int:
        """The last stored round; -1 if none is stored."""
        return int(self.rounds["round"][-1]) if len(self.rounds["round"]) else -1


@dataclass(frozen=True)
class RunSet:
    """Several methods on the same federation with several seeds; a single run is the smallest case."""

    name: str
    baseline: str
    target_accuracy: float | None
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[RunData, ...]
    absent: tuple[tuple[str, int], ...]  # (method, seed) of runs that have not started
    config: Mapping[str, Any]
    plan: AnalysisPlan = DEFAULT_PLAN  # planned comparisons, and how they are tested
    pilot: tuple[int, ...] | None = None  # seeds whose spread gave the number of seeds; None if that was declared
    looks: tuple[int, ...] = ()  # earlier numbers of seeds, whose results could be seen when seeds were added
    lengths: tuple[int, ...] = ()  # earlier numbers of rounds, before the runs were extended
    tuning: TuningRecord | None = None  # tuned settings of each method
    labels: tuple[str, ...] = ()  # names of the comparisons that were merged; empty for a single one
    differs: tuple[tuple[str, tuple[str, ...]], ...] = ()  # option -> its value in each merged comparison

    @property
    def provisional(self) -> bool:
        """Whether no run has finished, so that unfinished runs count."""
        return not any(run.status == "finished" for run in self.runs)

    def counted(self, method: str) -> tuple[RunData, ...]:
        """Return the runs of a method that count, by seed; these are the finished runs.

        If no run of the comparison has finished, all runs with an evaluated round count.
        """
        runs = [r for r in self.runs if r.method == method and len(r.evaluated)]
        return tuple(r for r in runs if self.provisional or r.status == "finished")

    @property
    def all_counted(self) -> tuple[RunData, ...]:
        """All counted runs, method by method."""
        return tuple(run for method in self.methods for run in self.counted(method))

    @property
    def primary(self) -> str:
        """Column of the primary score: on unseen clients, else on the test set, else on participants."""
        for name in (f"unseen_{self.score.name}", f"test_{self.score.name}"):
            if any(np.isfinite(run.column(name)).any() for run in self.all_counted):
                return name
        return self.seen

    @property
    def seen(self) -> str:
        """Column of the score on participants' held-out data."""
        return f"participant_{self.score.name}"

    @property
    def score(self) -> MainScore:
        """The score by which methods are compared."""
        return main_score_of(name for run in self.runs for name in run.rounds)

    @property
    def margin(self) -> float | None:
        """Equivalence margin; None for errors, whose unit depends on the data."""
        return self.plan.margin if self.score.percent else None

    @property
    def radio(self) -> bool:
        """Whether any counted run contains simulated seconds and joules."""
        return any(np.isfinite(run.column("seconds_total")).any() for run in self.all_counted)

"""Summaries, results and progress on the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedreach._util.tables import visible, visible_lines
from fedreach._util.text_tables import text_table
from fedreach.data.assignment import statistics
from fedreach.data.federated import FederatedData
from fedreach.evaluation.scores import is_evaluated, main_score_of
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import ComparisonCallback, ComparisonStatus, Job
from fedreach.report.analysis import POPULATION, baseline_title, baselines_of, probabilities
from fedreach.report.numbers import RunSet
from fedreach.report.tables import join_sentences, probabilities_note, refit_sentence
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing

if TYPE_CHECKING:
    from fedreach._util.progress import Add, Bar


C = TypeVar("C")
ALL_RUNS = "all runs"
MAX_COLUMNS = 20  # most columns of a table that are listed


def clock(seconds: float | None) -> str:
    """Return a duration as hours, minutes and seconds.

    Example:
        >>> clock(75), clock(4000), clock(None)
        ('1:15', '1:06:40', '-:--')
    """
    if seconds is None:
        return "-:--"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"


def score_text(row: Mapping[str, Any], population: str) -> str:
    """Return the main score of a population with its unit, or a dash if the row does not have it."""
    score = main_score_of(row)
    return score.shown(row.get(f"{population}_{score.name}"))


def summary(experiment: Experiment, data: FederatedData) -> str:
    """Return a summary of the federation, which is shown before the first round."""
    d, population = data.dataset, data.population
    sizes = data.partition.sizes
    mixed = ""
    if d.example_classes:
        effective = statistics(data.partition, d.train_y, d.num_classes).summary()["effective_classes"]
        mixed = f", {effective['median']:.1f} effective classes (median)"
    lines = [
        f"{experiment.name}: {d.name}, {len(d.train_y)} samples, {d.targets}" + (f" ({d.notes})" if d.notes else ""),
        f"  {data.num_clients} clients by {data.partition.kind}: {sizes.min()} to {sizes.max()} samples "
        f"(median {int(sorted(sizes)[len(sizes) // 2])}){mixed}",
        f"  {len(population.participants)} take part, {len(population.unseen)} never train; "
        f"{experiment.population.held_out:.0%} of each participant's samples are held out",
        *_held_out(data),
    ]
    if experiment.population.refit:
        lines.append("  once it is scored, it trains again on all of their samples, for as many rounds as the best one")
    if d.target_scale is not None:
        lines += [f"  {line}" for line in d.target_scale.lines(d.target_names)]
    if data.server is not None:
        origin = ", taken from the training data of all clients" if data.taken_by_server().any() else " of its own"
        lines.append(f"  the server holds {len(data.server.y)} samples{origin}")
    if data.noise:
        lines.append(f"  label noise: {data.noise['num_changed']} training labels are wrong ({data.noise['kind']})")
    if data.shift is not None:
        who = f"{len(data.shift.clients)} of the {len(population.unseen)} that never train"
        lines.append(f"  shift: {who} hold other data ({data.shift.record['kind']})")
    empty = np.flatnonzero(np.bincount(d.train_y, minlength=d.num_classes) == 0) if d.example_classes else np.empty(0)
    if empty.size:
        which = ", ".join(map(str, empty[:10])) + (", ..." if empty.size > 10 else "")
        lines.append(
            f"  note: no training sample is of class {which} (of 0 to {d.num_classes - 1}). "
            "If that is not meant, number the labels 0, 1, ... without gaps"
        )
    if experiment.methods:
        runs, settings = len(experiment.methods) * len(experiment.seeds), ""
        if experiment.sweep is not None:
            number = len(experiment.sweep.settings())
            runs, settings = runs * number, f" x {number} settings of {', '.join(experiment.sweep.values)}"
        lines.append(
            f"  {len(experiment.methods)} methods x {len(experiment.seeds)} seeds{settings} = {runs} runs of "
            f"{experiment.rounds} rounds; federation {data.digest()[:12]} (seed {experiment.seeds[0]})"
        )
    return "\n".join(map(visible, lines))


def _held_out(data: FederatedData) -> list[str]:
    """Return lines on held-out examples: how they are chosen, and which clients have none."""
    participants = data.population.participants
    held_out_sizes, trained = data.held_out.sizes[participants], data.train.sizes[participants]
    lines, nothing = [], participants[held_out_sizes == 0]
    if str(data.together) and held_out_sizes.any():
        low, high = (
            f"{share:.0%}"
            for share in np.sort((held_out_sizes / (held_out_sizes + trained))[held_out_sizes > 0])[[0, -1]]
        )
        shares = low if low == high else f"{low} to {high}"
        lines.append(f"  held out: {data.together}; that is {shares} of the samples of who holds some out")
    inputs = () if data.schema is None else tuple(column.name for column in data.schema.used)
    if data.together.time in inputs:
        lines.append(f"  {data.together.time!r} is an input, too; data.columns.drop leaves it out")
    if len(nothing):
        who = ", ".join(data.name_of(client) for client in nothing[:5].tolist()) + ", ..." * (len(nothing) > 5)
        verbs = ("holds", "trains", "is") if len(nothing) == 1 else ("hold", "train", "are")
        why = "its rows belong together, or are too few" if str(data.together) else "one sample is not parted"
        lines.append(f"  note: {who} {verbs[0]} nothing out ({why}), {verbs[1]} and {verbs[2]} not tested")
    if len(nothing) == len(participants):
        lines.append("  note: no participant holds anything out: what is told of participants is not known")
    return lines


def columns(data: FederatedData) -> list[str]:
    """Return a line for each prepared column of a table; empty for other data."""
    if data.schema is None:
        return []
    more = len(data.schema.columns) > MAX_COLUMNS
    return [
        *(f"  {line}" for line in data.schema.lines(MAX_COLUMNS)),
        *["  (all of them: federation.json in the folder of a run, and the page of a comparison)"] * more,
    ]


def last_evaluation(folder: Path) -> dict[str, Any]:
    """Return the last evaluated row of a run folder."""
    backwards = map(json.loads, reversed(RunFolder(folder).kept_text(RoundRow.FILE).splitlines()))
    last: dict[str, Any] = next(backwards)
    return next((row for row in chain([last], backwards) if is_evaluated(row)), last)


def baselines_table(run: RunSet, last: Mapping[str, Any], width: int) -> str:
    """Return a table of a run's last evaluation and its baselines; empty without baselines.

    Args:
        run: RunSet of the single run, as read by `fedreach.report.read.read`.
        last: Last evaluated row, see `last_evaluation`.
        width: Width of the table in letters.
    """
    records, by = baselines_of(run), main_score_of(last).name
    if not records:
        return ""
    rows = {"this model": last} | {baseline_title(name, run): columns for name, columns in records[0].columns.items()}
    scores = {quantity.head: column.removesuffix(f"_{by}") for column, quantity in POPULATION.items() if column in last}
    scores = {head: population for head, population in scores.items() if not population.endswith("_worst_decile")}
    heads = {"auroc": "AUROC", "log_loss": "log loss"}
    numbers = {heads[name]: column for name, column in probabilities(run).items() if column in last}
    cells = [
        [
            name,
            *(score_text(row, population) for population in scores.values()),
            *(f"{row[column]:.3f}" if column in row else "-" for column in numbers.values()),
        ]
        for name, row in rows.items()
    ]
    return text_table(["", *scores, *numbers], cells, width, note=probabilities_note(run))


def outcome_sentence(row: Mapping[str, Any], result: Result) -> str:
    """Return the outcome of a run in one sentence."""
    gap, score = row.get("participation_gap"), main_score_of(row)
    best = f"Best held-out loss in round {result.best_round}"
    if result.best_round is None:
        best = "Which round is the best is not known: no participant holds anything out"
    points = "-" if gap is None else f"{score.number(gap, sign=True)}{score.points}"
    prefix = "" if score.percent else f"{score.words}, less is better: "
    refit = "" if result.refit is None else refit_sentence([result.refit["rounds"]])
    return join_sentences(
        f"Round {row['round']}: {prefix}participants {score_text(row, 'participant')}, "
        f"unseen clients {score_text(row, 'unseen')}, gap {points}, test set {score_text(row, 'test')}, "
        f"{row['bytes_total'] / 1e6:.1f} MB. {best}.",
        refit,
    )


class RunProgress(Callback):
    """Progress of a run on stderr: a summary, then a bar on a terminal or one line per evaluation in a log."""

    def __init__(self, experiment: Experiment, folder: Path, add: Add | None) -> None:
        self.experiment, self.folder = experiment, folder
        self.add = add
        self.bar = None if add is None else add("rounds", total=experiment.rounds)
        self.refit_began: tuple[float, int] | None = None  # time and round
        self.refit_bar: Bar | None = None
        self.lost: set[int] = set()  # clients whose loss was shown once; rows name them in every round
        self.training: list[float] = []  # seconds of rounds and evaluations in this process
        self.evaluating: list[float] = []

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        assert data is not None  # only runs of this process are shown
        self.name_of = data.name_of
        lines = summary(self.experiment.model_copy(update={"seeds": [run.seed]}), data), *columns(data)
        print(*lines, *engine.splitlines()[1:], sep="\n", file=sys.stderr)
        print(f"  {self.experiment.rounds} rounds into {self.folder}", file=sys.stderr, flush=True)
        self.began = time.monotonic()

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """Show progress, the evaluation of the round, and clients that are lost for the first time."""
        rounds, scores = self.experiment.rounds, row.evaluated
        self.training.append(timing.train_seconds or 0.0)
        remaining = clock((time.monotonic() - self.began) / len(self.training) * (rounds - row.round))
        if self.bar is not None:
            self.bar.show(row.round, rounds, f"{remaining} left")
        if f"participant_{main_score_of(scores).name}" in scores:
            self.evaluating.append(timing.evaluate_seconds or 0.0)
            line = (
                f"round {row.round}/{rounds}  participants {score_text(scores, 'participant'):>7}  unseen "
                f"{score_text(scores, 'unseen'):>7}  test {score_text(scores, 'test'):>7}  "
                f"{fmean(self.training):.3f} s/round + {fmean(self.evaluating):.3f} s/evaluation  {remaining} left"
            )
            _line(line)
        for client, cause in lost.items():
            if client not in self.lost:
                _line(f"round {row.round}: client {self.name_of(client)} does not count: {cause}")
        self.lost.update(lost)

    def refit_round(self, round_: int, rounds: int) -> None:
        """Show a bar of the refit on a terminal, else one line."""
        if self.refit_began is None:
            self.refit_began = time.monotonic(), round_  # after round 0, unless it is resumed
            if self.add is None:
                _line(f"training again on all rows, {rounds} rounds")
            else:
                self.refit_bar = self.add("refit ", total=rounds, leave=False)
        if self.refit_bar is not None:
            began, first = self.refit_began
            seconds = (time.monotonic() - began) / (round_ - first) * (rounds - round_) if round_ > first else None
            self.refit_bar.show(round_, rounds, f"{clock(seconds)} left")


@contextmanager
def _shown(callback: Callable[[Add | None], C], *, quiet: bool) -> Iterator[list[C]]:
    """Provide the callback, made with the function that adds a bar on a terminal; none if `quiet`."""
    if quiet:
        yield []
    elif not sys.stderr.isatty():
        yield [callback(None)]
    else:
        from fedreach._util.progress import progress_bars

        with progress_bars() as add:
            yield [callback(add)]


def run_progress(experiment: Experiment, folder: Path, *, quiet: bool) -> AbstractContextManager[list[RunProgress]]:
    """Provide the callbacks that show the progress of a run."""
    return _shown(partial(RunProgress, experiment, folder), quiet=quiet)


class ComparisonStart(ComparisonCallback):
    """Shows a summary before the first run, and loads the data so that errors in them come first."""

    def __init__(
        self, experiment: Experiment, federated: Callable[[], FederatedData], *, quiet: bool, trains_here: bool = True
    ) -> None:
        self.experiment, self.federated, self.quiet = experiment, federated, quiet
        self.begun = False  # a pilot or tuning begins before the comparison itself
        self.here = trains_here  # False on a machine that only starts runs on a cluster, which may lack a GPU

    def begin(self) -> None:
        from fedreach.engines.batches import checked_device

        if self.begun:
            return
        self.begun = True
        if self.here:
            checked_device(self.experiment.engine.device)
        data = self.federated()
        if not self.quiet:
            print(summary(self.experiment, data), *columns(data), sep="\n", file=sys.stderr, flush=True)


class ComparisonProgress(ComparisonCallback):
    """Progress of a comparison: a bar for all runs and one for each current run; in a log, a line per finished run."""

    def __init__(self, add: Add | None) -> None:
        self.add = add
        self.whole = None if add is None else add(ALL_RUNS, total=None)
        self.bars: dict[Job, Bar] = {}

    def update(self, status: ComparisonStatus) -> None:
        if self.add is not None:
            self._draw(self.add, status)
        if status.skipped and status.ended is None and not status.running and not status.fresh_rounds:
            _line(f"[{status.skipped}/{len(status.jobs)}] runs were finished before and are not repeated")
        if status.ended is not None:
            if status.ended in self.bars:
                self.bars.pop(status.ended).close()
            _line(_ending(status, status.ended))

    def _draw(self, add: Add, status: ComparisonStatus) -> None:
        assert self.whole is not None
        total = status.fresh_rounds + status.rounds_left
        self.whole.show(status.fresh_rounds, total, f"{clock(status.seconds_left)} left")
        for job, round_ in status.running.items():
            if job not in self.bars:
                longest = max(len(visible(label)) for label in (ALL_RUNS, *(job.label for job in status.jobs)))
                self.whole.rename(ALL_RUNS.ljust(longest))
                self.bars[job] = add(visible(job.label).ljust(longest), total=job.rounds, leave=False)
            if job in status.refitting:
                refit_round, refit_rounds = status.refitting[job]
                self.bars[job].show(refit_round, refit_rounds, "training again on all rows")
            else:
                self.bars[job].show(round_, job.rounds, _scores(status.latest.get(job, {})))

    def planned(self, why: str) -> None:
        _line(why)


def compare_progress(*, quiet: bool) -> AbstractContextManager[list[ComparisonProgress]]:
    """Provide the callbacks that show the progress of a comparison."""
    return _shown(ComparisonProgress, quiet=quiet)


def _ending(status: ComparisonStatus, job: Job) -> str:
    count = f"[{len(status.finished) + len(status.failed)}/{len(status.jobs)}]"
    if job in status.failed:
        return f"{count} {job.label}: FAILED: {status.failed[job]}"
    elapsed = clock(time.monotonic() - status.began)
    outcome = _scores(status.latest.get(job, {})) or _without_rounds(status, job)
    return f"{count} {job.label}: {outcome}  ({elapsed}, {clock(status.seconds_left)} left)"


def _without_rounds(status: ComparisonStatus, job: Job) -> str:
    """Return the outcome of a job that did not run any round itself."""
    twin = status.twin(job)
    if twin is None or twin is job:  # it stopped after its last round
        return "no round was left to run"
    scores = _scores(status.latest.get(twin, {}))
    return f"adapted, trained as {twin.method}" + (f" ({scores})" if scores else "")


def _scores(row: Mapping[str, Any]) -> str:
    if not row:
        return ""
    return f"participants {score_text(row, 'participant')}, unseen {score_text(row, 'unseen')}"


def _line(line: str) -> None:
    print(visible_lines(line), file=sys.stderr, flush=True)

"""Results on the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach._util.tables import text_table, visible, visible_lines
from fedreach.data.assignment import statistics
from fedreach.data.federated import FederatedData
from fedreach.evaluation.scores import is_evaluated, main_score_of
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import ComparisonCallback, ComparisonStatus, Job
from fedreach.report.analysis import POPULATION, baselines_of, probabilities, title
from fedreach.report.numbers import Comparison
from fedreach.report.tables import join_sentences, probabilities_note, refit_said
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing

if TYPE_CHECKING:
    from fedreach._util.progress import Add, Bar


WHOLE = "all runs"
MOST_COLUMNS = 20  # of a table, which have a line each
ESTIMATE_SECONDS = 10.0  # of rounds, by which a log says how long it will take


def clock(seconds: float | None) -> str:
    """Return a duration as people write it.

    Example:
        >>> clock(75), clock(4000), clock(None)
        ('1:15', '1:06:40', '-:--')
    """
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def shown(row: Mapping[str, Any], population: str) -> str:
    """Return the main score of a population with its unit, or a dash where the row has none."""
    score = main_score_of(row)
    return score.shown(row.get(f"{population}_{score.name}"))


def summary(experiment: Experiment, data: FederatedData) -> str:
    """Return the federation in a few lines, as it is shown before the first round."""
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
        taken = ", taken from the training data of all clients" if data.taken_by_server().any() else " of its own"
        lines.append(f"  the server holds {len(data.server.y)} samples{taken}")
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
    """Return what is to be told of held-out samples: which they are, and who has none."""
    own = data.population.participants
    held, trained = data.held_out.sizes[own], data.train.sizes[own]
    lines, nothing = [], own[held == 0]
    if str(data.together) and held.any():
        least, most = (f"{each:.0%}" for each in np.sort((held / (held + trained))[held > 0])[[0, -1]])
        shares = least if least == most else f"{least} to {most}"
        lines.append(f"  held out: {data.together}; that is {shares} of the samples of who holds some out")
    inputs = () if data.schema is None else tuple(column.name for column in data.schema.used)
    if data.together.time in inputs:
        lines.append(f"  {data.together.time!r} is an input, too; data.columns.drop leaves it out")
    if len(nothing):
        who = ", ".join(data.name_of(client) for client in nothing[:5].tolist()) + ", ..." * (len(nothing) > 5)
        verbs = ("holds", "trains", "is") if len(nothing) == 1 else ("hold", "train", "are")
        why = "its rows belong together, or are too few" if str(data.together) else "one sample is not parted"
        lines.append(f"  note: {who} {verbs[0]} nothing out ({why}), {verbs[1]} and {verbs[2]} not tested")
    if len(nothing) == len(own):
        lines.append("  note: no participant holds anything out: what is told of participants is not known")
    return lines


def columns(data: FederatedData) -> list[str]:
    """Return a line for each column of a table, as it was prepared; none where the samples are no rows of one."""
    if data.schema is None:
        return []
    more = len(data.schema.columns) > MOST_COLUMNS
    return [
        *(f"  {line}" for line in data.schema.lines(MOST_COLUMNS)),
        *["  (all of them: federation.json in the folder of a run, and the page of a comparison)"] * more,
    ]


def last_evaluation(folder: Path) -> dict[str, Any]:
    """Return the last evaluated row of a run folder."""
    backwards = map(json.loads, reversed(RunFolder(folder).kept_text(RoundRow.FILE).splitlines()))
    last: dict[str, Any] = next(backwards)
    return next((row for row in chain([last], backwards) if is_evaluated(row)), last)


def baselines_table(run: Comparison, last: Mapping[str, Any], width: int) -> str:
    """Return the last evaluation of a run beside its baselines; empty where it has none.

    Args:
        run: What `fedreach.report.read.read` returns of its folder.
        last: See `last_evaluation`.
        width: In letters.
    """
    records, by = baselines_of(run), main_score_of(last).name
    if not records:
        return ""
    rows = {"this model": last} | {title(name, run): columns for name, columns in records[0].columns.items()}
    scores = {each.head: column.removesuffix(f"_{by}") for column, each in POPULATION.items() if column in last}
    scores = {head: population for head, population in scores.items() if not population.endswith("_worst_decile")}
    heads = {"auroc": "AUROC", "log_loss": "log loss"}
    numbers = {heads[name]: column for name, column in probabilities(run).items() if column in last}
    cells = [
        [
            called,
            *(shown(own, population) for population in scores.values()),
            *(f"{own[column]:.3f}" if column in own else "-" for column in numbers.values()),
        ]
        for called, own in rows.items()
    ]
    return text_table(["", *scores, *numbers], cells, width, note=probabilities_note(run))


def sentence(row: Mapping[str, Any], result: Result) -> str:
    """Return the outcome of a run in one sentence."""
    gap, score = row.get("participation_gap"), main_score_of(row)
    best = f"Best held-out loss in round {result.best_round}"
    if result.best_round is None:
        best = "Which round is the best is not known: no participant holds anything out"
    points = "-" if gap is None else f"{score.number(gap, sign=True)}{score.points}"
    said = "" if score.percent else f"{score.words}, less is better: "
    refit = "" if result.refit is None else refit_said([result.refit["rounds"]])
    return join_sentences(
        f"Round {row['round']}: {said}participants {shown(row, 'id')}, unseen clients {shown(row, 'unseen')}, "
        f"gap {points}, test set {shown(row, 'test')}, "
        f"{row['bytes_total'] / 1e6:.1f} MB. {best}.",
        refit,
    )


class RunProgress(Callback):
    """Shows what is run, and a bar on a terminal, else one line per evaluation; on standard error."""

    def __init__(self, experiment: Experiment, folder: Path, add: Add | None) -> None:
        self.experiment, self.folder = experiment, folder
        self.add = add
        self.bar = None if add is None else add("rounds", total=experiment.rounds)
        self.refit: RefitProgress | None = None
        self.lost: set[int] = set()  # are named once; the rows name them in every round
        self.training: list[float] = []  # seconds a round; as these, of this process
        self.evaluating: list[float] = []

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        assert data is not None  # runs that are shown are run here
        self.name_of = data.name_of
        lines = summary(self.experiment.model_copy(update={"seeds": [run.seed]}), data), *columns(data)
        print(*lines, *engine.splitlines()[1:], sep="\n", file=sys.stderr)
        print(f"  {self.experiment.rounds} rounds into {self.folder}", file=sys.stderr, flush=True)
        self.began = time.monotonic()

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """Show how far the run is, what was evaluated, and who is lost for the first time."""
        rounds, found = self.experiment.rounds, row.evaluated
        self.training.append(timing.train_seconds or 0.0)
        left = clock((time.monotonic() - self.began) / len(self.training) * (self._last_round(row) - row.round))
        if self.bar is not None:
            self.bar.show(row.round, rounds, f"{left} left")
        if f"id_{main_score_of(found).name}" in found:
            self.evaluating.append(timing.evaluate_seconds or 0.0)
            line = (
                f"round {row.round}/{rounds}  participants {shown(found, 'id'):>7}  unseen "
                f"{shown(found, 'unseen'):>7}  test {shown(found, 'test'):>7}  "
                f"{fmean(self.training):.3f} s/round + {fmean(self.evaluating):.3f} s/evaluation  {left} left"
            )
            _line(line)
        for client, cause in lost.items():
            if client not in self.lost:
                _line(f"round {row.round}: client {self.name_of(client)} does not count: {cause}")
        self.lost.update(lost)

    def refit_round(self, round_: int, rounds: int) -> None:
        if self.refit is None:
            self.refit = RefitProgress(self.add, round_, rounds)
        self.refit.show(round_)

    def _last_round(self, row: RoundRow) -> float:
        """Return the round after which the run is likely to end, by what it has spent of its budget."""
        spent = {
            "megabytes": row.bytes_total / 1e6,
            "seconds": row.seconds_total or 0.0,
            "joules": row.joules_total or 0.0,
        }
        shares = [spent[name] / limit for name, limit in self.experiment.budget.limits.items() if spent[name]]
        return min([self.experiment.rounds, *(max(row.round, row.round / share) for share in shares)])


class RefitProgress:
    """Shows how far training again on all rows is: a bar on a terminal, else a line now and then.

    Args:
        add: Adds a bar; None: this is no terminal.
        first: Round after which it begins, 0 unless it is resumed.
        rounds: How many there will be.
    """

    def __init__(self, add: Add | None, first: int, rounds: int) -> None:
        self.first, self.rounds = first, rounds
        self.began = self.last_line = time.monotonic()
        self.bar = None if add is None else add("refit ", total=rounds, leave=False)
        if add is None:
            _line(f"training again on all rows, {rounds} rounds")

    def show(self, round_: int) -> None:
        """Show that this round is over."""
        now, trained = time.monotonic(), round_ - self.first
        left = clock((now - self.began) / trained * (self.rounds - round_) if trained else None)
        if self.bar is not None:
            self.bar.show(round_, self.rounds, f"{left} left")
        elif now - self.last_line >= ESTIMATE_SECONDS:
            self.last_line = now
            _line(f"round {round_}/{self.rounds} on all rows  {left} left")


@contextmanager
def run_progress(experiment: Experiment, folder: Path, *, quiet: bool) -> Iterator[list[Callback]]:
    """Hand out what shows a run."""
    if quiet:
        yield []
        return
    with _bars() as add:
        yield [RunProgress(experiment, folder, add)]


class Beginning(ComparisonCallback):
    """Says before the first run what is compared, and meets data there that cannot be used."""

    def __init__(
        self, experiment: Experiment, federated: Callable[[], FederatedData], *, quiet: bool, here: bool = True
    ) -> None:
        self.experiment, self.federated, self.quiet = experiment, federated, quiet
        self.begun = False  # a pilot, or what settings are chosen by, begins before the rest
        self.here = here  # whether runs are computed here: a machine that starts them on a cluster may have no GPU

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
    """Shows all runs in one bar and those that run now; in a log, a line for each run that ends.

    A log says how long it will take once the first rounds tell, where the first run does not end soon. What comes
    before the first of them, such as reading data, is not counted.
    """

    def __init__(self, add: Add | None) -> None:
        self.add, self.estimated = add, add is not None
        self.first: tuple[float, int] | None = None  # when the first rounds were over, and how many
        self.whole = None if add is None else add(WHOLE, total=None)
        self.bars: dict[Job, Bar] = {}

    def update(self, status: ComparisonStatus) -> None:
        if self.add is not None:
            self._draw(self.add, status)
        if status.skipped and status.ended is None and not status.running and not status.fresh_rounds:
            _line(f"[{status.skipped}/{len(status.jobs)}] runs were finished before and are not repeated")
        if not self.estimated and status.fresh_rounds and status.ended is None:
            self._estimate(status)
        if status.ended is not None:
            self.estimated = True
            if status.ended in self.bars:
                self.bars.pop(status.ended).close()
            _line(_ending(status, status.ended))

    def _estimate(self, status: ComparisonStatus) -> None:
        now, rounds = time.monotonic(), status.fresh_rounds
        began, before = self.first = self.first or (now, rounds)
        if now - began > ESTIMATE_SECONDS and rounds > before:
            self.estimated = True
            left = (now - began) * status.rounds_left / (rounds - before)
            _line(f"about {clock(left)} left, by {rounds} of {rounds + status.rounds_left} rounds")

    def _draw(self, add: Add, status: ComparisonStatus) -> None:
        assert self.whole is not None
        total = status.fresh_rounds + status.rounds_left
        self.whole.show(status.fresh_rounds, total, f"{clock(status.seconds_left)} left")
        for job, round_ in status.running.items():
            if job not in self.bars:
                longest = max(len(visible(label)) for label in (WHOLE, *(job.label for job in status.jobs)))
                self.whole.set_description_str(WHOLE.ljust(longest), refresh=False)
                self.bars[job] = add(visible(job.label).ljust(longest), total=job.rounds, leave=False)
            if job in status.refitting:
                refit_round, refit_rounds = status.refitting[job]
                self.bars[job].show(refit_round, refit_rounds, "training again on all rows")
            else:
                self.bars[job].show(round_, job.rounds, _scores(status.latest.get(job, {})))

    def planned(self, why: str) -> None:
        _line(why)


@contextmanager
def compare_progress(*, quiet: bool) -> Iterator[list[ComparisonCallback]]:
    """Hand out what shows a comparison."""
    if quiet:
        yield []
        return
    with _bars() as add:
        yield [ComparisonProgress(add)]


def _ending(status: ComparisonStatus, job: Job) -> str:
    count = f"[{len(status.finished) + len(status.failed)}/{len(status.jobs)}]"
    if job in status.failed:
        return f"{count} {job.label}: FAILED: {status.failed[job]}"
    elapsed = clock(time.monotonic() - status.began)
    said = _scores(status.latest.get(job, {})) or _without_rounds(status, job)
    return f"{count} {job.label}: {said}  ({elapsed}, {clock(status.seconds_left)} left)"


def _without_rounds(status: ComparisonStatus, job: Job) -> str:
    """Return what was done for a job that ran no round itself."""
    twin = status.twin(job)
    if twin is None or twin is job:  # it stopped after its last round
        return "no round was left to run"
    scores = _scores(status.latest.get(twin, {}))
    return f"served, trained as {twin.method}" + (f" ({scores})" if scores else "")


def _scores(row: Mapping[str, Any]) -> str:
    if not row:
        return ""
    return f"participants {shown(row, 'id')}, unseen {shown(row, 'unseen')}"


@contextmanager
def _bars() -> Iterator[Add | None]:
    """Hand out what adds a bar on a terminal, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from fedreach._util.progress import bars

    with bars() as add:
        yield add


def _line(line: str) -> None:
    print(visible_lines(line), file=sys.stderr, flush=True)

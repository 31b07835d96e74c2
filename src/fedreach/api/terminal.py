"""Summaries, results and progress on the terminal."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from fedreach._util.arrays import Ints
from fedreach._util.tables import count_noun, visible, visible_lines
from fedreach._util.text_tables import text_table
from fedreach.data.cells import NUMBER
from fedreach.data.federated import FederatedData
from fedreach.evaluation.scores import is_evaluated, main_score_of
from fedreach.experiment.schema import Choice, Experiment
from fedreach.experiment.workers import ComparisonCallback, ComparisonStatus
from fedreach.federation.aggregation import AGGREGATIONS
from fedreach.federation.attacks import Attackers
from fedreach.report.analysis import POPULATION, baseline_title, baselines_of, probabilities
from fedreach.report.numbers import RunSet
from fedreach.report.tables import join_sentences, probabilities_note, refit_sentence
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing

if TYPE_CHECKING:
    from fedreach._util.progress import Add, Bar


C = TypeVar("C")
MAX_REMARKS = 4  # columns with a remark that are listed
MAX_CLASSES = 20  # numbers as classes beyond which a remark asks whether they are classes
STEPS = 10  # lines of progress in a log
CHECK_SECONDS = 1.0  # between two checks whether a line is due


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
    """Return the main score of a population with its unit, or a dash if the row contains no score."""
    score = main_score_of(row)
    return score.shown(row.get(f"{population}_{score.name}"))


def summary_line(label: str, text: str) -> str:
    """Return a line of a summary, with the label and the text in separate columns.

    Example:
        >>> summary_line("Runs", "6 methods"), summary_line("", "20 seeds")
        ('  Runs      6 methods', '            20 seeds')
    """
    return f"  {label:<9} {text}"


def summary(experiment: Experiment, data: FederatedData) -> str:
    """Return the summary of the federation to show before the first round."""
    d, population = data.dataset, data.population
    sizes, unseen = data.partition.sizes, len(population.unseen)
    options = {} if experiment.partition.file else experiment.partition.options
    options_text = ", ".join(f"{name} {value}" for name, value in options.items())
    notes = f" ({d.notes})" if d.notes else ""
    remarks = [f"held-out rows: {data.together}"] if str(data.together) else []
    inputs = () if data.schema is None else tuple(column.name for column in data.schema.used)
    if data.together.time in inputs:
        remarks.append(f"{data.together.time!r} is also an input; data.columns.drop can remove it")
    if experiment.population.refit:
        remarks.append("the exported model trains again on all rows")
    if d.target_scale is not None:
        remarks += d.target_scale.lines(d.target_names)
    if data.server is not None:
        origin = ", taken from the clients' training data" if data.taken_by_server().any() else ""
        remarks.append(f"the server holds {count_noun(len(data.server.y), 'example')}{origin}")
    if data.noise:
        remarks.append(f"label noise: {data.noise['num_changed']} training labels are wrong ({data.noise['kind']})")
    if data.shift is not None:
        shifted = f"{len(data.shift.clients)} of {count_noun(unseen, 'unseen client')}"
        remarks.append(f"shift: {shifted} ({data.shift.record['kind']})")
    remarks += _attack_remarks(experiment, len(population.participants))
    trains = "participates and holds" if len(population.participants) == 1 else "participate and hold"
    lines = [
        summary_line(
            "Data",
            f"{d.name}: {len(d.train_y):,} examples, {d.targets}{notes}; partition {data.partition.kind}"
            + f" ({options_text})" * bool(options_text),
        ),
        summary_line(
            "Clients",
            f"{data.num_clients} with {_range_text(sizes)}; {len(population.participants)} {trains} out "
            f"{experiment.population.held_out:.0%}, {unseen} never train{'s' * (unseen == 1)}",
        ),
        *(summary_line("", text) for text in remarks),
        *(summary_line("Note", text) for text in _remarks(data)),
    ]
    if experiment.methods:
        settings = ""
        if experiment.sweep is not None:
            count = count_noun(len(experiment.sweep.settings()), "setting")
            settings = f"{count} of {', '.join(experiment.sweep.values)} x "
        numbers = {"method": len(experiment.methods), "seed": len(experiment.seeds), "round": experiment.rounds}
        counts = " x ".join(count_noun(number, name) for name, number in numbers.items())
        lines.append(summary_line("Runs", f"{settings}{counts}"))
    return "\n".join(map(visible, lines))


def _attack_remarks(experiment: Experiment, participants: int) -> list[str]:
    """Return how many participants are malicious, and which aggregators tolerate fewer in a round."""
    if experiment.attack is None:
        return []
    malicious = Attackers.count(experiment.attack.share, participants)
    tolerated = dict[str, str]()
    for method in [experiment.resolved(name) for name in experiment.methods or [None]]:
        k = min(method.method.largest_cohort, participants)
        chosen = cast(Choice, vars(method.method)["aggregation"])
        if chosen.name in AGGREGATIONS:
            tolerates = AGGREGATIONS[chosen.name](**chosen.options).tolerates(k)
            if tolerates < min(malicious, k):
                tolerated[chosen.name] = f"{chosen.name} {tolerates} of {k}"
    are = "is" if malicious == 1 else "are"
    text = f"attack: {malicious} of {participants} participants {are} malicious ({experiment.attack.name})"
    limit = f"Malicious clients per round that the aggregation tolerates: {', '.join(tolerated.values())}"
    return [text, limit] if tolerated else [text]


def _range_text(sizes: Ints) -> str:
    """Return the range of the clients' numbers of examples.

    Example:
        >>> _range_text(np.array([2, 143])), _range_text(np.array([25, 25]))
        ('2 to 143 examples', '25 examples each')
    """
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low} to {high} examples" if low < high else f"{count_noun(low, 'example')} each"


def _remarks(data: FederatedData) -> list[str]:
    """Return remarks on data that limit what can be measured."""
    d, participants = data.dataset, data.population.participants
    remarks, nothing = [], participants[data.held_out.sizes[participants] == 0]
    class_names = d.class_names or ()
    if np.median(data.partition.sizes) == 1:
        remarks.append("half of the clients have a single row. Check that each row contains its client")
    if len(class_names) > MAX_CLASSES and all(re.match(NUMBER, name) for name in class_names):
        remarks.append(f"the {len(class_names)} classes are numbers. To predict the number, use --target, not --label")
    empty = np.flatnonzero(np.bincount(d.train_y, minlength=d.num_classes) == 0) if d.example_classes else np.empty(0)
    if empty.size:
        which = ", ".join(map(str, empty[:10])) + (", ..." if empty.size > 10 else "")
        remarks.append(f"no training example has class {which}; labels should be from 0 to {d.num_classes - 1}")
    if len(nothing) == len(participants):
        remarks.append("no participant holds out examples, so FedReach cannot score participants")
    elif len(nothing):
        who = ", ".join(data.name_of(client) for client in nothing[:5].tolist()) + ", ..." * (len(nothing) > 5)
        remarks.append(f"participants without held-out examples train but are not scored: {who}")
    return remarks


def columns(data: FederatedData, *, verbose: bool = True) -> list[str]:
    """Return a line for each prepared column of a table; without `verbose`, only for columns with an unexpected use."""
    if data.schema is None:
        return []
    if verbose:
        return [summary_line("", line) for line in data.schema.lines()]
    kinds = Counter(column.kind for column in data.schema.columns)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    odd = [column for column in data.schema.columns if column.kind in ("left out", "dropped") or column.odd]
    more = [f"and {len(odd) - MAX_REMARKS} more; --verbose lists all columns"] if len(odd) > MAX_REMARKS else []
    lines = [f"{visible(column.name)}: {column.kind}, {column.about}" for column in odd[:MAX_REMARKS]]
    return [summary_line("Columns", counts), *(summary_line("", text) for text in [*lines, *more])]


def last_evaluation(folder: Path) -> dict[str, Any]:
    """Return the last evaluated row of a run folder."""
    backwards = map(json.loads, reversed(RunFolder(folder).kept_text(RoundRow.FILE).splitlines()))
    last: dict[str, Any] = next(backwards)
    return next((row for row in chain([last], backwards) if is_evaluated(row)), last)


def baselines_table(run: RunSet, last: Mapping[str, Any], width: int) -> str:
    """Return a table of a run's last evaluation and its baselines; empty without baselines.

    Args:
        run: RunSet of the single run, as read by `fedreach.report.read.read`.
        last: Last evaluated row (see `last_evaluation`).
        width: Width of the table in characters.
    """
    records, by = baselines_of(run), main_score_of(last).name
    if not records:
        return ""
    rows = {"this model": last} | _adapted_row(run)
    rows |= {baseline_title(name, run): columns for name, columns in records[0].columns.items()}
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


def _adapted_row(run: RunSet) -> dict[str, dict[str, Any]]:
    """Return the scores of the adapted model, for the table of a run; empty without adaptation."""
    record = run.runs[0].adaptation
    if record is None:
        return {}
    mark = "_adapted_"
    scores = {name.replace(mark, "_"): value for name, value in record.columns["last"].items() if mark in name}
    return {"this model, adapted": scores}


def outcome_sentence(row: Mapping[str, Any], result: Result) -> str:
    """Return the outcome of a run in one sentence."""
    gap, score = row.get("participation_gap"), main_score_of(row)
    best = f"Round {result.best_round} has the lowest held-out loss."
    if result.best_round is None:
        best = "The best round is unknown, because no participant holds out examples."
    points = "" if gap is None else f", gap {score.number(gap, sign=True)}{score.points}"
    prefix = "" if score.percent else f"{score.words} (lower is better): "
    refit = "" if result.refit is None else refit_sentence([result.refit["rounds"]])
    test = f", test set {score_text(row, 'test')}" if row.get(f"test_{score.name}") is not None else ""
    return join_sentences(
        f"Round {row['round']}: {prefix}participants {score_text(row, 'participant')}, "
        f"unseen clients {score_text(row, 'unseen')}{points}{test}, {_size_text(row['bytes_total'])} sent.",
        best,
        refit,
    )


def _size_text(num_bytes: float) -> str:
    """Return a number of bytes in kB or MB.

    Example:
        >>> _size_text(624), _size_text(1_930_000)
        ('0.624 kB', '1.93 MB')
    """
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.3g} kB"


class Steps:
    """Schedule of progress lines: one line in each tenth of the work."""

    def __init__(self) -> None:
        self.step = 0

    def due(self, share: float) -> bool:
        """Return whether the finished share of the work has reached a new tenth."""
        before, self.step = self.step, max(self.step, int(share * STEPS + 1e-9))
        return self.step > before


class RunProgress(Callback):
    """Progress of a run on stderr: a summary, then a bar on a terminal or a line per tenth of the rounds in a log."""

    def __init__(self, experiment: Experiment, folder: Path, add: Add | None, *, verbose: bool = False) -> None:
        self.experiment, self.folder, self.verbose = experiment, folder, verbose
        self.add, self.steps, self.scores = add, Steps(), ""
        self.bar = None if add is None else add(summary_line("Training", ""), total=experiment.rounds)
        self.refit_began: tuple[float, int] | None = None  # time and round
        self.refit_bar: Bar | None = None
        self.lost: set[int] = set()  # clients whose loss was shown once; rows name them in every round
        self.trained = 0  # rounds of this process

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        assert data is not None  # only runs of this process are shown
        self.name_of = data.name_of
        _line(summary(self.experiment.model_copy(update={"seeds": [run.seed]}), data))
        method = "" if run.method == "run" else f"{run.method}, "
        rounds = count_noun(self.experiment.rounds, "round")
        _line(summary_line("Run", f"{method}seed {run.seed}, {rounds}, into {self.folder}"))
        for text in [*columns(data, verbose=self.verbose), *engine.splitlines()[0 if self.verbose else 1 :]]:
            _line(text)
        self.began = time.monotonic()

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """Show progress, the latest evaluation, and each client whose update does not count for the first time."""
        rounds, scores = self.experiment.rounds, row.evaluated
        self.trained += 1
        remaining = clock((time.monotonic() - self.began) / self.trained * (rounds - row.round))
        if is_evaluated(scores):
            self.scores = _scores(scores)
        if self.bar is not None:
            self.bar.show(row.round, rounds, ", ".join(filter(None, (self.scores, f"{remaining} left"))))
        elif is_evaluated(scores) and self.steps.due(row.round / rounds):
            _line(summary_line("Training", f"round {row.round}/{rounds}: {self.scores}, {remaining} left"))
        for client, cause in lost.items():
            if client not in self.lost:
                _line(f"round {row.round}: client {self.name_of(client)} does not count: {cause}")
        self.lost.update(lost)

    def refit_round(self, round_: int, rounds: int) -> None:
        """Show a progress bar of the refit on a terminal, or else one line."""
        if self.refit_began is None:
            self.refit_began = time.monotonic(), round_  # after round 0, unless it is resumed
            if self.add is None:
                _line(summary_line("Refit", f"training on all rows, {count_noun(rounds, 'round')}"))
            else:
                self.refit_bar = self.add(summary_line("Refit", ""), total=rounds, leave=False)
        if self.refit_bar is not None:
            began, first = self.refit_began
            seconds = (time.monotonic() - began) / (round_ - first) * (rounds - round_) if round_ > first else None
            self.refit_bar.show(round_, rounds, f"{clock(seconds)} left")


@contextmanager
def _progress(callback: Callable[[Add | None], C], *, quiet: bool) -> Iterator[list[C]]:
    """Provide the callback, made with the function that adds a bar on a terminal; none if `quiet`."""
    if quiet:
        yield []
        return
    if not sys.stderr.isatty():
        yield [callback(None)]
    else:
        from fedreach._util.progress import progress_bars

        with progress_bars() as add:
            yield [callback(add)]
    _line("")  # between progress and results


def run_progress(
    experiment: Experiment, folder: Path, *, quiet: bool, verbose: bool = False
) -> AbstractContextManager[list[RunProgress]]:
    """Provide the callbacks that show the progress of a run."""
    return _progress(partial(RunProgress, experiment, folder, verbose=verbose), quiet=quiet)


class ComparisonStart(ComparisonCallback):
    """Callback that shows a summary before the first run, and loads the data so that data errors appear first."""

    def __init__(
        self,
        experiment: Experiment,
        federated: Callable[[], FederatedData],
        *,
        quiet: bool,
        trains_here: bool = True,
        verbose: bool = False,
    ) -> None:
        self.experiment, self.federated, self.quiet, self.verbose = experiment, federated, quiet, verbose
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
            for text in [summary(self.experiment, data), *columns(data, verbose=self.verbose)]:
                _line(text)


class ComparisonProgress(ComparisonCallback):
    """Progress of a comparison: one bar for all runs on a terminal, one line per tenth of the work in a log."""

    def __init__(self, add: Add | None) -> None:
        self.steps, self.checked = Steps(), -CHECK_SECONDS
        self.bar = None if add is None else add(summary_line("Training", ""), total=None)

    def update(self, status: ComparisonStatus) -> None:
        if status.skipped and status.ended is None and not status.running and not status.fresh_rounds:
            self.steps = Steps()  # of another stage, as after a pilot
            _line(summary_line("Resumed", f"{status.skipped}/{len(status.jobs)} runs were already finished"))
        if status.ended is not None and status.ended in status.failed:
            _line(summary_line("Failed", f"{status.ended.label}: {status.failed[status.ended]}"))
        over = len(status.finished) + len(status.failed)
        is_last = status.ended is not None and over == len(status.jobs)
        if self.bar is None and not is_last and time.monotonic() < self.checked + CHECK_SECONDS:
            return
        self.checked = time.monotonic()
        rounds_left = status.rounds_left
        runs = f"{over}/{len(status.jobs)} runs"
        if self.bar is not None:
            after = f"{clock(status.seconds_left)} left" if rounds_left else ""
            self.bar.show(status.fresh_rounds, status.fresh_rounds + rounds_left, after, runs)
        elif is_last or (
            status.fresh_rounds and self.steps.due(0.999 * status.fresh_rounds / (status.fresh_rounds + rounds_left))
        ):
            elapsed = clock(time.monotonic() - status.began)
            _line(
                summary_line(
                    "Training", f"{runs}, {elapsed}" + f", {clock(status.seconds_left)} left" * bool(rounds_left)
                )
            )

    def planned(self, why: str) -> None:
        self.steps = Steps()
        _line(summary_line("Plan", why))


def compare_progress(*, quiet: bool) -> AbstractContextManager[list[ComparisonProgress]]:
    """Provide the callbacks that show the progress of a comparison."""
    return _progress(ComparisonProgress, quiet=quiet)


def _scores(row: Mapping[str, Any]) -> str:
    return f"participants {score_text(row, 'participant')}, unseen {score_text(row, 'unseen')}"


def _line(line: str) -> None:
    print(visible_lines(line), file=sys.stderr, flush=True)

"""What a person sees on the terminal: a summary before round 1, progress with time left, a closing sentence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.config.sections import Experiment
from fedreach.data.federated import FederatedData
from fedreach.data.partition import statistics
from fedreach.experiments.jobs import Job, Told
from fedreach.runs.folder import RunFolder
from fedreach.runs.loop import Progress


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


def percent(row: Mapping[str, Any], key: str) -> str:
    """Return a share as a percentage, or a dash where the row has none."""
    return f"{100 * row[key]:.1f} %" if row.get(key) is not None else "-"


def summary(experiment: Experiment, data: FederatedData) -> str:
    """Return the federation in a few lines, as it is shown before the first round."""
    d, population = data.dataset, data.population
    sizes = data.partition.sizes
    entropy = statistics(data.partition, d.train_y, d.num_classes).summary()["effective_classes"]
    lines = [
        f"{experiment.name}: {d.name}, {len(d.train_y)} samples, {d.num_classes} classes"
        + (f" ({d.notes})" if d.notes else ""),
        f"  {data.num_clients} clients by {data.partition.kind}: {sizes.min()} to {sizes.max()} samples "
        f"(median {int(sorted(sizes)[len(sizes) // 2])}), {entropy['median']:.1f} effective classes (median)",
        f"  {len(population.participants)} take part, {len(population.unseen)} never train; "
        f"{experiment.population.held_out:.0%} of each participant's samples are held out",
    ]
    if data.server is not None:
        taken = ", taken from the training data of all clients" if data.taken_by_server().any() else " of its own"
        lines.append(f"  the server holds {len(data.server.y)} samples{taken}")
    if data.noise:
        lines.append(f"  label noise: {data.noise['num_changed']} training labels are wrong ({data.noise['kind']})")
    empty = np.flatnonzero(np.bincount(d.train_y, minlength=d.num_classes) == 0)
    if empty.size:
        which = ", ".join(map(str, empty[:10])) + (", ..." if empty.size > 10 else "")
        lines.append(
            f"  note: no training sample is of class {which} (of 0 to {d.num_classes - 1}). "
            "If that is not meant, number the labels 0, 1, ... without gaps"
        )
    if experiment.methods:
        runs = len(experiment.methods) * len(experiment.seeds)
        lines.append(
            f"  {len(experiment.methods)} methods x {len(experiment.seeds)} seeds = {runs} runs of "
            f"{experiment.rounds} rounds; federation {data.digest()[:12]} (seed {experiment.seeds[0]})"
        )
    return "\n".join(lines)


def last_evaluation(folder: Path) -> dict[str, Any]:
    """Return the last evaluated row of a run folder."""
    rows = RunFolder(folder).rows("rounds.jsonl")
    evaluated = [row for row in rows if "train_accuracy" in row]
    return (evaluated or rows)[-1]


def sentence(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return the outcome of a run in one sentence."""
    gap = row.get("participation_gap")
    points = f"{100 * gap:+.1f} points" if gap is not None else "-"
    return (
        f"Round {row['round']}: participants {percent(row, 'id_accuracy')}, unseen clients "
        f"{percent(row, 'unseen_accuracy')}, gap {points}, test set {percent(row, 'test_accuracy')}, "
        f"{row['bytes_total'] / 1e6:.1f} MB. Best held-out loss in round {result['best_round']}."
    )


@contextmanager
def run_progress(experiment: Experiment, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal, else one line per evaluation; on standard error."""
    if quiet:
        yield lambda progress: None
        return
    with _bar() as bar:
        task = None if bar is None else bar.add_task("", total=experiment.rounds, left="")
        told: set[int] = set()

        def tell(p: Progress) -> None:
            left = p.seconds / p.rounds_done * (p.rounds - p.round)
            if bar is not None and task is not None:
                bar.update(task, completed=p.round, left=clock(left))
            if "id_accuracy" in p.row:
                line = (
                    f"round {p.round}/{p.rounds}  participants {percent(p.row, 'id_accuracy'):>7}  unseen "
                    f"{percent(p.row, 'unseen_accuracy'):>7}  test {percent(p.row, 'test_accuracy'):>7}  "
                    f"{p.round_seconds:.3f} s/round + {p.evaluation_seconds:.3f} s/evaluation  {clock(left)} left"
                )
                _line(bar, line)
            for client, cause in p.lost.items():
                if client not in told:  # once; the rows name it in every round
                    _line(bar, f"round {p.round}: client {client} does not count: {cause}")
            told.update(p.lost)

        yield tell


@contextmanager
def compare_progress(*, quiet: bool) -> Iterator[Callable[[Told], None]]:
    """Show all runs in one bar and those that run now; in a log, a line for each run that ends."""
    if quiet:
        yield lambda told: None
        return
    with _bar() as bar:
        tasks: dict[Any, Any] = {}
        whole = None if bar is None else bar.add_task("all runs", total=None, left="")

        def tell(told: Told) -> None:
            if bar is not None and whole is not None:
                total = sum(job.rounds for job in told.jobs)
                bar.update(whole, total=total, completed=total - told.rounds_left, left=clock(told.seconds_left))
                for job, round_ in told.running.items():
                    if job not in tasks:
                        tasks[job] = bar.add_task(job.label, total=job.rounds, left="")
                    bar.update(tasks[job], completed=round_, left=_scores(told.latest.get(job, {})))
            if told.skipped and told.ended is None and not told.running and not told.fresh_rounds:
                _line(bar, f"[{told.skipped}/{len(told.jobs)}] runs were finished before and are not repeated")
            if told.ended is not None:
                if bar is not None and told.ended in tasks:
                    bar.remove_task(tasks.pop(told.ended))
                _line(bar, _ending(told, told.ended))

        yield tell


def _ending(told: Told, job: Job) -> str:
    count = f"[{len(told.finished) + len(told.failed)}/{len(told.jobs)}]"
    if job in told.failed:
        return f"{count} {job.label}: FAILED: {told.failed[job]}"
    elapsed = clock(time.monotonic() - told.began)
    scores = _scores(told.latest.get(job, {}))
    return f"{count} {job.label}: {scores}  ({elapsed}, {clock(told.seconds_left)} left)"


def _scores(row: Mapping[str, Any]) -> str:
    if not row:
        return ""
    return f"participants {percent(row, 'id_accuracy')}, unseen {percent(row, 'unseen_accuracy')}"


@contextmanager
def _bar() -> Iterator[Any]:
    """Hand out a rich progress bar on a terminal, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield bar


def _line(bar: Any, line: str) -> None:
    if bar is None:
        print(line, file=sys.stderr, flush=True)
    else:
        bar.console.print(line, highlight=False, markup=False)

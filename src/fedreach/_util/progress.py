"""Progress bars at the bottom of a terminal, with other output above them.

Import this module only to draw a bar: it imports rich.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn

REFRESHES_PER_SECOND = 4.0
COLUMNS = (
    TextColumn("{task.fields[text]}", markup=False),
    BarColumn(bar_width=None),
    TextColumn("{task.fields[count]}"),
    TimeElapsedColumn(),
    TextColumn("{task.fields[after]}", markup=False),
)


class Bar:
    """A bar of a `Progress`, whose thread draws it: showing progress takes no time in a round."""

    def __init__(self, progress: Progress, text: str, total: int | None) -> None:
        self.progress = progress
        count = "" if total is None else f"0/{total}"
        number = progress.add_task("", total=total, text=text, count=count, after="")
        self.task: Task = next(task for task in progress.tasks if task.id == number)

    def show(self, done: int, total: int | None, after: str, count: str | None = None) -> None:
        """Set the progress and the text after it; `count` is the progress in words, by default its two numbers."""
        self.task.completed, self.task.total = done, total
        self.task.fields.update(count=f"{done}/{total}" if count is None else count, after=after)

    def rename(self, text: str) -> None:
        """Set the text before the bar."""
        self.task.fields["text"] = text

    def close(self) -> None:
        """Remove the bar."""
        if self.task.id in self.progress.task_ids:
            self.progress.remove_task(self.task.id)


Add = Callable[..., Bar]
"""Adds a bar below the others: takes its text, the total if known, and ``leave=False`` if it vanishes at the end."""
_open: list[Progress] = []  # on the terminal, at most one: bars within it are added below its own


@contextmanager
def progress_bars() -> Iterator[Add]:
    """Hand out the function that adds a bar to the terminal of stderr; bars with ``leave=False`` vanish at the end.

    Other output meanwhile appears above the bars.
    """
    progress = (
        _open[0]
        if _open
        else Progress(
            *COLUMNS,
            console=Console(stderr=True),
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # else it is a file or a pipe, which keeps its lines
            expand=True,
        )
    )
    passing: list[Bar] = []

    def add(text: str, total: int | None = None, *, leave: bool = True) -> Bar:
        bar = Bar(progress, text, total)
        if not leave:
            passing.append(bar)
        return bar

    with ExitStack() as stack:
        if not _open:
            stack.enter_context(progress)
            _open.append(progress)
            stack.callback(_open.clear)
        try:
            yield add
        finally:
            for bar in passing:
                bar.close()


def _write_plainly() -> None:
    """Let a forked process write past the bars, whose lock another thread may have held."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, FileProxy):
            setattr(sys, name, stream.rich_proxied_file)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_write_plainly)

"""Progress bars at the bottom of the terminal, with other output above them.

Import this module only to draw a bar, because it imports rich, which is slow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn

from fedreach._util.tables import visible

REFRESHES_PER_SECOND = 4.0
COLUMNS = (
    TextColumn("{task.fields[text]}", markup=False),
    BarColumn(bar_width=None),
    TextColumn("{task.fields[count]}", markup=False),
    TimeElapsedColumn(),
    TextColumn("{task.fields[after]}", markup=False),
)


class Bar:
    """A progress bar; a thread of `Progress` draws it, so that updates do not slow down a round."""

    def __init__(self, progress: Progress, text: str, total: int | None) -> None:
        self.progress = progress
        count = "" if total is None else f"0/{total}"
        number = progress.add_task("", total=total, text=visible(text), count=count, after="")
        self.task: Task = next(task for task in progress.tasks if task.id == number)

    def show(self, done: int, total: int | None, after: str, count: str | None = None) -> None:
        """Set the progress, the text after the bar, and `count`, the progress as text (default: ``"done/total"``)."""
        self.task.completed, self.task.total = done, total
        self.task.fields.update(count=f"{done}/{total}" if count is None else visible(count), after=visible(after))

    def rename(self, text: str) -> None:
        """Set the text before the bar."""
        self.task.fields["text"] = visible(text)

    def close(self) -> None:
        """Remove the bar."""
        if self.task.id in self.progress.task_ids:
            self.progress.remove_task(self.task.id)


Add = Callable[..., Bar]
"""Function that adds a bar below existing bars, given the text and, if known, the total of the bar.

With ``leave=False``, the bar is removed at the end.
"""
_open: list[Progress] = []  # at most one; nested calls of `progress_bars` add their bars to it


@contextmanager
def progress_bars() -> Iterator[Add]:
    """Yield a function that adds progress bars on stderr; other output appears above the bars."""
    progress = (
        _open[0]
        if _open
        else Progress(
            *COLUMNS,
            console=Console(stderr=True),
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # files and pipes need no redirection
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
    """Write to stdout and stderr directly in forked processes: another thread may have held the lock of the bars."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, FileProxy):
            setattr(sys, name, stream.rich_proxied_file)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_write_plainly)

"""Progress bars at the bottom of a terminal, and what is printed above them.

It imports tqdm, so whoever may draw a bar imports it only then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

if TYPE_CHECKING:
    Base = tqdm[Any]
else:
    Base = tqdm

FORMAT = "{desc} {bar} {n_fmt}/{total_fmt} {elapsed}{postfix}"
SECONDS = 1.0  # after which the clock is drawn again
UNKNOWN = 80  # letters of a line, on a terminal that does not tell


LOCK = RLock()  # whoever has it draws; tqdm's own takes a semaphore of the system


class Bar(Base):
    """A bar of tqdm's."""

    monitor_interval = 0  # no thread of tqdm's, see `bars`

    def show(self, done: int, total: int | None, after: str) -> None:
        """Say how far it is and what stands behind that; drawn at once, or where that was just done, a little later."""
        self.total = total
        self.set_postfix_str(after, refresh=False)
        self.update(done - self.n)

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:
        """As tqdm's, which would leave the lock closed where Ctrl-C comes in between."""
        with LOCK:
            return super().refresh(nolock=True)


Bar.set_lock(LOCK)


class _Above:
    """A stream on the terminal whose lines are written above the bars."""

    def __init__(self, stream: TextIO, terminal: TextIO) -> None:
        self.stream, self.terminal, self.process = stream, terminal, os.getpid()
        self.begun = ""  # a line that has not ended

    def write(self, text: str) -> int:
        if os.getpid() != self.process:  # a fork of it, where nobody opens a lock that was closed
            return self.stream.write(text)
        *lines, self.begun = (self.begun + text).split("\n")
        if lines:
            with Bar.external_write_mode(file=self.terminal):
                self.stream.write("\n".join([*lines, ""]))
                self.stream.flush()
        return len(text)

    def end(self) -> None:
        """Write what is left."""
        if self.begun:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


Add = Callable[..., Bar]
"""Adds a bar below the others, which is told the text before it and what else tqdm takes."""


@contextmanager
def bars() -> Iterator[Add]:
    """Hand out what adds a bar to the terminal that standard error is; those with ``leave=False`` vanish in the end.

    What anybody prints meanwhile stands above.
    """
    out, terminal = (stream.stream if isinstance(stream, _Above) else stream for stream in (sys.stdout, sys.stderr))
    open_bars: list[Bar] = []
    over = Event()

    def add(text: str, **options: Any) -> Bar:
        wide = _fixed_width(terminal)
        look = {"bar_format": FORMAT, "miniters": 0, "ncols": wide, "dynamic_ncols": wide is None, **options}
        open_bars.append(Bar(desc=text, file=terminal, **look))
        return open_bars[-1]

    def tick() -> None:
        while not over.wait(SECONDS):
            for bar in tuple(open_bars):
                bar.refresh()

    def end() -> None:
        for bar in reversed(open_bars):
            bar.close()

    with ExitStack() as stack:
        stack.callback(end)
        redirects: tuple[Any, ...] = (redirect_stdout, redirect_stderr)
        for stream, redirect in zip((out, terminal), redirects, strict=True):
            if stream.isatty():
                above = _Above(stream, terminal)
                stack.enter_context(redirect(above))
                stack.callback(above.end)
        ticking = Thread(target=tick, daemon=True)
        ticking.start()
        stack.callback(ticking.join)
        stack.callback(over.set)
        yield add


def _fixed_width(terminal: TextIO) -> int | None:
    """Return how wide bars are, None where the terminal tells, and goes on telling as it changes."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    with suppress(OSError):
        if os.get_terminal_size(terminal.fileno()).columns:
            return None
    return UNKNOWN

"""Progress bars at the bottom of a terminal, with other output above them.

Import this module only to draw a bar: it imports tqdm.
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
SECONDS = 1.0  # between two updates of the clock
UNKNOWN = 80  # characters per line, on a terminal of unknown width


LOCK = RLock()  # held while drawing; tqdm's own lock takes a system semaphore


class Bar(Base):
    """A tqdm bar without its own thread."""

    monitor_interval = 0  # no monitor thread, see `progress_bars`

    def show(self, done: int, total: int | None, after: str) -> None:
        """Set the progress and the text after it; a bar that was just drawn is redrawn a little later."""
        self.total = total
        self.set_postfix_str(after, refresh=False)
        self.update(done - self.n)

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:
        """Draw as tqdm does, but release the lock even if Ctrl-C interrupts."""
        with LOCK:
            return super().refresh(nolock=True)


Bar.set_lock(LOCK)


class _Above:
    """A stream on the terminal that writes its lines above the bars."""

    def __init__(self, stream: TextIO, terminal: TextIO) -> None:
        self.stream, self.terminal, self.process = stream, terminal, os.getpid()
        self.begun = ""  # a line that has not ended

    def write(self, text: str) -> int:
        if os.getpid() != self.process:  # in a fork, the lock may stay closed for ever
            return self.stream.write(text)
        *lines, self.begun = (self.begun + text).split("\n")
        if lines:
            with Bar.external_write_mode(file=self.terminal):
                self.stream.write("\n".join([*lines, ""]))
                self.stream.flush()
        return len(text)

    def end(self) -> None:
        """Write the unfinished line."""
        if self.begun:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


Add = Callable[..., Bar]
"""Adds a bar below the others; takes its text and further options of tqdm."""


@contextmanager
def progress_bars() -> Iterator[Add]:
    """Hand out the function that adds a bar to the terminal of stderr; bars with ``leave=False`` vanish at the end.

    Other output meanwhile appears above the bars.
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
    """Return the width of the bars; None if the terminal reports its width and its changes."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    with suppress(OSError):
        if os.get_terminal_size(terminal.fileno()).columns:
            return None
    return UNKNOWN

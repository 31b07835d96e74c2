"""A terminal for tests: what a process sees as one, and what a person then sees on it."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest


class Terminal:
    """The screen of a pseudo terminal, of which `stream` is the end that programs write to."""

    def __init__(self, columns: int) -> None:
        self.ours, theirs = os.openpty()
        self.stream: TextIO = os.fdopen(theirs, "w", buffering=1, encoding="utf-8")
        self.resize(columns)
        self._bytes = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int) -> None:
        """Set the width; 0 is one that does not tell."""
        fcntl.ioctl(self.stream, termios.TIOCSWINSZ, struct.pack("4H", 40 if columns else 0, columns, 0, 0))

    def _read(self) -> None:
        try:
            while got := os.read(self.ours, 1 << 16):
                self._bytes += got
        except OSError:  # the other end is closed
            pass

    def end(self) -> None:
        """Close the end that programs write to, and read the rest."""
        self.stream.close()
        self._reader.join()
        os.close(self.ours)

    @property
    def text(self) -> str:
        """All that was written."""
        return self._bytes.decode(errors="replace")

    def now(self) -> list[str]:
        """Return what stands on the screen as soon as all that was written is there."""
        self.stream.flush()
        before = b"-"
        while self._bytes != before:
            before = self._bytes
            time.sleep(0.02)
        return self.lines()

    def lines(self) -> list[str]:
        """Return what stands on the screen, without blanks at the ends of lines and empty lines at the end."""
        screen, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.", self.text, re.DOTALL):
            if part.startswith("\x1b"):
                row -= int(part[2:-1] or 1) if part.endswith("A") else 0
                if part == "\x1b[2K":
                    screen[row] = ""
                assert part[-1] in "AKlhm", f"{part!r} is not known here"  # up, erase, show or hide the cursor, color
            elif part == "\r":
                column = 0
            elif part == "\n":
                row += 1
                screen += [""] * (row - len(screen) + 1)
            else:
                assert part.isprintable(), f"{part!r} is not known here"
                screen[row] = screen[row][:column].ljust(column) + part + screen[row][column + 1 :]
                column += 1
        while screen and not screen[-1].strip():
            screen.pop()
        return [line.rstrip() for line in screen]


@contextmanager
def on_terminal(columns: int = 80, *, out: bool = True) -> Iterator[Terminal]:
    """Have standard error, and standard output if that is wanted, be a terminal."""
    terminal = Terminal(columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(columns))  # rich asks the terminal of the process, which is not this one
        patch.setattr("sys.stderr", terminal.stream)
        if out:
            patch.setattr("sys.stdout", terminal.stream)
        try:
            yield terminal
        finally:
            terminal.end()

"""What `fedreach reproduce` prints: the list of recipes, progress, and what of the claims holds."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedreach.cli.terminal import clock
from fedreach.reproduce.recipe import load, names
from fedreach.reproduce.record import OPEN, SECONDS, _claim, _setting, _tables

if TYPE_CHECKING:
    from fedreach.reproduce.decisions import Told


def to_terminal(told: Mapping[str, Any], width: int) -> str:
    """Return the same for a terminal."""
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(Text(f"{told['recipe']}: {told['title']}", style="bold"))
    console.print(Text(_setting(told)))
    if told["claims"]:
        table = Table("the paper says", "here", "numbers", box=box.SIMPLE_HEAD)
        for cells in map(_claim, told["claims"]):
            table.add_row(*map(Text, cells))
        console.print(table)
    for title, header, rows in _tables(told):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for i, head in enumerate(header):
            table.add_column(Text(head), justify="right" if i else "left")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    if told["choices"]:
        console.print(OPEN)
    for choice in told["choices"]:
        console.print(Padding(Text(f"- {choice}"), (0, 0, 0, 2)))
    return out.getvalue().rstrip()


def listing() -> str:
    """Return all recipes with their titles."""
    return "\n".join(f"{name:12}  {load(name, 'cpu').about.title}" for name in names())


@contextmanager
def rounds_progress(name: str, *, quiet: bool) -> Iterator[Callable[[Told], None]]:
    """Say on standard error, about every ten seconds, how many rounds are decided and how long the rest takes."""
    began = said = time.monotonic()

    def tell(told: Told) -> None:
        nonlocal said
        now = time.monotonic()
        if not quiet and (now - said > SECONDS or told.done == told.rounds):
            said = now
            left = (now - began) * (told.rounds - told.done) / told.done
            print(f"{name}: {told.done}/{told.rounds} rounds, {clock(left)} left", file=sys.stderr, flush=True)

    yield tell

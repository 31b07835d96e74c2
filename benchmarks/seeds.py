"""Shared parts of benchmarks with a model per seed: arguments, kept rows, and the section of a record."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from page import put

Row = dict[str, Any]


class Asked(NamedTuple):
    """What the command line says."""

    seeds: range
    rows: Path
    write: bool


def asked(about: str | None, rows: str, first: int) -> Asked:
    """Return the arguments, by default two seeds from `first` on; all that follows goes on one thread."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="how many, from --first on; default: %(default)s")
    parser.add_argument("--first", type=int, default=first, help="first seed; default: %(default)s")
    parser.add_argument("--rows", type=Path, default=Path(rows), help="where rows are kept; default: %(default)s")
    parser.add_argument("--write", action="store_true", help="put the tables into their record in docs/records")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return Asked(seeds, arguments.rows, arguments.write)


def kept(file: Path, models: Iterable[Row], measure: Callable[..., Iterable[Row]]) -> list[Row]:
    """Return the rows of these models; those that the file does not have yet are measured and added to it.

    Args:
        file: A row of JSON a line.
        models: What names each of them, such as ``{"seed": 3}``: arguments of `measure`, and columns of its rows.
        measure: Returns the rows of one model.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    found: list[Row] = []
    for model in models:
        own = [row for row in rows if model.items() <= row.items()]
        if not own:
            own = [{**model, **row} for row in measure(**model)]
            with file.open("a", encoding="utf-8") as more:
                more.writelines(json.dumps(row) + "\n" for row in own)
        found += own
    return found


def tell(section: str, text: str, *, write: bool) -> None:
    """Print the text, and put it into the record of this name if `write` is set."""
    if write:
        put(section, text)
    print(text)

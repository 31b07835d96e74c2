"""Clients on Flower that lie, and messages of theirs that are changed anywhere: both in one process, by messages."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rows import Row

sys.path.append(str(Path(__file__).parents[2]))  # the tests say what a lie is, and what must come of it

from tests.flower import lying, test_fuzz_messages

logging.getLogger("flwr").setLevel(logging.CRITICAL)  # told is what it names; here it is counted


def planted_lies(quick: bool) -> Row:
    """Return what came of a lie about each figure: told, if the run is that in which nothing was said, bit for bit."""
    names = [*lying.LIES][:4] if quick else [*lying.LIES]
    endings = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            endings.append((lying.ending(name, Path(folder)), name))
    return Row.of_endings("clients that lie", endings)


def changed_messages(examples: int) -> Row:
    """Return what came of so many changed replies to each kind of question."""
    endings: list[tuple[str, str]] = []
    for name, question in test_fuzz_messages.QUESTIONS.items():
        test_fuzz_messages.fuzzed(partial(_noted, endings, name, question), examples)
    return Row.of_endings("replies changed anywhere", endings)


def _noted(endings: list[tuple[str, str]], name: str, question: Callable[[Any], bool], data: Any) -> None:
    try:
        endings.append(("told" if question(data) else "survived", name))
    except AssertionError as error:
        endings.append(("wrong", f"{name}: {error}"))
    except Exception as error:
        if type(error).__module__.startswith("hypothesis"):
            raise  # an example that Flower does not carry
        endings.append(("lost", f"{name}: {type(error).__name__}: {error}"))

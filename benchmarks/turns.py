"""Turns of all contenders of a case, pass after pass, and the check that they compute the same."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cases import CASES

from contenders import FLOWER, LIMIT, PFL, PFL_ONE, Contender, Row, Setting, measure, run_script, why_not
from tables import Rows

ROUNDS = {
    "logistic": 5,
    "mlp": 2,
    "lenet": 1,
    "logistic_device": 20,
    "mlp_device": 5,
    "lenet_device": 2,
    "digits": 50,
    "femnist": 1,
    "feddyn_cnn": 1,
    "lstm": 1,
    "cifar": 1,
    "cifar_plain": 1,
}
"""Rounds in one timing: about a tenth of a second or more."""
FLOWER_ROUNDS = 2  # each takes at least 0.1 s
FLOWER_PASSES = 2  # it takes a quarter of a minute to start
LATER = 0.7  # of the time of the first pass: a later one, with fewer settings
NEAR = 0.9  # of the best rate: settings that are tried again


def suits(contender: Contender, case: str) -> bool:
    """Return whether a contender is for such examples."""
    return CASES[case].convolutional or not contender.images


def options_of(contender: Contender, case: str, repeats: int, quick: bool) -> list[str]:
    """Return how many rounds a contender runs, as options of its script."""
    rounds = 1 if quick else min(ROUNDS[case], FLOWER_ROUNDS) if contender is FLOWER else ROUNDS[case]
    warmup = 1 if contender is FLOWER or rounds == 1 else 2
    options = ["--rounds", str(rounds), "--repeats", str(repeats), "--warmup", str(warmup)]
    return [*options, "--quick"] if quick else options


def again(contender: Contender, first: dict[Setting, Row | None]) -> list[Setting]:
    """Return the settings to be tried again: those near the best, and pfl's single process."""
    rates = {setting: row["samples_per_second"] for setting, row in first.items() if row is not None}
    best = max(rates.values(), default=0.0)
    return [
        setting for setting, rate in rates.items() if rate >= NEAR * best or (contender is PFL and setting == PFL_ONE)
    ]


@dataclass(eq=False)
class Turns:
    """The contenders of a case, pass after pass."""

    case: str
    contenders: Sequence[Contender]
    repeats: int
    quick: bool
    rows: Rows = field(default_factory=dict)
    wanted: dict[str, list[Setting]] = field(default_factory=dict)  # settings of each contender that are tried again
    seconds: float = 0.0  # of the first pass

    def take(self, number: int) -> None:
        """Let each contender run in the settings that it is tried in, and keep the rows."""
        began = time.monotonic()
        for contender in self.contenders:
            options = options_of(contender, self.case, self.repeats, self.quick)
            settings = self.wanted.get(contender.name, contender.settings)
            found = {setting: measure(contender, self.case, setting, options) for setting in settings}
            for setting, row in found.items():
                if row is not None:
                    self.rows.setdefault(contender.name, {}).setdefault(setting, {})[number] = row
                    rate = row["samples_per_second"]
                    print(f"{self.case} pass {number + 1} {contender.name} {setting}: {rate:,.0f}/s", file=sys.stderr)
            if number == 0:
                self.wanted[contender.name] = again(contender, found)
            elif contender is FLOWER and number + 1 == FLOWER_PASSES:
                self.wanted[contender.name] = []
        if number == 0:
            self.seconds = time.monotonic() - began


def run_cases(
    cases: Mapping[str, Sequence[Contender]], passes: int, repeats: int, quick: bool, seconds: float = math.inf
) -> dict[str, Rows]:
    """Return case -> contender -> setting -> pass -> row.

    All cases have their first pass, then their second, and so on; none but a first begins that would end after so many
    seconds.
    """
    began = time.monotonic()
    turns = {
        case: Turns(case, [one for one in contenders if suits(one, case)], repeats, quick)
        for case, contenders in cases.items()
    }
    for number in range(passes):
        for turn in turns.values():
            if number == 0 or time.monotonic() - began + LATER * turn.seconds <= seconds:
                turn.take(number)
    return {case: turn.rows for case, turn in turns.items()}


def check(cases: Sequence[str], contenders: Sequence[Contender]) -> bool:
    """Print what each contender's check says; return whether all hold, those left out that cannot train a case."""
    well = True
    for case in cases:
        for contender in contenders:
            if contender is not LIMIT and suits(contender, case):
                _, err, holds = run_script(contender, case, contender.settings[-1], ["--check"])
                said = [line for line in err.splitlines() if line.startswith(("ok:", "FAILED:"))]
                reason = why_not(err)
                for line in said if holds else said or [reason or f"FAILED: {err.strip()[-300:]}"]:
                    print(f"{case}, {contender.name}: {line}")
                well &= holds or bool(reason)
    return well

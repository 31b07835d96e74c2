"""All contenders of a case in turn, pass after pass, and whether they compute the same."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

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
    warmup = 1 if contender is FLOWER else 2
    options = ["--rounds", str(rounds), "--repeats", str(repeats), "--warmup", str(warmup)]
    return [*options, "--quick"] if quick else options


def again(contender: Contender, first: dict[Setting, Row | None]) -> list[Setting]:
    """Return the settings to be tried again: those near the best, and pfl's single process."""
    rates = {setting: row["samples_per_second"] for setting, row in first.items() if row is not None}
    best = max(rates.values(), default=0.0)
    return [
        setting for setting, rate in rates.items() if rate >= NEAR * best or (contender is PFL and setting == PFL_ONE)
    ]


def run_case(
    case: str, contenders: Sequence[Contender], passes: int, repeats: int, quick: bool, until: float = math.inf
) -> Rows:
    """Return contender -> setting -> pass -> row; no pass but the first begins that would go on after `until`."""
    rows: Rows = {}
    contenders = [contender for contender in contenders if suits(contender, case)]
    wanted = {contender.name: list(contender.settings) for contender in contenders}
    for number in range(passes):
        began = time.monotonic()
        for contender in contenders:
            options = options_of(contender, case, repeats, quick)
            found = {setting: measure(contender, case, setting, options) for setting in wanted[contender.name]}
            for setting, row in found.items():
                if row is not None:
                    rows.setdefault(contender.name, {}).setdefault(setting, {})[number] = row
                    rate = row["samples_per_second"]
                    print(f"{case} pass {number + 1} {contender.name} {setting}: {rate:,.0f}/s", file=sys.stderr)
            if number == 0:
                wanted[contender.name] = again(contender, found)
            elif contender is FLOWER and number + 1 == FLOWER_PASSES:
                wanted[contender.name] = []
        now = time.monotonic()
        if now + LATER * (now - began) > until:
            break
    return rows


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

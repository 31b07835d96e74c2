"""Which settings were chosen, on what, and how many runs that took each method."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedreach.evidence.scores import ACCURACY, MAE
from fedreach.evidence.spread import spread
from fedreach.report.numbers import percent
from fedreach.report.render.tables import Table
from fedreach.report.values import Comparison
from fedreach.runs.schema import TuningRecord


def words_of(setting: Mapping[str, Any]) -> str:
    """Return a setting as people write it.

    Example:
        >>> words_of({"local.rate": 0.1, "method.server": "adam"})
        'local.rate = 0.1, method.server = adam'
    """
    said = {key: value if isinstance(value, str) else json.dumps(value) for key, value in setting.items()}
    return ", ".join(f"{key} = {value}" for key, value in said.items())


def tabulate_tuning(comparison: Comparison) -> Table | None:
    """Return what each method was given, a row each; None where nothing was chosen."""
    tuning = comparison.tuning
    if tuning is None:
        return None
    by = MAE if tuning.score == MAE.name else ACCURACY
    rows = []
    for method in comparison.methods:
        chosen, scores = tuning.chosen.get(method, {}), tuning.scores.get(method, {})
        reached = [scores[seed][place] for seed, place in chosen.items() if scores[seed][place] is not None]
        tried = sum(any(each[place] is not None for each in scores.values()) for place in range(len(tuning.settings)))
        rows.append(
            (
                method,
                _often([words_of(tuning.settings[place]) for place in chosen.values()]) if tried > 1 else "not tuned",
                percent(spread([value for value in reached if value is not None]), by=by) if reached else "-",
                str(tuning.runs.get(method, 0)),
                _edges(tuning, method),
            )
        )
    told = any(row[4] for row in rows)
    header = ("method", "chosen", "reached on validation data", "runs to choose", "at an end of what was tried")
    units = ("", "(seeds)", f"{by.unit} ± sd over seeds".strip(), "beside those compared", "(seeds)")
    kept = 5 if told else 4
    return Table(
        caption="Which settings were chosen",
        header=header[:kept],
        units=units[:kept],
        rows=tuple(row[:kept] for row in rows),
        from_width=(0, 0, 90, 0, 110)[:kept],
        note=_note(tuning, by.words),
        name="tuning",
    )


def _note(tuning: TuningRecord, score: str) -> str:
    many, drawn = len(tuning.settings), "" if tuning.samples is None else ", drawn at random"
    return (
        f"Each method, with each seed, was given that of {many} settings{drawn} with the best mean {score} over "
        f"participants on {100 * tuning.validation:g} % of what each trains on, after {tuning.rounds} rounds without "
        "these samples. The runs that are compared then train on them, too. Held-out data, unseen clients and the test "
        "set were no part of the data of these runs, and no number passed from one seed to another. Settings that make "
        "no difference to a method were not tried for it."
    )


def _often(words: list[str]) -> str:
    """Return what was chosen, the most frequent first, and with how many seeds where that differs."""
    counts = Counter(words).most_common()
    return "; ".join(word if len(counts) == 1 else f"{word} ({count})" for word, count in counts)


def _edges(tuning: TuningRecord, method: str) -> str:
    """Return which options were chosen at an end of their values: better ones may lie beyond."""
    found: Counter[str] = Counter()
    for key in tuning.settings[0]:
        values = {setting[key] for setting in tuning.settings if isinstance(setting[key], int | float)}
        if len(values) > 2 and tuning.samples is None:
            chosen = [tuning.settings[place][key] for place in tuning.chosen.get(method, {}).values()]
            found[key] = sum(value in (min(values), max(values)) for value in chosen)
    return ", ".join(f"{key} ({count})" for key, count in found.items() if count)


def tuning_record(tuning: TuningRecord) -> dict[str, Any]:
    """Return the same for other programs."""
    return {key: value for key, value in tuning.to_json().items() if key != "settings"} | {
        "settings": [dict(setting) for setting in tuning.settings]
    }

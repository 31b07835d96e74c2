"""Markdown tables of the speed benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Setting = tuple[int, int]  # workers, threads of each
Settings = dict[Setting, dict[int, Row]]  # setting -> pass -> row
Rows = dict[str, Settings]  # contender ->
ONE_PROCESS = "pfl, one process"
BY_HAND = "torch by hand"  # plain torch in whichever layout is faster


def best(settings: Settings) -> tuple[Setting, dict[int, Row]]:
    """Return the setting with the highest median rate among those with most passes, and its rows."""
    most = max(len(passes) for passes in settings.values())
    whole = {setting: passes for setting, passes in settings.items() if len(passes) == most}
    return max(whole.items(), key=lambda item: statistics.median(rates(item[1]).values()))


def rates(passes: dict[int, Row]) -> dict[int, float]:
    """Return pass -> samples a second."""
    return {number: row["samples_per_second"] for number, row in passes.items()}


def ratios(rates: dict[int, float], reference: dict[int, float]) -> list[float]:
    """Return the ratio to the reference in each pass that both have.

    Example:
        >>> ratios({0: 2.0, 1: 9.0}, {0: 4.0, 1: 3.0, 2: 1.0})
        [0.5, 3.0]
    """
    return [rate / reference[number] for number, rate in rates.items() if number in reference]


def spread(values: list[float], form: str = "{:.2f}") -> str:
    """Return the median, with the range where values differ; a dash for none.

    Example:
        >>> spread([1.0, 3.0, 1.5]), spread([2.0]), spread([])
        ('1.50 (1.00 to 3.00)', '2.00', '-')
    """
    if not values:
        return "-"
    middle, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def table(head: Iterable[str], lines: Iterable[Iterable[str]], left: int) -> str:
    """Return a table whose first columns are aligned to the left."""
    head = list(head)
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def shown(rows: Rows) -> dict[str, tuple[Setting, dict[int, Row]]]:
    """Return what each line of the table shows: each contender at its best, and pfl in one process with all cores."""
    chosen = {name: best(settings) for name, settings in rows.items()}
    alone = [setting for setting in rows.get("pfl", {}) if setting[0] == 1]
    if alone:
        setting = max(alone)  # most threads
        chosen[ONE_PROCESS] = setting, rows["pfl"][setting]
    return chosen


def by_hand(speeds: dict[str, dict[int, float]]) -> dict[int, float]:
    """Return the rates of plain torch in the layout that has the highest median."""
    layouts = [passes for name, passes in speeds.items() if name.startswith("plain torch")]
    return max(layouts, key=lambda passes: statistics.median(passes.values()), default={})


def main_table(found: dict[str, Rows]) -> str:
    """Return each contender of each case, with its ratios to the others."""
    lines = []
    for case, rows in found.items():
        chosen = shown(rows)
        speeds = {name: rates(passes) for name, (_, passes) in chosen.items()}
        references = speeds | {BY_HAND: by_hand(speeds)}
        for name, ((workers, threads), passes) in chosen.items():
            if name == "limit" or (name == ONE_PROCESS and chosen["pfl"][0] == (workers, threads)):
                continue  # the same line twice
            others = (ONE_PROCESS, "pfl", "flower", BY_HAND, "limit")
            to = {other: ratios(speeds[name], references.get(other, {})) for other in others}
            middle = {
                key: statistics.median(row[key] for row in passes.values())
                for key in ("samples_per_second", "rounds_per_second", "peak_rss_mb")
            }
            lines.append(
                [
                    case,
                    name,
                    f"{middle['samples_per_second']:,.0f}",
                    f"{middle['rounds_per_second']:.3g}",
                    spread(to[ONE_PROCESS]),
                    spread(to["pfl"]),
                    spread(to["flower"], "{:.3g}"),
                    spread(to[BY_HAND]),
                    f"{100 * statistics.median(to['limit']):.3g}%" if to["limit"] else "-",
                    f"{middle['peak_rss_mb']:,.0f}",
                    f"{workers} x {threads}",
                ]
            )
    head = "case, engine, samples/s, rounds/s, ratio to pfl in one process, ratio to pfl at its best, ratio to Flower"
    more = "ratio to torch by hand, of torch's limit, peak MB, workers x threads"
    return table([*head.split(", "), *more.split(", ")], lines, left=2)


def limit_table(found: dict[str, Rows]) -> str:
    """Return the limits of each case, and how `auto` compares with the best engine that it could take."""
    lines = []
    for case, rows in found.items():
        chosen = shown(rows)
        speeds = {name: rates(passes) for name, (_, passes) in chosen.items()}
        engines = [speed for name, speed in speeds.items() if name.startswith("fedreach ") and name != "fedreach auto"]
        single = max(engines, key=lambda speed: statistics.median(speed.values()), default={})
        limits = list(chosen["limit"][1].values()) if "limit" in chosen else []

        def middle(key: str, form: str = "{:,.0f}", limits: list[Row] = limits) -> str:
            return form.format(statistics.median(row[key] for row in limits)) if limits else "-"

        auto = spread(ratios(speeds.get("fedreach auto", {}), single))
        kinds = (middle(key) for key in ("products", "memory", "multiply"))
        lines.append([case, auto, *kinds, middle("gigaflops"), middle("gigabytes")])
    head = "case, auto / best single way, limit of products, of memory, of multiplying, GFLOP/s, GB/s"
    return table(head.split(", "), lines, left=1)


def phase_table(rows: Iterable[Row]) -> str:
    """Return which share of a round each part takes."""
    lines = []
    parts: list[str] = []
    for row in rows:
        seconds: dict[str, float | None] = row["seconds"]
        parts, total = list(seconds), sum(part or 0.0 for part in seconds.values())
        shares = ("-" if part is None else f"{100 * part / total:.3g}%" for part in seconds.values())
        lines.append([row["case"], row["engine"], f"{1e3 * total:.3g}", *shares])
    return table(["case", "engine", "ms a round", *parts], lines, left=2)

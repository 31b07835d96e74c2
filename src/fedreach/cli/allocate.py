"""A plan as text for people."""

from __future__ import annotations

from io import StringIO
from typing import NamedTuple

from fedreach.planning.plan import Plan
from fedreach.planning.records import client_rows, record
from fedreach.wireless.allocation.problem import Solution

LISTED = 40  # clients in the table on the terminal


class _Column(NamedTuple):
    name: str  # in `client_rows`
    head: str
    unit: str = ""
    scale: float = 1.0
    from_width: int = 0  # of the terminal


_COLUMNS = (
    _Column("num_examples", "examples"),
    _Column("share", "band", "%", 100),
    _Column("hertz", "CPU", "GHz", 1e-9, 60),
    _Column("max_hertz", "at most", "GHz", 1e-9, 100),
    _Column("compute_seconds", "compute", "s"),
    _Column("upload_seconds", "upload", "s"),
    _Column("slack_seconds", "slack", "s", 1, 72),
    _Column("compute_joules", "compute", "J", 1, 100),
    _Column("upload_joules", "upload", "J", 1, 100),
)


def text(plan: Plan, width: int) -> str:
    """Return the plan as tables and sentences."""
    return "\n".join(["\n".join(_counts(plan)), _table(plan, width), *_outcome(plan), "", *_changes(plan)])


def _counts(plan: Plan) -> list[str]:
    told = record(plan)
    counts, examples = told["counts"], told["examples"]
    beyond = f", {counts['too_divergent']} too divergent" if plan.question.max_divergence is not None else ""
    return [
        f"{plan.clients.table.path}: {counts['clients']} clients, {counts['chosen']} chosen, "
        f"{counts['not_chosen']} not chosen{beyond}",
        f"examples: {examples['chosen']} chosen, {examples['needed']} needed, {examples['kept']} to be had",
    ]


def _table(plan: Plan, width: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = client_rows(plan)
    # The largest shares where there are many; in the order of the file in any case.
    largest = sorted(range(len(rows)), key=lambda j: (-rows[j]["share"], j))[:LISTED]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [column for column in _COLUMNS if width >= column.from_width]
    table.add_column("client\n", overflow="fold", min_width=8)
    for column in shown:
        table.add_column(Text(f"{column.head}\n{column.unit}"), justify="right", no_wrap=True)
    for j in sorted(largest):
        cells = (_number(rows[j][column.name] * column.scale) for column in shown)
        table.add_row(Text(rows[j]["client"]), *cells)
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(table)
    more = len(rows) - len(largest)
    left_out = f"... and {more} with smaller shares: --out FILE.csv or --json has them all\n" if more else ""
    return out.getvalue() + left_out


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _outcome(plan: Plan) -> list[str]:
    question, solution = plan.question, plan.solution
    seconds, joules = solution.allocation.seconds, solution.allocation.joules
    proof = {
        "optimal": f"proven: no choice costs less than {solution.lower_bound:.9g} (gap {solution.gap:.1e})",
        "time_limit": f"the best found in {question.time_limit_seconds:g} s; no choice costs less than "
        f"{solution.lower_bound:.9g} (gap {solution.gap:.1e}): a longer --time-limit may close it",
        "heuristic": f"the best found without a proof; no choice costs less than {solution.lower_bound:.9g} "
        f"(gap {solution.gap:.1e})",
    }[solution.status]
    return [
        f"cost {solution.cost:.9g} = {question.seconds_price:g} x {seconds:.4g} s + {question.joules_price:g} x "
        f"{joules:.4g} J",
        proof,
    ]


def _changes(plan: Plan) -> list[str]:
    question = plan.question
    lines = []
    band = "" if question.bandwidth_hertz is None else f" ({1.1 * question.bandwidth_hertz / 1e6:.4g} MHz)"
    how = "" if "distance_meters" in plan.clients.numbers else ", given rates growing in proportion"
    for what, other in (
        (f"10 % more bandwidth{band}{how}", plan.more_band),
        (f"10 % more examples ({plan.examples_asked})", plan.more_examples),
    ):
        lines.append(f"{what}: {_change(plan, other)}")
    if plan.band_price is not None:
        price = f"at the margin, bandwidth is worth {plan.band_price:.4g} for as much again at these rates"
        if plan.megahertz_price is not None:
            price += f", {plan.megahertz_price:.4g} a MHz"
        lines.append(price)
    return lines


def _change(plan: Plan, other: Solution | None) -> str:
    if other is None:
        return "interrupted" if plan.interrupted else "not to be had: the clients hold too few"
    before = plan.solution
    if before.cost - before.lower_bound >= abs(other.cost - before.cost) and before.status != "optimal":
        return f"cost {other.cost:.5g}; the change is smaller than the gap"
    now, old = set(other.allocation.ids.tolist()), set(before.allocation.ids.tolist())
    swaps = f"{len(now - old)} in and {len(old - now)} out" if now != old else "the same clients"
    return (
        f"cost {other.cost:.5g} ({100 * (other.cost / before.cost - 1):+.2f} %), {other.allocation.seconds:.4g} s, "
        f"{other.allocation.joules:.4g} J, {swaps}"
    )

"""``fedreach allocate``: plan one round with shared bandwidth."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedreach._util.errors import ConfigError
from fedreach._util.tables import csv_text
from fedreach._util.text_tables import text_table
from fedreach.cli import options
from fedreach.cli.options import InterruptError

if TYPE_CHECKING:
    from fedreach.wireless.planning import Plan
    from fedreach.wireless.problem import Solution

MAX_LISTED = 10  # clients in the table on the terminal without --verbose


@click.command(
    epilog="Examples:\n\n\b\n"
    "  fedreach allocate clients.csv --min-examples 900 --bandwidth 2e6 --report-bits 2e6 --bits-per-example 24576\n"
    "  fedreach allocate measured.csv --min-examples 900 --max-divergence 0.2 --figure plan.svg --out plan.csv\n\n"
    "Columns of CLIENTS.csv, one client per line: num_examples; upload_seconds, bits_per_second or distance_meters "
    "(and fading_gain); power_watts or power_dbm; cycles or cycles_per_bit; max_hertz or max_gigahertz; optional: "
    "client, max_joules, and divergence or label_0, label_1, ... Exits with status 2 if no set of clients is feasible."
)
@click.argument("clients", metavar="CLIENTS.csv", type=options.path)
@click.option("--min-examples", type=int, required=True, help="Require this total number of examples.")
@click.option("--bandwidth", "bandwidth_hertz", type=float, metavar="HERTZ", help="Set the shared bandwidth.")
@click.option("--report-bits", type=float, metavar="BITS", help="Set the size of a client's upload.")
@click.option("--model-parameters", type=int, metavar="N", help="Set the upload to 32 bits per parameter.")
@click.option("--bits-per-example", type=float, metavar="BITS", help="Set the size of an example (32x32 RGB: 24576).")
@click.option("--epochs", type=int, metavar="N", help="Set the number of local epochs (default: 1).")
@click.option("--max-divergence", type=float, metavar="NATS", help="Exclude clients with a larger label divergence.")
@click.option("--smoothing", type=float, metavar="N", help="Add pseudo-examples to each class (default: 1).")
@click.option("--time-weight", type=float, default=1.0, show_default=True, help="Set the cost of a second.")
@click.option("--energy-weight", type=float, default=1.0, show_default=True, help="Set the cost of a joule.")
@click.option("--capacitance", type=float, default=1e-27, show_default=True, help="Set capacitance, J/(cycle Hz^2).")
@click.option("--noise-dbm", type=float, metavar="DBM", help="Set the noise power per hertz (default: -174).")
@click.option(
    "--carrier", "carrier_hertz", type=float, metavar="HERTZ", help="Set the carrier frequency (default: 2.4e9)."
)
@click.option("--path-loss", type=float, metavar="N", help="Set the path loss exponent (default: 2.7).")
@click.option("--tolerance", type=float, default=1e-6, show_default=True, help="Set the relative optimality gap.")
@click.option(
    "--time-limit",
    "time_limit_seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="Stop each search after N seconds.",
)
@click.option("--figure", type=options.path, help="Draw the allocation into this svg, png or pdf file.")
@click.option("--out", type=options.path, help="Write the selected clients to this CSV file.")
@options.quiet
@options.verbose
@options.as_json
def allocate(clients: Path, figure: Path | None, out: Path | None, quiet: bool, as_json: bool, **settings: Any) -> None:
    """Plan a round: clients, bandwidth and CPU frequencies.

    Finds the cheapest set of clients with MIN_EXAMPLES in total, and a proven lower bound on the cost of any set. The
    cost is TIME_WEIGHT x seconds until the last client is ready + ENERGY_WEIGHT x joules of all clients. Also prints
    the effect of 10% more bandwidth or examples.
    """
    from fedreach.wireless import planning
    from fedreach.wireless.planning import Question, plan, read_clients

    question = Question(**settings)
    options.check_figure(figure)
    for flag, path in {"--figure": figure, "--out": out}.items():
        if path is not None and path.resolve() == clients.resolve():
            raise ConfigError(f"{flag} {path} would replace the table of clients; name another file.")
    silent = quiet or as_json or not sys.stderr.isatty()
    try:
        table = read_clients(clients)
        answer = plan(table, question, progress=lambda line: None if silent else options.echo(line, err=True))
    except KeyboardInterrupt:
        raise InterruptError("Interrupted before the first plan was found.") from None
    record = planning.record(answer)
    if as_json:
        options.set_json(record)
    else:
        options.echo(text(answer, record, options.width(), None if options.is_verbose() else MAX_LISTED))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(csv_text(record["clients"]), encoding="utf-8")
        options.echo(f"Data    {out}", err=as_json)
    if figure is not None:
        from fedreach.report.figures.clients import allocation

        options.save_figure(allocation(record["clients"], record["seconds"]), figure, as_json=as_json)
    if answer.interrupted:
        raise InterruptError("Interrupted. The numbers above are complete; later results are missing.")


_COLUMNS = (  # in `client_rows`, head, unit, scale
    ("num_examples", "examples", "", 1.0),
    ("share", "bandwidth", "%", 100.0),
    ("hertz", "CPU", "GHz", 1e-9),
    ("compute_seconds", "compute", "s", 1.0),
    ("upload_seconds", "upload", "s", 1.0),
    ("slack_seconds", "slack", "s", 1.0),
)


def text(plan: Plan, record: Mapping[str, Any], width: int, limit: int | None = None) -> str:
    """Return the plan and its record as tables and sentences."""
    table = _table(record["clients"], width, limit)
    return "\n".join([*_counts(plan, record), table, *_outcome(plan), "", *_changes(plan)])


def _counts(plan: Plan, record: Mapping[str, Any]) -> list[str]:
    counts, examples = record["counts"], record["examples"]
    beyond = f", {counts['too_divergent']} too divergent" if plan.question.max_divergence is not None else ""
    return [
        f"{plan.clients.path}: {counts['clients']} clients, {counts['chosen']} selected, "
        f"{counts['not_chosen']} not selected{beyond}",
        f"Examples: {examples['chosen']} selected, {examples['needed']} required, {examples['kept']} available",
    ]


def _table(rows: Sequence[Mapping[str, Any]], width: int, limit: int | None) -> str:
    # The largest shares, in the order of the file.
    largest = sorted(range(len(rows)), key=lambda j: (-rows[j]["share"], j))[:limit]
    cells = [
        [rows[j]["client"], *(_number(rows[j][name] * scale) for name, _, _, scale in _COLUMNS)]
        for j in sorted(largest)
    ]
    header = ["client\n", *(f"{head}\n{unit}" for _, head, unit, _ in _COLUMNS)]
    table = f"\n{text_table(header, cells, width)}\n"
    more = len(rows) - len(largest)
    left_out = f"and {more} more with smaller shares: --verbose\n" if more else ""
    return table + left_out


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _outcome(plan: Plan) -> list[str]:
    question, solution = plan.question, plan.solution
    seconds, joules = solution.allocation.seconds, solution.allocation.joules
    proof = {
        "optimal": f"Proven lower bound of all choices: {solution.lower_bound:.9g} (gap {solution.gap:.1e})",
        "time_limit": f"Best plan found in {question.time_limit_seconds:g} s. Proven lower bound of all choices: "
        f"{solution.lower_bound:.9g} (gap {solution.gap:.1e}). A longer --time-limit may close the gap.",
    }[solution.status]
    return [
        f"Cost {solution.cost:.9g} = {question.time_weight:g} x {seconds:.4g} s + {question.energy_weight:g} x "
        f"{joules:.4g} J",
        proof,
    ]


def _changes(plan: Plan) -> list[str]:
    question = plan.question
    lines = []
    band = "" if question.bandwidth_hertz is None else f" ({1.1 * question.bandwidth_hertz / 1e6:.4g} MHz)"
    how = "" if "distance_meters" in plan.clients.numbers else ", with rates in proportion"
    for what, solution in (
        (f"10% more bandwidth{band}{how}", plan.more_band),
        (f"10% more examples ({plan.examples_asked})", plan.more_examples),
    ):
        lines.append(f"{what}: {_change(plan, solution)}")
    if plan.band_price is not None:
        price = f"Marginal value of bandwidth: {plan.band_price:.4g} for twice as much"
        if plan.megahertz_price is not None:
            price += f", {plan.megahertz_price:.4g} per MHz"
        lines.append(price)
    return lines


def _change(plan: Plan, changed: Solution | None) -> str:
    if changed is None:
        return "interrupted" if plan.interrupted else "impossible, because the clients hold too few"
    before = plan.solution
    if before.cost - before.lower_bound >= abs(changed.cost - before.cost) and before.status != "optimal":
        return f"cost {changed.cost:.5g}; the change is smaller than the gap"
    now, old = set(changed.allocation.ids.tolist()), set(before.allocation.ids.tolist())
    swaps = f"{len(now - old)} in and {len(old - now)} out" if now != old else "the same clients"
    return (
        f"cost {changed.cost:.5g} ({100 * (changed.cost / before.cost - 1):+.2f}%), "
        f"{changed.allocation.seconds:.4g} s, {changed.allocation.joules:.4g} J, {swaps}"
    )

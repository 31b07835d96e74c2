"""``fedreach doctor``: what works on this machine, what is missing, and which command mends it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fedreach.cli import options


@click.command(epilog="Examples:\n\n\b\n  fedreach doctor\n  fedreach doctor --out study/runs --json")
@click.option("--out", type=options.path, default=Path("runs"), show_default=True, help="Where runs are to be written.")
@options.as_json
def doctor(out: Path, as_json: bool) -> None:
    """Look at this machine: what works, what is missing, and what mends it.

    Ends with 0 if the core works, whatever else is missing; with 1 if it does not.
    """
    from fedreach.cli.health import checks
    from fedreach.errors import FedReachError
    from fedreach.tables import visible_lines

    found = checks(out)
    broken = [check.name for check in found if check.core and not check.works]
    if as_json:
        options.answer({"works": not broken, "checks": [asdict(check) for check in found]})
    else:
        for check in found:
            mark = "ok" if check.works else ("BROKEN" if check.core else "lacking")
            click.echo(visible_lines(f"{mark:<7} {check.name:<16} {check.found}"))
            if not check.works:
                click.echo(visible_lines(f"{'':24} to mend: {check.mend}"))
    if broken:
        raise FedReachError(f"FedReach cannot work here: {', '.join(broken)}.")

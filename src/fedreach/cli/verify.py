"""``fedreach verify``: check components."""

import os
import sys
import time
from pathlib import Path

import click

from fedreach._util.errors import ConfigError, FedReachError
from fedreach._util.registry import VERIFIED
from fedreach.cli import options


@click.command(
    epilog="Examples:\n\n\b\n  fedreach verify\n  fedreach verify minimax scaffold\n"
    "  fedreach verify my_policy.py:rarely_heard\n  fedreach verify my_solvers.py:MyDyn --set alpha=0.5"
)
@click.argument("components", nargs=-1, shell_complete=options.complete_components)
@click.option(
    "--kind", shell_complete=options.complete(lambda: VERIFIED), help="Set the component type, such as selection."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set an option. Repeatable.")
@click.option("--without", multiple=True, metavar="CHECK", help="Skip a check. Repeatable.")
@click.option("--list", "only_list", is_flag=True, help="List all checks without running them.")
@options.verbose
@options.as_json
def verify(
    components: tuple[str, ...],
    kind: str | None,
    settings: tuple[str, ...],
    without: tuple[str, ...],
    only_list: bool,
    as_json: bool,
) -> None:
    """Check that components satisfy their contract.

    COMPONENTS are built-in names, FILE.py:NAME or module:NAME. They refer to classes, objects, or functions for
    selection or weighting. Default: all built-in components. Exits with status 1 if a check fails.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # inputs are small, for which threads cost more than they save
    from fedreach.cli import checking

    if only_list:
        checks = checking.list_checks()
        if as_json:
            options.set_json(checks)
        else:
            options.echo(checking.list_text(checks))
        return
    began, results = time.perf_counter(), []
    for result in checking.check_all(components, Path.cwd(), kind=kind, options=settings, without=without):
        results.append(result)
        if not as_json and (options.is_verbose() or components or not result.passed):
            options.echo(checking.result_line(result))
    seconds = time.perf_counter() - began
    failed, skipped = [r for r in results if not r.passed], [r for r in results if r.skipped]
    if as_json:
        records = [checking.result_record(result) for result in results]
        options.set_json({"components": records, "seconds": seconds, "passed": not failed})
    if components and skipped:
        raise ConfigError(skipped[0].skipped)
    number = len(results) - len(skipped)
    if not (as_json or options.is_verbose() or components):
        options.echo(checking.counts_text(results))
    if failed:
        raise FedReachError(f"{len(failed)} of {number} components fail{'s' if len(failed) == 1 else ''} a check.")
    if not as_json:
        left_out = f"; {len(skipped)} skipped, as libraries are missing" if skipped else ""
        options.echo(f"All checks passed by {number} component{'s' * (number != 1)} in {seconds:.0f} s{left_out}.")

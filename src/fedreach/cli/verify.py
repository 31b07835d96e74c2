"""``fedreach verify``: parts, and the laws that they must keep."""

import os
import sys
import time
from pathlib import Path

import click

from fedreach.cli import completing, options
from fedreach.errors import ConfigError, FedReachError


@click.command(
    epilog="Examples:\n\n\b\n  fedreach verify\n  fedreach verify minimax scaffold\n"
    "  fedreach verify my_policy.py:rarely_heard\n  fedreach verify my_solvers.py:MyDyn --as feddyn --set alpha=0.5"
)
@click.argument("parts", nargs=-1, shell_complete=completing.parts)
@click.option(
    "--kind",
    shell_complete=completing.verified_kinds,
    help="What the part is, such as selection; needed where its methods do not tell.",
)
@click.option(
    "--as",
    "as_",
    multiple=True,
    metavar="NAME",
    shell_complete=completing.parts,
    help="Try it by the laws of this built-in part, too.",
)
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="An option of the part. Repeatable.")
@click.option("--without", multiple=True, metavar="LAW", help="Leave out a law. Repeatable.")
@click.option("--list", "only_list", is_flag=True, help="Show all laws in words, and try nothing.")
@options.as_json
def verify(
    parts: tuple[str, ...],
    kind: str | None,
    as_: tuple[str, ...],
    given: tuple[str, ...],
    without: tuple[str, ...],
    only_list: bool,
    as_json: bool,
) -> None:
    """Try parts by the laws that they must keep; tell which law broke, and with which input.

    PARTS are built-in names, FILE.py:NAME or module:NAME: a class, an object, or a function that selects or weighs.
    Without PARTS, all built-in ones. A class that inherits from a built-in part, or is named like one, must keep that
    one's own laws as well. Ends with 1 if a law is broken.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # inputs are small: threads would only wait for each other
    from fedreach.cli import verdicts

    if only_list:
        laws = verdicts.listed()
        if as_json:
            options.answer(laws)
        else:
            click.echo(verdicts.list_text(laws))
        return
    began, found = time.perf_counter(), []
    for verdict in verdicts.verdicts(parts, Path.cwd(), kind=kind, as_=as_, options=given, without=without):
        found.append(verdict)
        if not as_json:
            click.echo(verdicts.line(verdict))
    seconds = time.perf_counter() - began
    broken, skipped = [v for v in found if not v.keeps_all], [v for v in found if v.skipped]
    if as_json:
        options.answer({"parts": [verdicts.record(v) for v in found], "seconds": seconds, "kept": not broken})
    if parts and skipped:
        raise ConfigError(skipped[0].skipped)
    tried = len(found) - len(skipped)
    if broken:
        raise FedReachError(f"{len(broken)} of {tried} parts break{'s' if len(broken) == 1 else ''} a law.")
    if not as_json:
        left_out = f"; {len(skipped)} skipped, as libraries are missing" if skipped else ""
        click.echo(f"All laws kept by {tried} part{'s' * (tried != 1)} in {seconds:.0f} s{left_out}.")

"""``fedreach disclose``: show what the server learns about clients."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fedreach.cli import options


@click.command(
    epilog="Examples:\n\n\b\n  fedreach disclose\n  fedreach disclose my.toml --set method.selection=minimax\n"
    "  fedreach disclose my.toml --set method.label_statistics=secure_aggregation --verbose"
)
@options.config
@options.overrides
@options.verbose
@options.as_json
def disclose(config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what the server learns about clients on Flower.

    Lists the data for all methods of the experiment, without [sweep] and [tune]. --verbose adds how to limit them.
    """
    from fedreach._util.text_tables import text_table
    from fedreach.experiment.build import Builder
    from fedreach.experiment.components import locate_user_errors
    from fedreach.federation.disclosure import Disclosed, when_learned

    experiment, base = options.load(config, overrides)
    methods: dict[Disclosed, list[str]] = {}  # data -> methods with which the server learns them
    with locate_user_errors(experiment, base):
        for method in experiment.methods or [None]:
            builder = Builder(experiment.resolved(method), base)
            for data in builder.what_the_server_learns(builder.federation(experiment.seeds[0])):
                methods.setdefault(data, []).append(method or "")
    methods = {data: methods[data] for data in sorted(methods, key=when_learned)}
    if as_json:
        options.set_json([{**asdict(data), "methods": names} for data, names in methods.items()])
        return
    header = ["data", "of", "when", "form"]
    rows = [[data.what, data.whose, data.when, data.form] for data in methods]
    everywhere = max(1, len(experiment.methods))
    if any(len(names) < everywhere for names in methods.values()):
        header.append("methods")
        for row, names in zip(rows, methods.values(), strict=True):
            row.append("all" if len(names) == everywhere else ", ".join(names))
    if options.is_verbose():
        header.append("limited by")
        for row, data in zip(rows, methods, strict=True):
            row.append(data.limit or "-")
    notes = ["A sum over one client is the data of this client."] if any(data.summed for data in methods) else []
    more = [] if options.is_verbose() else ["More    fedreach disclose --verbose"]
    options.echo(text_table(header, rows, options.width(), left=len(header), note="\n".join(notes + more)))

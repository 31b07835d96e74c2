"""Reference page of the commands, from the command line's own help."""

from __future__ import annotations

import re

import click

from fedreach.cli import main

HEAD = """\
# Commands

`fedreach --help` and `fedreach COMMAND --help` print the same text. Exit status: 0 if the command did what you asked,
1 if it failed, 2 for a wrong request, 3 for data or stored files that cannot be used, 130 after Ctrl-C. With `--json`,
the command prints one JSON document, errors included.
"""


def pages() -> dict[str, str]:
    """Return the page."""
    context = click.Context(main, info_name="fedreach")
    return {"reference/commands.md": HEAD + "".join(section(name, context) for name in main.list_commands(context))}


def section(name: str, parent: click.Context) -> str:
    """Return the section of one command."""
    command = main.commands[name]
    context = click.Context(command, info_name=name, parent=parent)
    lines = [f"\n## fedreach {name} {{ #{name} }}", f"```text\n{command.get_usage(context)}\n```"]
    lines.append(re.sub(r"\s*\n\s*(?=\S)", "\n", (command.help or "").replace("\b", "")).strip())
    rows = [row for parameter in command.get_params(context) if (row := option(parameter, context))]
    lines.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    examples = (command.epilog or "").replace("\b", "")
    shown = [line.strip() for line in examples.splitlines() if line.strip().startswith("fedreach")]
    if shown:
        lines.append("```text\n" + "\n".join(shown) + "\n```")
    return "\n\n".join(lines) + "\n"


def option(parameter: click.Parameter, context: click.Context) -> str:
    """Return a row of the table; "" for an argument that the usage describes completely."""
    names, meaning = parameter.get_help_record(context) or ("", "")
    if not meaning and isinstance(parameter, click.Argument):
        return ""
    meaning = " ".join(meaning.split()).replace("|", "\\|")
    return f"| `{' '.join(names.split())}` | {meaning} |"

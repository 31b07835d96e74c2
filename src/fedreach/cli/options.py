"""Options that commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from fedreach._util import registry
from fedreach._util.errors import FedReachError
from fedreach._util.registry import KINDS, METHOD, VERIFIED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedreach.data.federated import FederatedData
    from fedreach.experiment.schema import Experiment


# -------------------- What the shell offers on TAB: names of kinds and of parts, and where in an experiment they stand

PLACES = {".".join((*row.path, kind)): kind for kind, row in KINDS.items() if row.path is not None}
"""Keys of an experiment that name something, and the kinds of it."""


def kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a kind."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def trackers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a tracker."""
    return [name for name in registry.table("tracker") if name.startswith(incomplete)]


def verified_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a kind that has checks."""
    return [kind for kind in VERIFIED if kind.startswith(incomplete)]


def parts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a part whose kind has checks, or else a file."""
    asked = ctx.params.get("kind")
    found = dict.fromkeys(
        name
        for kind in ([asked] if asked in VERIFIED else VERIFIED)
        for name in registry.table(kind)
        if name.startswith(incomplete)
    )
    return list(map(CompletionItem, found)) or [CompletionItem(incomplete, type="file")]


def settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete ``method.selection=uniform``: the key, and once there is only one such key, what may stand there."""
    key, equals, _ = incomplete.partition("=")
    if equals:
        kind = _kind_at(key)
        found = {} if kind is None else {key: kind}
    else:
        found = {place: kind for place, kind in PLACES.items() if place.startswith(key)}
    if len(found) > 1:
        return list(found)
    pairs = [f"{place}={name}" for place, kind in found.items() for name in registry.table(kind)]
    return [pair for pair in pairs if pair.startswith(incomplete)]


def _kind_at(key: str) -> str | None:
    """Return what kind of thing a key of an experiment names.

    Example:
        >>> _kind_at("method.selection"), _kind_at("methods.mine.selection.name"), _kind_at("local.rate")
        ('selection', 'selection', None)
    """
    steps = key.removesuffix(".name").split(".")
    if steps[0] == "methods" and len(steps) == 3:
        steps = [*METHOD, steps[2]]
    return PLACES.get(".".join(steps))


class Bash(BashComplete):
    """bash takes ``a.b=c`` for three words, of which it completes the last; commands see one word."""

    def get_completion_args(self) -> tuple[list[str], str]:
        shown, last = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        words: list[str] = []
        joined = False  # to the word before
        for word in shown[1 : last + 1]:
            if words and (joined or word == "="):
                words[-1] += word
            else:
                words.append(word)
            joined = word == "="
        return words, words.pop() if last < len(shown) else ""

    def format_completion(self, item: CompletionItem) -> str:
        if "=" not in split_arg_string(os.environ["COMP_WORDS"]):  # it stands in no word, or parts none
            return super().format_completion(item)
        _, incomplete = self.get_completion_args()
        before = incomplete[: incomplete.rfind("=") + 1]
        if before.startswith("-"):  # --option=value
            before = before.partition("=")[2]
        return f"{item.type},{item.value.removeprefix(before)}"


add_completion_class(Bash)


# -------------------- What several commands share: options, and how they are read

LOG_WIDTH = 220  # of tables that go to a file or a pipe
JSON = "fedreach.json"  # where the document of a call that is to print one is kept

path = click.Path(path_type=Path)
config = click.argument("config", required=False, type=path)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=C",
    shell_complete=settings,
    help="Override an option, such as local.rate=0.05. Repeatable.",
)
seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Default: the first of `seeds`.")
workers = click.option(
    "--workers", type=click.IntRange(1), help="Processes at a time. Default: the cores. Changes no number."
)
formats = click.option(
    "--formats",
    default="page",
    show_default=True,
    help="page: figures in the page alone; svg,png,pdf or some of them: also as files; none: draw no figures.",
)
figure_files = click.option(
    "--formats",
    default="svg,png,pdf",
    show_default=True,
    help="Figure formats, comma separated; none: draw no figures.",
)
device = click.option("--device", help="Where to train: cpu, cuda, cuda:1. Short for --set engine.device=...")
track = click.option(
    "--track",
    "tracked",
    multiple=True,
    metavar="NAME",
    shell_complete=trackers,
    help="Write the rounds for tensorboard, mlflow, csv, or FILE.py:NAME of your own, too. Repeatable.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress.")
_OF_RUN = (
    click.option("--method", help="Of a comparison: the run of this method."),
    click.option("--seed", type=click.IntRange(0), help="Of a comparison: the run of this seed."),
    click.option(
        "--which",
        type=click.Choice(["last", "best", "refit"]),
        help="Which model. Default: refit, where the run has it, else last.",
    ),
    click.option("--cluster", type=click.IntRange(0), help="Number of the model, where the run has one a cluster."),
    click.option("--base", type=path, help="Folder that FILE.py:NAME is relative to. Default: the current one."),
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, errors included, and no progress."
)


def of_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose a model of a run."""
    for option in reversed(_OF_RUN):
        command = option(command)
    return command


class InterruptError(FedReachError):
    """Ctrl-C ended a command in its own way, said in the message."""

    exit_code = 130


def promise_json(context: click.Context) -> None:
    """Note that this call prints one JSON document, however it ends."""
    context.meta[JSON] = None


def answer(document: Any) -> None:
    """Give the JSON document of a command, or further keys of it, which is printed as the command ends."""
    meta = click.get_current_context().meta
    before = meta.get(JSON)
    meta[JSON] = document if before is None else {**before, **document}


def say_json(context: click.Context, error: str | None = None) -> None:
    """Print the JSON document that was promised, once; in it, how the command failed, if it did."""
    if JSON not in context.meta:
        return
    document = context.meta.pop(JSON)
    if error is not None:
        document = {**(document if isinstance(document, dict) else {}), "error": error}
    if document is not None:  # as where a process only served another one's run
        finite = json.loads(json.dumps(document), parse_constant=lambda name: None)  # JSON has no nan and no infinity
        click.echo(json.dumps(finite))


def load(
    config: Path | None,
    overrides: Sequence[str],
    device: str | None = None,
    tracked: Sequence[str] = (),
    default: Path | None = None,
) -> tuple[Experiment, Path]:
    """Return the experiment and the folder that its files are relative to; `default`: that without a file."""
    from fedreach.experiment.components import folder_of
    from fedreach.experiment.load import load

    if device is not None:
        overrides = [*overrides, f"engine.device={device}"]
    if tracked:
        overrides = [*overrides, f"run.trackers={json.dumps(tracked)}"]
    return load(config, overrides, default), folder_of(config)


def federated(experiment: Experiment, base: Path) -> FederatedData:
    """Return the data of an experiment's first seed."""
    from fedreach.experiment.build import Builder
    from fedreach.experiment.components import locate_user_errors

    with locate_user_errors(experiment, base):
        builder = Builder(experiment, base)
        return builder.federated(builder.dataset(progress=sys.stderr.isatty()), experiment.seeds[0])


def compared(experiment: Experiment, base: Path) -> FederatedData:
    """Return the data of a comparison's first seed, which all its methods take."""
    from fedreach.experiment.build import Builder
    from fedreach.experiment.components import locate_user_errors

    with locate_user_errors(experiment, base):
        builder = Builder(experiment, base)
        return builder.compared(builder.dataset(progress=sys.stderr.isatty()))


def figure_formats(text: str) -> tuple[str, ...] | None:
    """Return the formats of files in a comma separated list, checked; None where no figures are to be drawn at all."""
    from fedreach.report.figures.style import check_formats

    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if found == ("none",):
        return None
    if found == ("page",):
        return ()
    check_formats(found)
    return found


def check_figure(path: Path | None) -> None:
    """Refuse the path of a figure that does not end in a format; before the work whose result is drawn."""
    from fedreach.report.figures.style import check_formats

    if path is not None:
        check_formats([path.suffix[1:].lower() or "none"])


def save_figure(figure: Figure, path: Path, *, as_json: bool) -> None:
    """Write a figure to a path that `check_figure` accepts, and say so."""
    from fedreach.report.figures.style import save

    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path.with_suffix(""), [path.suffix[1:].lower()])
    click.echo(f"Drew {path}", err=as_json)


def width() -> int:
    """Return how wide a table may be."""
    return get_terminal_size().columns if sys.stdout.isatty() else LOG_WIDTH

"""Options that commands share."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from fedreach._util import registry
from fedreach._util.errors import ConfigError, FedReachError
from fedreach._util.registry import COMPONENT_TYPES, METHOD, VERIFIED
from fedreach._util.tables import visible_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedreach.data.federated import FederatedData
    from fedreach.deploy.fitted_rule import Which
    from fedreach.deploy.model import TrainedModel
    from fedreach.experiment.schema import Experiment


# ---- Completion in shells

PLACES = {".".join((*row.path, kind)): kind for kind, row in COMPONENT_TYPES.items() if row.path is not None}
"""Key of an experiment that refers to a component -> type of the component."""


Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def complete(names: Callable[[], Iterable[str]]) -> Completion:
    """Return a function that completes one of these names."""
    return lambda context, parameter, incomplete: [name for name in names() if name.startswith(incomplete)]


def complete_components(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a component whose type has checks, or else a file name."""
    chosen_kind = ctx.params.get("kind")
    names = dict.fromkeys(
        name
        for kind in ([chosen_kind] if chosen_kind in VERIFIED else VERIFIED)
        for name in registry.table(kind)
        if name.startswith(incomplete)
    )
    return list(map(CompletionItem, names)) or [CompletionItem(incomplete, type="file")]


def settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete ``method.selection=uniform``: first the key, then, if only one key matches, its value."""
    key, equals, _ = incomplete.partition("=")
    if equals:
        kind = _kind_at(key)
        kind_by_key = {} if kind is None else {key: kind}
    else:
        kind_by_key = {place: kind for place, kind in PLACES.items() if place.startswith(key)}
    if len(kind_by_key) > 1:
        return list(kind_by_key)
    pairs = [f"{place}={name}" for place, kind in kind_by_key.items() for name in registry.table(kind)]
    return [pair for pair in pairs if pair.startswith(incomplete)]


def _kind_at(key: str) -> str | None:
    """Return the type of the component that a key of an experiment names.

    Example:
        >>> _kind_at("method.selection"), _kind_at("methods.mine.selection.name"), _kind_at("local.lr")
        ('selection', 'selection', None)
    """
    steps = key.removesuffix(".name").split(".")
    if steps[0] == "methods" and len(steps) == 3:
        steps = [*METHOD, steps[2]]
    return PLACES.get(".".join(steps))


class Bash(BashComplete):
    """Completion for bash, which splits ``a.b=c`` into three words and completes the last one."""

    def get_completion_args(self) -> tuple[list[str], str]:
        typed_words, last = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        words: list[str] = []
        joined = False  # whether the next word belongs to the previous one
        for word in typed_words[1 : last + 1]:
            if words and (joined or word == "="):
                words[-1] += word
            else:
                words.append(word)
            joined = word == "="
        return words, words.pop() if last < len(typed_words) else ""

    def format_completion(self, item: CompletionItem) -> str:
        if "=" not in split_arg_string(os.environ["COMP_WORDS"]):  # without "=", bash does not split words
            return super().format_completion(item)
        _, incomplete = self.get_completion_args()
        before = incomplete[: incomplete.rfind("=") + 1]
        if before.startswith("-"):  # --option=value
            before = before.partition("=")[2]
        return f"{item.type},{item.value.removeprefix(before)}"


add_completion_class(Bash)


# ---- Options of several commands

LOG_WIDTH = 120  # width of text in a file or a pipe
VERBOSE = "fedreach.verbose"  # key of click's context for the flag --verbose
JSON = "fedreach.json"  # key of click's context for the JSON document of the command

path = click.Path(path_type=Path)
config = click.argument("config", required=False, type=path)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=C",
    shell_complete=settings,
    help="Set an option, such as local.lr=0.05. Repeatable.",
)
seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Use this seed (default: the first of `seeds`).")
workers = click.option("--workers", type=click.IntRange(1), help="Use N processes (default: one per core).")
formats = click.option(
    "--formats",
    default="page",
    show_default=True,
    help="Draw figures in the HTML report (page), also as files (svg,png,pdf), or none.",
)
figure_files = click.option(
    "--formats", default="svg,png,pdf", show_default=True, help="Write figures as svg,png,pdf, or none."
)
device = click.option("--device", help="Train on cpu, cuda or cuda:1; short for --set engine.device=...")
track = click.option(
    "--track",
    "tracked",
    multiple=True,
    metavar="NAME",
    shell_complete=complete(lambda: registry.table("tracker")),
    help="Send rounds to tensorboard, mlflow or FILE.py:NAME. Repeatable.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
verbose = click.option(
    *("-v", "--verbose"),
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({VERBOSE: value}),
    help="Print all tables, columns and file names.",
)
trust_code = click.option("--trust-code", is_flag=True, help="Run custom code named in the folder or file.")
_OF_RUN = (
    click.option("--method", help="Choose the run of this method in a comparison."),
    click.option("--seed", type=click.IntRange(0), help="Choose the run of this seed in a comparison."),
    click.option(
        "--which", type=click.Choice(["last", "best", "refit"]), help="Choose the model (default: refit, else last)."
    ),
    click.option("--cluster", type=click.IntRange(0), help="Choose the model of this client cluster."),
    click.option("--base", type=path, help="Resolve FILE.py:NAME in this folder (default: current folder)."),
    trust_code,
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, including errors.")


@dataclass(frozen=True)
class ChosenModel:
    """The model that the options of `of_run` choose."""

    method: str | None
    seed: int | None
    which: Which | None
    cluster: int | None
    base: Path | None
    trust_code: bool

    def folder(self, run: Path) -> Path:
        """Return the run folder that the options choose in a run folder or in the folder of a comparison."""
        from fedreach.runs.identity import folder_of_run

        return folder_of_run(run, self.method, self.seed)

    def load(self, run: Path) -> TrainedModel:
        """Return the model."""
        from fedreach.deploy.saved import load

        return load(self.folder(run), self.which, cluster=self.cluster, base=self.base, trust_code=self.trust_code)


def of_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a model of a run to a command, which receives them as `chosen`."""

    @functools.wraps(command)
    def with_chosen(**arguments: Any) -> Any:
        names = [field.name for field in dataclasses.fields(ChosenModel)]
        return command(chosen=ChosenModel(*(arguments.pop(name) for name in names)), **arguments)

    return functools.reduce(lambda inner, option: option(inner), reversed(_OF_RUN), with_chosen)


class InterruptError(FedReachError):
    """Ctrl-C interrupted a command; the command provides the message."""

    exit_code = 130


def echo(text: str, *, err: bool = False, color: str | None = None, end: str = "\n") -> None:
    """Print a text with its control characters visible (see `visible_lines`), as names may contain any character."""
    click.secho(f"{visible_lines(text)}{end}", fg=color, err=err, nl=False)


def echo_file(text: str) -> None:
    """Print the text of a file, such as CSV, to stdout: unchanged in a pipe, and as `echo` on a terminal."""
    click.echo(visible_lines(text) if sys.stdout.isatty() else text, nl=False)


def promise_json(context: click.Context) -> None:
    """Record in the context that the command prints one JSON document, even if it fails."""
    context.meta[JSON] = None


def set_json(document: Any) -> None:
    """Store the JSON document of a command, or add keys to it; it is printed at the end of the command."""
    meta = click.get_current_context().meta
    before = meta.get(JSON)
    meta[JSON] = document if before is None else {**before, **document}


def say_json(context: click.Context, error: str | None = None) -> None:
    """Print the JSON document of the command once, with its error if it failed."""
    if JSON not in context.meta:
        return
    document = context.meta.pop(JSON)
    if error is not None:
        document = {**(document if isinstance(document, dict) else {}), "error": error}
    if document is not None:  # None in a process that only helps with another one's run
        finite = json.loads(json.dumps(document), parse_constant=lambda name: None)  # JSON has neither nan nor infinity
        echo(json.dumps(finite))


def load(
    config: Path | None,
    overrides: Sequence[str],
    device: str | None = None,
    tracked: Sequence[str] = (),
    default: Path | None = None,
    *,
    alone: bool = False,
) -> tuple[Experiment, Path]:
    """Return the experiment and the folder that its files are relative to; without a file, load `default`.

    With `alone`, the methods of the default file are ignored.
    """
    from fedreach.experiment.components import folder_of
    from fedreach.experiment.load import load

    if device is not None:
        overrides = [*overrides, f"engine.device={device}"]
    if tracked:
        overrides = [*overrides, f"run.trackers={json.dumps(tracked)}"]
    return load(config, overrides, default, alone=alone), folder_of(config)


def first_seed_data(experiment: Experiment, base: Path, *, shared: bool = False) -> FederatedData:
    """Return the data of an experiment's first seed; with `shared`, check that all its methods accept the data."""
    from fedreach.experiment.build import Builder
    from fedreach.experiment.components import locate_user_errors

    with locate_user_errors(experiment, base):
        builder = Builder(experiment, base)
        dataset = builder.dataset(progress=sys.stderr.isatty())
        return builder.compared(dataset) if shared else builder.federated(dataset, experiment.seeds[0])


def figure_formats(text: str) -> tuple[str, ...] | None:
    """Return the file formats of a comma-separated list; None for "none", which draws no figures."""
    from fedreach.report.figures.style import check_formats

    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if names == ("none",):
        return None
    if names == ("page",):
        return ()
    try:
        check_formats(names)
    except ConfigError as error:
        raise ConfigError(f"--formats: {error} Or choose page (figures in the HTML report only) or none.") from None
    return names


def check_figure(path: Path | None) -> None:
    """Raise ConfigError, before any other work, if the path of a figure does not end in a known format."""
    from fedreach.report.figures.style import check_formats

    if path is not None:
        check_formats([path.suffix[1:].lower() or "none"])


def save_figure(figure: Figure, path: Path, *, as_json: bool) -> None:
    """Write a figure to a path that `check_figure` accepts, and print the path."""
    from fedreach.report.figures.style import save

    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path.with_suffix(""), [path.suffix[1:].lower()])
    echo(f"Figure  {path}", err=as_json)


def is_verbose() -> bool:
    """Return whether the flag --verbose is set."""
    return bool(click.get_current_context().meta.get(VERBOSE))


def width() -> int:
    """Return the width of tables in characters."""
    return get_terminal_size().columns if sys.stdout.isatty() else LOG_WIDTH

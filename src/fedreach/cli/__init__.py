"""The command ``fedreach``: it parses and prints; the packages that it calls are imported when needed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import fedreach
from fedreach.errors import ConfigError, DataError, FedReachError, nearest
from fedreach.threads import ONE_THREAD

if TYPE_CHECKING:
    from fedreach.config.sections import Experiment
    from fedreach.data.federated import FederatedData
    from fedreach.engines.parallel.ranks import Ranks

INTERRUPTED = 130
LOG_WIDTH = 220  # of tables that go to a file or a pipe


class _Commands(click.Group):
    """Commands whose mistakes end in one message, never in a traceback."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            ctx.fail(f"There is no command {cmd_name!r}.{nearest(cmd_name, self.commands)}")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        if "numpy" not in sys.modules:  # or it is somebody else's process
            os.environ.update(ONE_THREAD)
        try:
            return super().invoke(ctx)
        except FedReachError as error:
            _end(str(error), error.exit_code)
        except KeyboardInterrupt:
            _end("Interrupted. Nothing is lost: the same command goes on where this one stopped.", INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output went away, as in `fedreach list | head -1`.
            sys.stdout = None
            sys.exit(0)
        except MemoryError:
            _end("Out of memory. Lower --workers, or use smaller models or data.", 1)
        except OSError as error:
            _end(f"{error.filename or 'A file'}: {error.strerror or error}.", DataError.exit_code)


def _end(message: str, code: int) -> NoReturn:
    click.secho("error: ", fg="red", bold=True, err=True, nl=False)
    click.echo(message, err=True)
    sys.exit(code)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Without CONFIG, `run`, `compare` and `partition` use the handwritten digits that come with FedReach.",
)
@click.version_option(fedreach.__version__, prog_name="fedreach")
def main() -> None:
    """Federated learning for the clients who train and for those who never do."""


def _complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from fedreach.registry import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


_config = click.argument("config", required=False, type=click.Path(path_type=Path))
_set = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=C",
    help="Override an option, such as local.rate=0.05. Repeatable.",
)
_device = click.option("--device", help="Where to train: cpu, cuda, cuda:1. Short for --set engine.device=...")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document for machines, and no progress.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress.")


def _load(config: Path | None, overrides: Sequence[str], device: str | None = None) -> tuple[Experiment, Path]:
    from fedreach.config.load import load

    if device is not None:
        overrides = [*overrides, f"engine.device={device}"]
    experiment = load(config, overrides)
    return experiment, (config.resolve().parent if config is not None else Path.cwd())


# --------------------------------------------------------------------------------------------------------- run


@main.command(
    epilog="Examples:\n\n\b\n  fedreach run\n  fedreach run my.toml --set local.rate=0.05 --seed 3\n"
    "  fedreach run my.toml --method entropy --out runs/entropy"
)
@_config
@_set
@click.option("--method", help="Run the method of this name from [methods.NAME]; default: the parts in [method].")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Default: the first of `seeds`.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder. Default: runs/NAME-METHOD-seed-N.")
@click.option("--resume", is_flag=True, help="Insist on going on: fail where there is no checkpoint.")
@_device
@click.option("--explain", is_flag=True, help="Say which engine trains, and what the others would take.")
@_quiet
@_json
def run(
    config: Path | None,
    overrides: tuple[str, ...],
    method: str | None,
    seed: int | None,
    out: Path | None,
    resume: bool,
    device: str | None,
    explain: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run one federation.

    Rows are appended to OUT/rounds.jsonl as rounds end. The same command again goes on where it was interrupted,
    and does nothing where the run is finished. Started by torchrun, all processes share the work of the run.
    """
    from fedreach.cli import terminal
    from fedreach.experiments.run import run as run_one
    from fedreach.runs.checkpoint import CHECKPOINT

    with _ranks() as ranks:
        experiment, base = _load(config, overrides, device)
        seed = experiment.seeds[0] if seed is None else seed
        folder = out or Path("runs") / f"{experiment.name}-{method or 'run'}-seed-{seed}"
        serves = ranks is not None and ranks.rank > 0
        if resume and not serves and not (folder / CHECKPOINT).exists():
            raise ConfigError(f"--resume: there is no checkpoint in {folder}. Without --resume the run starts anew.")
        resolved = experiment.resolved(method)
        silent = quiet or as_json or serves

        def begin(data: FederatedData) -> None:
            if not silent:
                click.echo(terminal.summary(resolved.model_copy(update={"seeds": [seed]}), data), err=True)
                click.echo(f"  {resolved.rounds} rounds into {folder}", err=True)

        with terminal.run_progress(resolved, quiet=silent) as tell:
            result = run_one(
                resolved,
                seed=seed,
                folder=folder,
                base=base,
                method=method or "run",
                ranks=ranks,
                explain=(lambda why: click.echo(f"  {why}", err=True)) if explain and not serves else lambda why: None,
                begin=begin,
                tell=tell,
            )
    if serves:
        return
    last = terminal.last_evaluation(folder)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **result, "last": last}))
        return
    click.echo(terminal.sentence(last, result))
    click.echo(f"Wrote {folder}" + "".join(f"\n      {path}" for path in sorted(folder.glob("[!.]*"))))


def _ranks() -> AbstractContextManager[Ranks | None]:
    """Join the processes that torchrun started for this run; None where this one is alone."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from fedreach.engines.parallel.launch import join

    return join()


# ----------------------------------------------------------------------------------------------------- compare


@main.command(
    epilog="Examples:\n\n\b\n  fedreach compare\n  fedreach compare examples/fashion_mnist.toml\n"
    "  fedreach compare my.toml --seeds 5 --workers 2 --set local.epochs=5 --out runs/longer"
)
@_config
@_set
@click.option("--seeds", type=click.IntRange(1, 10_000), help="Use the seeds 0, 1, ..., N-1.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the comparison. Default: runs/NAME.")
@click.option("--workers", type=click.IntRange(1), help="Processes at a time. Default: the cores. Changes no number.")
@click.option("--executor", default="local", show_default=True, help="local, or ray: a cluster, see docs/cluster.md.")
@click.option("--address", help="Of the Ray cluster: auto, HOST:PORT, ray://HOST:PORT. Default: start one here.")
@click.option("--formats", default="svg,png,pdf", show_default=True, help="Figure formats, comma separated.")
@_device
@_quiet
@_json
def compare(
    config: Path | None,
    overrides: tuple[str, ...],
    seeds: int | None,
    out: Path | None,
    workers: int | None,
    executor: str,
    address: str | None,
    formats: str,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare methods on the same federation: table, figures and page.

    Runs every [methods.NAME] with every seed in parallel processes. The same command again runs only what is
    unfinished; with a method or a seed more, only what is new. Ends with 1 if a run failed.
    """
    from fedreach.cli import terminal
    from fedreach.experiments.compare import compare as compare_all
    from fedreach.experiments.executors import chosen

    machines = chosen(executor, address)
    experiment, base = _load(config, overrides, device)
    if seeds is not None:
        experiment = experiment.model_copy(update={"seeds": list(range(seeds))})
    out = out or Path("runs") / experiment.name
    figure_formats = _formats(formats)
    silent = quiet or as_json

    def begin() -> None:
        from fedreach.engines.samples import checked_device

        if executor == "local":  # the machine that starts a comparison on a cluster may have no GPU
            checked_device(experiment.engine.device)
        data = _federated(experiment, base)  # read here too, so that data that cannot be used ends it at once
        if not silent:
            click.echo(terminal.summary(experiment, data), err=True)

    with terminal.compare_progress(quiet=silent) as tell:
        told = compare_all(experiment, out=out, base=base, workers=workers, executor=machines, begin=begin, tell=tell)
    if told.finished:
        _report([out], out, figure_formats, as_json)
    for job, cause in told.failed.items():
        click.secho(f"failed: {job.label}: {cause}", fg="red", err=True)
    if told.failed:
        _end(
            f"{len(told.failed)} of {len(told.jobs)} runs failed. The others are kept; the same command tries again.", 1
        )


# ------------------------------------------------------------------------------------------------------ report


@main.command(
    epilog="Examples:\n\n\b\n  fedreach report runs/digits\n  fedreach report runs/a runs/b --out both --formats svg\n"
    "  fedreach report runs/digits --json | jq '.methods[].unseen_mean'"
)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Where to make report/. Default: the first folder.")
@click.option("--formats", default="svg,png,pdf", show_default=True, help="Figure formats, comma separated.")
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard (extra `tracking`).")
@_json
def report(folders: tuple[Path, ...], out: Path | None, formats: str, tensorboard: bool, as_json: bool) -> None:
    """Make table, figures and page again from the stored rows of comparisons or runs."""
    out = out or folders[0]
    _report(folders, out, _formats(formats), as_json)
    if tensorboard:
        from fedreach.report.render.tensorboard import write_events

        write_events(folders, out / "report" / "tensorboard")
        click.echo(f"Event files: {out / 'report' / 'tensorboard'}", err=as_json)


def _formats(text: str) -> tuple[str, ...]:
    from fedreach.report.figures.saving import check_formats

    formats = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    check_formats(formats)
    return formats


def _report(folders: Sequence[Path], out: Path, formats: tuple[str, ...], as_json: bool) -> None:
    from fedreach.report import as_records, terminal_table, terminal_theory, write_report

    written = write_report(folders, out, formats=formats)
    comparison = written.comparison
    if as_json:
        files = [str(path) for path in (written.page, *written.tables, *written.figures)]
        click.echo(json.dumps({"methods": as_records(comparison), "page": str(written.page), "files": files}))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    console.print(terminal_table(comparison, width=console.width))
    if (theory := terminal_theory(comparison, width=console.width)) is not None:
        console.print(theory)
    click.echo(f"\nPage: {written.page}")
    for kind, paths in (("Tables", written.tables), ("Figures", written.figures)):
        if paths:
            click.echo(f"{kind}: {paths[0].parent}/: {', '.join(path.name for path in paths)}")


# --------------------------------------------------------------------------------------------------- partition


@main.command(
    epilog="Examples:\n\n\b\n  fedreach partition\n"
    "  fedreach partition my.toml --set partition.alpha=0.1 --plot who.svg\n"
    '  fedreach partition my.toml --save partition.npz     # then: [partition] file = "partition.npz"'
)
@_config
@_set
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Default: the first of `seeds`.")
@click.option("--save", type=click.Path(path_type=Path), help="Save the partition, to be named by [partition] file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw who holds what: a path ending in svg, png or pdf.")
@_json
def partition(
    config: Path | None,
    overrides: tuple[str, ...],
    seed: int | None,
    save: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show who holds what: sizes, label entropy, divergence from the whole, effective classes."""
    from fedreach.cli import terminal
    from fedreach.runs.describe import federation_record

    experiment, base = _load(config, overrides)
    if seed is not None:
        experiment = experiment.model_copy(update={"seeds": [seed]})
    plot_format = _formats(plot.suffix[1:] or "none") if plot is not None else ()
    data = _federated(experiment, base)
    record = federation_record(data)
    click.echo(json.dumps(record) if as_json else terminal.partition_table(experiment, data))
    if save is not None:
        data.partition.save(save)
        click.echo(f"Saved {save}", err=as_json)
    if plot is not None:
        from fedreach.report import partition_heatmap
        from fedreach.report import save as save_figure

        figure = partition_heatmap(record["label_counts"], record["participants"], record["unseen"])
        save_figure(figure, plot.with_suffix(""), plot_format)
        click.echo(f"Drew {plot}", err=as_json)


def _federated(experiment: Experiment, base: Path) -> FederatedData:
    from fedreach.config.user_code import blamed
    from fedreach.experiments.build import Builder

    with blamed(experiment, base):
        builder = Builder(experiment, base)
        return builder.federated(builder.dataset(progress=sys.stderr.isatty()), experiment.seeds[0])


# --------------------------------------------------------------------------------------------------- reproduce


@main.command(
    epilog="Examples:\n\n\b\n  fedreach reproduce                       # lists the recipes\n"
    "  fedreach reproduce csra/fig6\n  fedreach reproduce csra/fig2 --scale full --device cuda\n"
    "  fedreach reproduce my_figure.toml        # one's own, see [recipe] extends"
)
@click.argument("name", metavar="[PAPER[/ITEM]]", required=False)
@click.option(
    "--scale",
    type=click.Choice(["smoke", "cpu", "full"]),
    default="cpu",
    show_default=True,
    help="smoke: to see that it runs; cpu: minutes on a laptop; full: as in the paper.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder. Default: runs/PAPER-ITEM-SCALE for each item.")
@click.option("--workers", type=click.IntRange(1), help="Processes at a time. Default: the cores. Changes no number.")
@click.option("--formats", default="svg,png,pdf", show_default=True, help="Figure formats, comma separated.")
@_device
@_quiet
@_json
def reproduce(
    name: str | None,
    scale: str,
    out: Path | None,
    workers: int | None,
    formats: str,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run the figures of a paper, and say which of its statements hold here.

    PAPER/ITEM is a recipe, such as csra/fig5; csra/fig2 stands for fig2a and fig2b, csra for all. The same command
    again goes on where it was interrupted. That a statement does not hold is a result, and no failure.
    """
    from fedreach.cli import reproduce as shown
    from fedreach.reproduce import recipe as recipes

    if name is None:
        click.echo(json.dumps(recipes.names()) if as_json else shown.listing())
        return
    from fedreach.cli import terminal
    from fedreach.report import save as save_figure
    from fedreach.report import write_report
    from fedreach.report.figures.sweep import sweep
    from fedreach.reproduce.record import DRAWN
    from fedreach.reproduce.reproduce import reproduce as reproduce_one

    figure_formats, found, silent = _formats(formats), recipes.find(name), quiet or as_json
    records = []
    for each in found:
        recipe = recipes.load(each, scale, device=device)
        item = f"{recipe.name.replace('/', '-')}-{scale}"
        folder = Path("runs") / item if out is None else out / item if len(found) > 1 else out
        with (
            terminal.compare_progress(quiet=silent) as tell,
            shown.rounds_progress(each, quiet=silent) as tell_rounds,
        ):
            record = reproduce_one(recipe, folder, workers=workers, tell_runs=tell, tell_rounds=tell_rounds)
        figure = sweep(record, DRAWN)
        if figure is not None:
            save_figure(figure, folder / "figure", figure_formats)
        if recipe.about.kind == "training":
            write_report([folder], folder, formats=figure_formats)
        records.append({**record, "folder": str(folder)})
        if not as_json:
            from rich.console import Console

            click.echo(shown.to_terminal(record, Console().width if sys.stdout.isatty() else LOG_WIDTH))
            click.echo(f"\nWrote {folder}: {', '.join(sorted(path.name for path in folder.glob('[!.]*')))}\n")
    if as_json:
        click.echo(json.dumps(records, allow_nan=False))


# ---------------------------------------------------------------------------------------------------- allocate


@main.command(
    epilog="Examples:\n\n\b\n"
    "  fedreach allocate clients.csv --min-examples 900 --bandwidth 2e6 --report-bits 2e6 --bits-per-example 24576\n"
    "  fedreach allocate measured.csv --min-examples 900 --max-divergence 0.2 --figure plan.svg --out plan.csv\n\n"
    "Columns of CLIENTS.csv, a client a line: num_examples; upload_seconds, bits_per_second or distance_meters (and "
    "fading_gain); power_watts or power_dbm; cycles or cycles_per_bit; max_hertz or max_gigahertz; optional: client, "
    "and divergence or label_0, label_1, ... Ends with 2 if the clients hold too few examples."
)
@click.argument("clients", metavar="CLIENTS.csv", type=click.Path(path_type=Path))
@click.option("--min-examples", type=int, required=True, help="Examples that those chosen must hold together.")
@click.option("--bandwidth", "bandwidth_hertz", type=float, metavar="HERTZ", help="The band that they share.")
@click.option("--report-bits", type=float, metavar="BITS", help="What a client sends.")
@click.option("--model-parameters", type=int, metavar="N", help="The same, at 32 bits a parameter.")
@click.option("--bits-per-example", type=float, metavar="BITS", help="For cycles_per_bit: 24576 for 32x32 RGB.")
@click.option("--epochs", type=int, metavar="N", help="For cycles_per_bit: passes over the examples. Default: 1.")
@click.option("--max-divergence", type=float, metavar="NATS", help="Leave out clients whose labels are farther off.")
@click.option("--smoothing", type=float, metavar="N", help="Pseudo-examples added to each class. Default: 1.")
@click.option("--seconds-price", type=float, default=1.0, show_default=True, help="Cost of a second of the round.")
@click.option("--joules-price", type=float, default=1.0, show_default=True, help="Cost of a joule of the clients.")
@click.option("--capacitance", type=float, default=1e-27, show_default=True, help="Of the CPUs, in J / (cycle Hz^2).")
@click.option("--noise-dbm", type=float, metavar="DBM", help="For distances: noise a hertz. Default: -174.")
@click.option("--carrier", "carrier_hertz", type=float, metavar="HERTZ", help="For distances. Default: 2.4e9.")
@click.option("--path-loss", type=float, metavar="N", help="For distances: the exponent. Default: 2.7.")
@click.option("--tolerance", type=float, default=1e-6, show_default=True, help="Gap at which the proof is done.")
@click.option(
    "--time-limit",
    "time_limit_seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds for the answer, and for each of the two that it is compared with.",
)
@click.option("--figure", type=click.Path(path_type=Path), help="Draw who gets what: a path ending in svg, png or pdf.")
@click.option("--out", type=click.Path(path_type=Path), help="Write those chosen to this CSV file.")
@_quiet
@_json
def allocate(clients: Path, figure: Path | None, out: Path | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Plan a round over a shared band: who takes part, with which share and CPU frequency.

    Of all choices of clients that hold MIN_EXAMPLES, the one with the least cost (seconds-price x seconds until the
    last is ready + joules-price x joules of all), with a proven bound on every other; and what 10 % more bandwidth
    or examples would change.
    """
    from fedreach.cli import allocate
    from fedreach.planning import records
    from fedreach.planning.plan import plan
    from fedreach.planning.question import Question
    from fedreach.planning.table import COLUMNS, clients_of, read_table

    question = Question(**options)
    figure_format = _formats(figure.suffix[1:] or "none") if figure is not None else ()
    for flag, path in {"--figure": figure, "--out": out}.items():
        if path is not None and path.resolve() == clients.resolve():
            raise ConfigError(f"{flag} {path} would replace the table of clients; name another file.")
    silent = quiet or as_json or not sys.stderr.isatty()
    try:
        table = clients_of(read_table(clients, COLUMNS))
        answer = plan(table, question, tell=lambda line: None if silent else click.echo(line, err=True))
    except KeyboardInterrupt:
        _end("Interrupted before there was an answer.", INTERRUPTED)
    told = records.record(answer)
    if as_json:
        click.echo(json.dumps(told, allow_nan=False))
    else:
        from rich.console import Console

        click.echo(allocate.text(answer, Console().width if sys.stdout.isatty() else LOG_WIDTH))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(records.to_csv(answer), encoding="utf-8")
        click.echo(f"Wrote {out}", err=as_json)
    if figure is not None:
        from fedreach.report import save as save_figure
        from fedreach.report.figures.allocation import allocation

        figure.parent.mkdir(parents=True, exist_ok=True)
        save_figure(allocation(told["clients"], told["seconds"]), figure.with_suffix(""), figure_format)
        click.echo(f"Drew {figure}", err=as_json)
    if answer.interrupted:
        _end("Interrupted. What is printed was found before; the rest was left out.", INTERRUPTED)


# ------------------------------------------------------------------------------------------------------ verify


@main.command(
    epilog="Examples:\n\n\b\n  fedreach verify\n  fedreach verify minimax scaffold\n"
    "  fedreach verify my_policy.py:rarely_heard\n  fedreach verify my_solvers.py:MyDyn --as feddyn --set alpha=0.5"
)
@click.argument("parts", nargs=-1)
@click.option("--kind", help="What the part is, such as selection; needed where its methods do not tell.")
@click.option("--as", "as_", multiple=True, metavar="NAME", help="Try it by the laws of this built-in part, too.")
@click.option("--set", "options", multiple=True, metavar="NAME=VALUE", help="An option of the part. Repeatable.")
@click.option("--without", multiple=True, metavar="LAW", help="Leave out a law. Repeatable.")
@click.option("--list", "only_list", is_flag=True, help="Show all laws in words, and try nothing.")
@_json
def verify(
    parts: tuple[str, ...],
    kind: str | None,
    as_: tuple[str, ...],
    options: tuple[str, ...],
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
    from fedreach.cli import verify

    if only_list:
        laws = verify.listed()
        click.echo(json.dumps(laws) if as_json else verify.list_text(laws))
        return
    began, found = time.perf_counter(), []
    for verdict in verify.verdicts(parts, Path.cwd(), kind=kind, as_=as_, options=options, without=without):
        found.append(verdict)
        if not as_json:
            click.echo(verify.line(verdict))
    seconds = time.perf_counter() - began
    broken, skipped = [v for v in found if not v.keeps_all], [v for v in found if v.skipped]
    if as_json:
        click.echo(json.dumps({"parts": [verify.record(v) for v in found], "seconds": seconds, "kept": not broken}))
    if parts and skipped:
        raise ConfigError(skipped[0].skipped)
    tried = len(found) - len(skipped)
    if broken:
        _end(f"{len(broken)} of {tried} parts break{'s' if len(broken) == 1 else ''} a law.", 1)
    if not as_json:
        left_out = f"; {len(skipped)} skipped, as libraries are missing" if skipped else ""
        click.echo(f"All laws kept by {tried} part{'s' * (tried != 1)} in {seconds:.0f} s{left_out}.")


# ------------------------------------------------------------------------------------------- list, init, shells


@main.command("list", epilog="Examples:\n\n\b\n  fedreach list\n  fedreach list selection\n  fedreach list data --json")
@click.argument("kind", required=False, shell_complete=_complete_kinds)
@_json
def list_(kind: str | None, as_json: bool) -> None:
    """Show what there is, with one line, the options and a reference each."""
    from fedreach.cli import listing
    from fedreach.registry import KINDS

    if kind is not None and kind not in KINDS:
        raise ConfigError(f"There is no kind {kind!r}.{nearest(kind, KINDS)}")
    entries = listing.entries([kind] if kind else list(KINDS))
    click.echo(json.dumps(entries) if as_json else listing.text(entries))


@main.command(
    epilog="Examples:\n\n\b\n  fedreach init\n  fedreach init study && fedreach compare study/experiment.toml"
)
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
@_json
def init(folder: Path, as_json: bool) -> None:
    """Write commented templates: an experiment, an own policy and weighting, an own data set."""
    from fedreach.config.templates import write_templates

    written = write_templates(folder)
    if as_json:
        click.echo(json.dumps({"written": [str(path) for path in written]}))
        return
    click.echo("\n".join(f"Wrote {path}" for path in written))
    click.echo(f"\nNext: fedreach compare {written[0]}")


@main.command(
    epilog="Examples:\n\n\b\n  fedreach completion bash >> ~/.bashrc\n"
    "  fedreach completion fish > ~/.config/fish/completions/fedreach.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@_json
def completion(shell: str, as_json: bool) -> None:
    """Print the script that completes commands and options in a shell."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # because of the choice above
    script = found(main, {}, "fedreach", "_FEDREACH_COMPLETE").source()
    click.echo(json.dumps({"shell": shell, "script": script}) if as_json else script)

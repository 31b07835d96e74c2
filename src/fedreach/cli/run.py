"""``fedreach run``: one federation."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedreach.cli import options, table
from fedreach.errors import ConfigError

if TYPE_CHECKING:
    from fedreach.config.sections import Experiment
    from fedreach.engines.parallel.ranks import Ranks
    from fedreach.runs.schema import Result


@click.command(
    epilog="Examples:\n\n\b\n  fedreach run\n  fedreach run my.toml --set local.rate=0.05 --seed 3\n"
    "  fedreach run my.toml --method entropy --out runs/entropy"
    "\n  fedreach run --data patients.csv --client hospital --target age"
)
@options.config
@options.overrides
@table.of_table
@click.option("--method", help="Run the method of this name from [methods.NAME]; default: the parts in [method].")
@options.seed
@click.option("--out", type=options.path, help="Run folder. Default: runs/NAME-METHOD-seed-N.")
@click.option("--resume", is_flag=True, help="Insist on going on: fail where there is no checkpoint.")
@options.device
@options.track
@click.option(
    "--explain", is_flag=True, help="Say which engine would train, and what the others would take; run nothing."
)
@options.quiet
@options.as_json
def run(
    config: Path | None,
    overrides: tuple[str, ...],
    data: Path | None,
    client: str | None,
    label: str | None,
    targets: tuple[str, ...],
    group: str | None,
    time: str | None,
    participants: str | None,
    method: str | None,
    seed: int | None,
    out: Path | None,
    resume: bool,
    device: str | None,
    tracked: tuple[str, ...],
    explain: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run one federation.

    Rows are appended to OUT/rounds.jsonl as rounds end. The same command again goes on where it was interrupted,
    and does nothing where the run is finished. Started by torchrun, all processes share the work of the run.
    """
    from fedreach.experiments.run import run as run_one
    from fedreach.runs.schema import CHECKPOINT
    from fedreach.study import terminal

    with _ranks(alone=explain) as ranks:
        own = table.overrides(config, data, client, label, targets, group, time, participants, quiet=quiet or as_json)
        experiment, base = options.load(
            config, [*own, *overrides], device, tracked, default=table.default(label, targets)
        )
        seed = experiment.seeds[0] if seed is None else seed
        folder = out or Path("runs") / f"{experiment.name}-{method or 'run'}-seed-{seed}"
        serves = ranks is not None and ranks.rank > 0
        if resume and not serves and not (folder / CHECKPOINT).exists():
            raise ConfigError(f"--resume: there is no checkpoint in {folder}. Without --resume the run starts anew.")
        resolved = experiment.resolved(method)
        if explain:
            if os.environ.get("RANK", "0") == "0":  # one of them says it for all
                _explain(resolved, base, seed, folder, as_json)
            return
        silent = quiet or as_json or serves
        with terminal.run_progress(resolved, folder, quiet=silent) as callbacks:
            result = run_one(
                resolved,
                seed=seed,
                folder=folder,
                base=base,
                method=method or "run",
                ranks=ranks,
                callbacks=callbacks,
            )
    if result is not None:  # else this process served another
        tell(folder, result, as_json)


def tell(folder: Path, result: Result, as_json: bool) -> None:
    """Say how a run ended, and what it wrote."""
    from fedreach import report
    from fedreach.study import terminal

    last, read = terminal.last_evaluation(folder), report.read([folder])
    findings = report.concerns(read)
    if as_json:
        baselines = {name: dict(of) for record in report.baselines_of(read) for name, of in record.columns.items()}
        numbers = {"last": last, "baselines": baselines, "findings": list(findings)}
        options.answer({"folder": str(folder), **result.to_json(), **numbers})
        return
    table = terminal.baselines_table(read, last, options.width())
    click.echo("\n\n".join(filter(None, (terminal.sentence(last, result), table, *findings))))
    click.echo()
    click.echo(f"Wrote {folder}" + "".join(f"\n      {path}" for path in sorted(folder.glob("[!.]*"))))


def _explain(experiment: Experiment, base: Path, seed: int, folder: Path, as_json: bool) -> None:
    from fedreach.experiments.run import explain
    from fedreach.study import terminal

    data, name, why = explain(experiment, seed=seed, folder=folder, base=base)
    if as_json:
        options.answer({"engine": name, "why": why})
    else:
        click.echo(terminal.summary(experiment.model_copy(update={"seeds": [seed]}), data))
        click.echo(f"  {why}")


def _ranks(*, alone: bool) -> AbstractContextManager[Ranks | None]:
    """Join the processes that torchrun started for this run; None where this one is alone, or is to be."""
    if alone or "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from fedreach.engines.parallel.launch import join

    return join()

"""``fedreach extend``: run more rounds of finished runs."""

from __future__ import annotations

from pathlib import Path

import click

from fedreach.cli import options


@click.command(
    epilog="Examples:\n\n\b\n  fedreach extend runs/digits --rounds 200\n"
    "  fedreach extend runs/digits-run-seed-0 --rounds 100\n"
    "  fedreach extend runs/mine --rounds 200 --base experiments --trust-code   # my.py is in experiments/"
)
@click.argument("folder", type=options.path)
@click.option("--rounds", type=click.IntRange(1), required=True, help="Extend to this total number of rounds.")
@click.option("--restart", is_flag=True, help="Rerun the runs of a comparison that cannot be extended.")
@click.option(
    "--base",
    type=options.path,
    default=Path(),
    help="Resolve the experiment's file names in this folder (default: current folder).",
)
@options.trust_code
@options.workers
@options.track
@options.formats
@options.quiet
@options.verbose
@options.as_json
def extend(
    folder: Path,
    rounds: int,
    restart: bool,
    base: Path,
    trust_code: bool,
    workers: int | None,
    tracked: tuple[str, ...],
    formats: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Extend finished runs to more rounds.

    The result is the same as for a run of this length, except for timing. Runs with a cosine schedule, a budget or
    early stopping cannot be extended, because their results depend on their length. Nor can runs with client state,
    which is not kept. Rerun an interrupted command to resume it.
    """
    from fedreach._util import registry
    from fedreach._util.errors import ConfigError
    from fedreach.api import terminal
    from fedreach.cli.compare import print_outcome
    from fedreach.cli.run import print_result
    from fedreach.experiment.extend import extend_comparison, extend_run
    from fedreach.experiment.load import read
    from fedreach.experiment.schema import Experiment
    from fedreach.runs.folder import RunFolder
    from fedreach.runs.identity import run_of
    from fedreach.runs.schema import ComparisonRecord, RunRecord, SweepRecord

    figure_formats, silent, base = options.figure_formats(formats), quiet or as_json, base.resolve()
    if (folder / SweepRecord.FILE).exists():
        raise ConfigError(f"{folder} is a sweep. Extend each of its comparisons: {folder}/cells/....")
    with registry.code_of(folder, trust_code=trust_code, workers=True):
        for file in (folder / ComparisonRecord.FILE, folder / RunRecord.FILE):
            registry.require_trust(read(file) if file.exists() else {}, base)
        if (folder / ComparisonRecord.FILE).exists():
            with terminal.compare_progress(quiet=silent) as comparison_callbacks:
                status = extend_comparison(
                    folder,
                    rounds,
                    base=base,
                    restart=restart,
                    workers=workers,
                    callbacks=comparison_callbacks,
                    trackers=tracked,
                )
            print_outcome(status, folder, figure_formats, as_json)
            return
        if restart:
            raise ConfigError(
                f"--restart requires a comparison; {folder} is a single run. To rerun it: fedreach run "
                f"{folder}/run.json --set rounds={rounds} --out OTHER"
            )
        stored = run_of(RunFolder(folder))
        length = Experiment.model_construct(**{**dict(Experiment()), "name": stored.method, "rounds": rounds})
        with terminal.run_progress(length, folder, quiet=silent) as callbacks:
            result = extend_run(folder, rounds, base=base, callbacks=callbacks, trackers=tracked)
        print_result(folder, result, as_json)

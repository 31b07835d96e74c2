"""``fedreach extend``: more rounds for what has finished."""

from __future__ import annotations

from pathlib import Path

import click

from fedreach.cli import options


@click.command(
    epilog="Examples:\n\n\b\n  fedreach extend runs/digits --rounds 200\n"
    "  fedreach extend runs/digits-run-seed-0 --rounds 100\n"
    "  fedreach extend runs/mine --rounds 200 --base experiments   # my.py lies beside experiments/mine.toml"
)
@click.argument("folder", type=options.path)
@click.option("--rounds", type=click.IntRange(1), required=True, help="In all.")
@click.option("--anew", is_flag=True, help="Of a comparison: make those runs anew that cannot be gone on with.")
@click.option(
    "--base",
    type=options.path,
    default=Path(),
    help="Folder of the TOML file, if that names files of your own. Default: the current one.",
)
@options.workers
@options.track
@options.formats
@options.quiet
@options.as_json
def extend(
    folder: Path,
    rounds: int,
    anew: bool,
    base: Path,
    workers: int | None,
    tracked: tuple[str, ...],
    formats: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Go on where a run, or a comparison's runs, ended, until they have so many rounds.

    FOLDER is then, but for timing, the same as that of one run of this length. What depends on the length of a run
    cannot be gone on with, and it is said what that is: a cosine schedule, a part that goes by it, a budget or early
    stopping that ended it, and what clients keep between rounds, which a finished run lets go of. Interrupted, the same
    command goes on.
    """
    from fedreach._util.errors import ConfigError
    from fedreach.api import terminal
    from fedreach.cli.compare import end
    from fedreach.cli.run import tell
    from fedreach.experiment.extend import extend_comparison, extend_run
    from fedreach.experiment.schema import Experiment
    from fedreach.runs.folder import RunFolder
    from fedreach.runs.identity import run_of
    from fedreach.runs.schema import ComparisonRecord, SweepRecord

    figure_formats, silent, base = options.figure_formats(formats), quiet or as_json, base.resolve()
    if (folder / SweepRecord.FILE).exists():
        raise ConfigError(f"{folder} holds a sweep: extend its comparisons one by one, {folder}/cells/....")
    if (folder / ComparisonRecord.FILE).exists():
        with terminal.compare_progress(quiet=silent) as shown:
            status = extend_comparison(
                folder, rounds, base=base, anew=anew, workers=workers, callbacks=shown, trackers=tracked
            )
        end(status, folder, figure_formats, as_json)
        return
    if anew:
        raise ConfigError(
            f"--anew is for comparisons. A run is made anew by `fedreach run {folder}/run.json --set rounds={rounds} "
            "--out OTHER`."
        )
    stored = run_of(RunFolder(folder))
    length = Experiment.model_construct(**{**dict(Experiment()), "name": stored.method, "rounds": rounds})
    with terminal.run_progress(length, folder, quiet=silent) as callbacks:
        result = extend_run(folder, rounds, base=base, callbacks=callbacks, trackers=tracked)
    tell(folder, result, as_json)

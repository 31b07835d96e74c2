"""``fedreach export``: write the model or adapter of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedreach._util.errors import ConfigError
from fedreach.cli import options

if TYPE_CHECKING:
    from fedreach.deploy.model import TrainedModel

WHAT = {
    "torch": "folder with predict.pyz, which needs only numpy and torch",
    "onnx": "folder with predict.pyz, which needs only numpy and onnxruntime",
    "safetensors": "weights and description of the model, for FedReach",
    "adapter": "fitted adaptation rule as one Python archive, which needs only numpy",
}


@click.command(
    epilog="Examples:\n\n\b\n  fedreach run --set method.adaptation=label_shift --out runs/adapted\n"
    "  fedreach export runs/adapted --to safetensors --out weights\n"
    "  fedreach export runs/adapted --to adapter --which best --out ward/best.pyz"
)
@click.argument("run", type=options.path)
@click.option(
    "--to",
    "form",
    type=click.Choice(list(WHAT)),
    required=True,
    help="Choose the format. " + "; ".join(f"{form}: {what}" for form, what in WHAT.items()) + ".",
)
@click.option("--out", type=options.path, help="Write to this folder (default: model) or file (default: adapter.pyz).")
@options.of_run
@click.option("--unadapted", is_flag=True, help="Export the model without its adaptation rule.")
@click.option("--force", is_flag=True, help="Export an adaptation rule even if it did not help participants.")
@options.as_json
def export(
    run: Path,
    form: Literal["torch", "onnx", "safetensors", "adapter"],
    out: Path | None,
    chosen: options.ChosenModel,
    unadapted: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Export the model of a run, or the adapter for new clients."""
    if form == "adapter":
        if unadapted:
            raise ConfigError(
                "--unadapted cannot be combined with --to adapter, which writes only the adaptation rule."
            )
        document, lines = _rule(chosen.folder(run), out or Path("adapter.pyz"), chosen, force)
    else:
        document, lines = _model(chosen.load(run), out or Path("model"), form, unadapted, force)
    if as_json:
        options.set_json(document)
        return
    options.echo("\n".join(lines))


def _rule(folder: Path, out: Path, chosen: options.ChosenModel, force: bool) -> tuple[dict[str, Any], list[str]]:
    from fedreach.deploy.program import export as write

    saved = write(
        folder,
        out,
        chosen.which or "last",
        cluster=chosen.cluster,
        base=chosen.base,
        force=force,
        trust_code=chosen.trust_code,
    )
    about = {"method": saved.run.method, "seed": saved.run.seed, "round": saved.round, "rule": repr(saved.rule)}
    return {"file": str(out), **about}, [
        f"Wrote {out}: {type(saved.rule).__name__} of {saved.run.method}, seed {saved.run.seed}, round {saved.round}.",
        f"Next    python {out}     (shows how a client uses it; needs only numpy)",
    ]


def _model(
    model: TrainedModel, out: Path, form: Literal["torch", "onnx", "safetensors"], unadapted: bool, force: bool
) -> tuple[dict[str, Any], list[str]]:
    from fedreach.deploy.deployed import origin
    from fedreach.deploy.export import export as write

    done = write(model, out, form, unadapted=unadapted, force=force)
    keys = ("name", "method", "seed", "model", "cluster", "round", "rule")
    about = {key: done.about[key] for key in keys}
    adaptation = f"adapted by {str(about['rule']).partition('(')[0]}" if about["rule"] else "without an adaptation rule"
    program = f"fedreach predict {out}" if form == "safetensors" else f"python {out / 'predict.pyz'}"
    return {"folder": str(out), "files": list(done.files), **about}, [
        f"Wrote {out}: {origin(done.about)};",
        f"      {adaptation}",
        *(f"      {out / name}" for name in done.files),
        f"Next    {program} rows.csv --out predictions.csv",
    ]

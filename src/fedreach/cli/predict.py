"""``fedreach predict``: make predictions for the rows of a file with the model of a finished run."""

from __future__ import annotations

from pathlib import Path

import click

from fedreach._util.errors import ConfigError
from fedreach.cli import options


@click.command(
    epilog="Examples:\n\n\b\n  fedreach predict runs/adapted patients.csv --out predictions.csv\n"
    "  fedreach predict runs/hospitals new.parquet --method adapted --seed 0 --client hospital\n"
    "  fedreach predict model/model.safetensors images.npz --unadapted --json"
)
@click.argument("run", type=options.path)
@click.argument("file", type=options.path, required=False)
@click.option("--schema", is_flag=True, help="Print what each column must contain, without making predictions.")
@click.option("--out", type=options.path, help="Write predictions to this CSV file (default: stdout).")
@click.option("--client", metavar="COLUMN", help="Name the column with clients (default: as in the run's data).")
@click.option("--label", metavar="COLUMN", help="Name the column with true labels, used only for scores.")
@click.option("--unadapted", is_flag=True, help="Predict without the adaptation rule of the run.")
@options.of_run
@options.as_json
def predict(
    run: Path,
    file: Path | None,
    schema: bool,
    out: Path | None,
    client: str | None,
    label: str | None,
    unadapted: bool,
    chosen: options.ChosenModel,
    as_json: bool,
) -> None:
    """Make predictions for the rows of a file with the model of a run.

    FILE is a .csv, .parquet or .npz file. RUN is a run folder, the folder of a comparison, or a model written by
    `fedreach export --to safetensors`. If the run has an adaptation rule, the model adapts to each client with all rows
    of that client, without labels.
    """
    from fedreach.deploy import deployed
    from fedreach.deploy.export import predict_file
    from fedreach.deploy.weights import write_whole

    if file is None and not schema:
        raise click.UsageError("Missing argument 'FILE', the table to predict. --schema prints the required columns.")
    if out is not None and out.suffix.lower() != ".csv":
        raise ConfigError(f"--out must end with .csv; got {out.name}.")
    if out is not None and file is not None and out.resolve() == file.resolve():
        raise ConfigError(f"--out must differ from the file of rows, {file}.")
    model = chosen.load(run)
    if file is None or schema:
        if as_json:
            options.set_json(model.expected.to_json())
        else:
            options.echo(deployed.schema(model.expected))
        return
    predictions, about = predict_file(model, file, client=client, label=label, unadapted=unadapted)
    text = deployed.format_csv(predictions, about, client)
    if out is not None:
        write_whole(out, text)
    if as_json:
        document = deployed.record(predictions, about) | {"out": None if out is None else str(out)}
        table = predictions.table(client or about["client_column"], about["label_columns"])
        options.set_json(document if out is not None else document | {"predictions": table})
        return
    if out is None:
        options.echo_file(text)
    options.echo(
        "\n".join([*deployed.lines(predictions, about), *([] if out is None else ["", f"Wrote {out}"])]),
        err=out is None,
    )

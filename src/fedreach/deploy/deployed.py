"""Exported models: their graphs, their fitted rules, and the command that predicts the rows of a file.

This module requires only numpy, so that an exported model can contain it. The caller passes a function that runs the
graphs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Floats
from fedreach._util.errors import ConfigError, DataError, FedReachError
from fedreach._util.tables import count_noun, csv_text, visible, visible_lines
from fedreach.data.samples import SampleFormat
from fedreach.deploy.adapter import Adapter, stored
from fedreach.deploy.predictions import Predictions, Rows, predictions, read_rows
from fedreach.federation.base import Adaptation
from fedreach.federation.types import State

Run = Callable[[str, AnyArray], Sequence[AnyArray]]
"""Function that runs a graph by its name on (m, ...) examples. The graph "model" maps raw examples to logits. "inputs"
maps raw examples to inputs. "features" maps inputs to logits and, if the model has them, features.
"""


EXPORT_AGAIN = "Copy the exported folder again."


class Deployed:
    """Exported model with its adaptation rule, as written by `fedreach export`.

    Args:
        about: Content of ``model.json``.
        run: Function that runs the graphs of the model.
        rule: Adaptation rule. None: the model is not adapted.
        state: State of the rule, fitted on the participants.
        batch: Largest number of examples per call of a graph.
    """

    def __init__(
        self, about: Mapping[str, Any], run: Run, rule: Adaptation | None, state: State | None, batch: int
    ) -> None:
        self.about, self.rule, self.state = about, rule, state
        self.expected = SampleFormat.of_json(about["name"], about)
        self._run, self._batch = run, batch

    def logits(self, samples: Any) -> Floats:
        """Return the (m, c) logits of examples, or their (m, t) predicted numbers.

        Args:
            samples: Table, dictionary of columns or array, in the format of the training data.
        """
        return self._parts("model", self.expected.array(samples))[0].astype(np.float64)

    def answers(self, samples: Any) -> tuple[Floats, Floats | None, Float32s | None]:
        """Return logits, features and inputs of examples, which are the arguments of an adapter's methods."""
        if not self.about["reads_inputs"]:  # the rule needs logits alone
            return self.logits(samples), None, None
        inputs = self._run("inputs", self.expected.array(samples))[0]
        logits, features = self.again(inputs)
        return logits, features, inputs if inputs.dtype.kind == "f" else None

    def again(self, inputs: AnyArray) -> tuple[Floats, Floats | None]:
        """Return the logits and features of inputs, which a rule may have corrected."""
        outputs = self._parts("features", inputs)
        return outputs[0].astype(np.float64), outputs[1].astype(np.float64) if len(outputs) > 1 else None

    def new_adapter(self) -> Adapter:
        """Return the adapter of a new client."""
        if self.rule is None or self.state is None:
            raise ConfigError("This model was exported without an adaptation rule. Predict without adaptation.")
        return Adapter(self.rule, self.state, self.again if self.about["reads_inputs"] else None)

    def predict(self, rows: Rows, *, unadapted: bool = False) -> Predictions:
        """Return predictions for rows; unless `unadapted` is set, adapt the model to each client's rows."""
        return predictions(self, rows, self.about, None if self.rule is None or unadapted else self.new_adapter)

    def _parts(self, graph: str, x: AnyArray) -> list[AnyArray]:
        size, count = self._batch, max(1, -(-len(x) // self._batch))
        if self.about["mixes"]:  # then no batch is tiny
            size = max(1, -(-len(x) // count))
        parts = [self._run(graph, x[i : i + size]) for i in range(0, max(len(x), 1), size)]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]


def stored_model(package: str, library: str, batch: int) -> Deployed:
    """Return the model of an archive, whose graphs are stored in the same folder.

    Args:
        package: Name of the archive's package.
        library: Library that runs the graphs, ``torch`` or ``onnxruntime``.
        batch: Largest number of examples per call of a graph.
    """
    folder = Path(str(sys.modules[package].__file__)).resolve().parents[2]
    about = _read_description(folder / "model.json")
    runtime, (_, rule, state) = import_module(library), stored(package)

    @cache
    def graph(name: str) -> Any:
        if library == "torch":
            return runtime.export.load(io.BytesIO(_graph_content(folder, f"{name}.pt2", about))).module()
        return runtime.InferenceSession(
            _graph_content(folder, f"{name}.onnx", about), providers=["CPUExecutionProvider"]
        )

    def run(name: str, x: AnyArray) -> Sequence[AnyArray]:
        if library != "torch":
            result: Sequence[AnyArray] = graph(name).run(None, {"samples": x})
            return result
        with runtime.no_grad():
            outputs = graph(name)(runtime.from_numpy(x))
        return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return Deployed(about, run, rule, state, batch)


def with_checksum(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's description with an additional field `sha256`, the checksum of all other fields."""
    fields = {key: value for key, value in json.loads(json.dumps(about)).items() if key != "sha256"}
    return {**fields, "sha256": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}


def _read_description(path: Path) -> dict[str, Any]:
    """Return the content of ``model.json``; raise DataError if the file was altered."""
    try:
        about: dict[str, Any] = json.loads(path.read_bytes())
        is_complete = about == with_checksum(about)
    except (ValueError, AttributeError):
        is_complete = False
    if not is_complete:
        raise DataError(f"{path} was altered. {EXPORT_AGAIN}")
    return about


def _graph_content(folder: Path, name: str, about: Mapping[str, Any]) -> bytes:
    """Return the content of a graph's file; raise DataError if the file was altered."""
    content = (folder / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != about["files"][name]:
        raise DataError(f"{folder / name} was altered. {EXPORT_AGAIN}")
    return content


def schema(expected: SampleFormat) -> str:
    """Describe the required content of a file: the columns of a table, or the shape of an example."""
    if expected.preparation is not None:
        return str(expected.preparation)
    return (
        f"{expected.kind} of shape {tuple(expected.shape)}, {expected.dtype}, as array x of an .npz file, or one "
        "column per value"
    )


def format_csv(predicted: Predictions, about: Mapping[str, Any], client: str | None = None) -> str:
    """Return predictions as CSV, which is an empty text without rows."""
    table = predicted.table(client or about["client_column"], about["label_columns"])
    return csv_text(table) if table else ""


def record(predicted: Predictions, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary of predictions as JSON values."""
    return {
        **{key: about[key] for key in ("name", "method", "seed", "model", "cluster", "round")},
        "rows": len(predicted.outputs),
        "rule": about["rule"] if predicted.decisions is not None else None,
        "clients": [vars(client) for client in predicted.clients],
        "scores": predicted.scores,
        "notes": list(predicted.rows.notes),
    }


def lines(predicted: Predictions, about: Mapping[str, Any]) -> list[str]:
    """Return a summary of predictions as lines of text."""
    rows, who, is_adapted = len(predicted.outputs), len(predicted.clients), predicted.decisions is not None
    rule = str(about["rule"]).partition("(")[0]
    how = f"adapted to each client from its own rows ({rule})" if is_adapted else "by the model as it is"
    clients = "" if predicted.rows.clients is None else f" of {count_noun(who, 'client')}"
    messages = [f"{count_noun(rows, 'row')}{clients}: {origin(about)}, {how}."]
    if is_adapted and predicted.rows.clients is None:
        messages.append("No column identifies clients, so all rows count as one client.")
    return [*messages, *(f"note: {visible(note)}." for note in predicted.rows.notes), "", *predicted.lines()]


def origin(about: Mapping[str, Any]) -> str:
    """Return the origin of a model in words.

    Example:
        >>> origin({"method": "unadapted", "seed": 0, "model": "last", "cluster": 1, "round": 30})
        'unadapted, seed 0, last model of cluster 1 (round 30)'
        >>> origin({"method": "unadapted", "seed": 0, "model": "refit", "cluster": None, "round": 12})
        'unadapted, seed 0, model trained again on all rows (12 rounds)'
    """
    cluster = "" if about["cluster"] is None else f" of cluster {about['cluster']}"
    which, where = f"{about['model']} model{cluster}", f"round {about['round']}"
    if about["model"] == "refit":
        which, where = f"model{cluster} trained again on all rows", count_noun(about["round"], "round")
    return f"{about['method']}, seed {about['seed']}, {which} ({where})"


def main(model: Deployed, arguments: Sequence[str] | None = None) -> int:
    """Predict a file from the command line; return the exit status: 2 for wrong arguments, 3 for an invalid file."""
    parser = argparse.ArgumentParser(description="Predict the rows of a .csv, .parquet or .npz file.")
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--schema", action="store_true", help="print the required columns, and predict nothing")
    parser.add_argument("--out", type=Path, help="CSV file to write (default: stdout)")
    parser.add_argument("--client", help="column with the client of each row")
    parser.add_argument("--label", help="column with the true class or number, used only for scores")
    parser.add_argument("--unadapted", action="store_true", help="predict without adaptation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse_args(arguments)
    if args.schema:
        print(visible_lines(schema(model.expected)))
        return 0
    if args.file is None:
        parser.error("name the file to predict; --schema prints the required columns")
    try:
        predicted = model.predict(read_rows(args.file, model.about, args.client, args.label), unadapted=args.unadapted)
        text = format_csv(predicted, model.about, args.client)
        if args.out is not None and args.out.resolve() == args.file.resolve():
            raise ConfigError(f"--out must differ from the file of rows, {args.file}.")
        if args.out is not None:
            args.out.write_text(text, encoding="utf-8")
    except (FedReachError, OSError) as error:
        print(visible_lines(f"error: {error}"), file=sys.stderr)
        if args.json:
            print(_json({"error": str(error)}))
        return getattr(error, "exit_code", 3)
    if args.json:
        print(_json(record(predicted, model.about) | {"out": None if args.out is None else str(args.out)}))
        return 0
    if args.out is None:
        sys.stdout.write(text)
    print("\n".join(lines(predicted, model.about)), file=sys.stderr if args.out is None else sys.stdout)
    return 0


def _json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON, with null for nan and infinity."""
    return json.dumps(json.loads(json.dumps(document), parse_constant=lambda _: None))

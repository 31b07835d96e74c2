"""Export of models to torch, ONNX and safetensors."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedreach._util.errors import ConfigError
from fedreach.deploy import weights
from fedreach.deploy.deployed import with_checksum
from fedreach.deploy.fitted_rule import SavedRule, check_supported
from fedreach.deploy.model import TrainedModel
from fedreach.deploy.predictions import Predictions, predictions, read_rows
from fedreach.deploy.program import PROGRAM, check_deployable, program
from fedreach.deploy.weights import ENDINGS, Features, content, write_whole
from fedreach.engines.trainer import EVALUATION_BATCH
from fedreach.experiment.components import code_files
from fedreach.runs.identity import check_code

Form = Literal["torch", "onnx", "safetensors"]
ABOUT = "model.json"


class Exported(NamedTuple):
    """Folder, files and description of an exported model."""

    folder: Path
    files: tuple[str, ...]
    about: dict[str, Any]


def export(model: TrainedModel, out: Path, form: Form, *, unadapted: bool = False, force: bool = False) -> Exported:
    """Write a model to a new folder, with all files that a process without FedReach requires.

    With ``torch`` and ``onnx``, FedReach writes graphs, ``model.json`` and ``predict.pyz``. Running ``predict.pyz``
    requires numpy, and torch or onnxruntime. With ``safetensors``, FedReach writes ``model.safetensors``, which
    `fedreach.deploy.saved.load` reads.

    Args:
        model: Trained model, see `fedreach.deploy.saved.load`.
        out: Folder for the files, which must be empty or new.
        form: Format of the files: ``torch``, ``onnx`` or ``safetensors``.
        unadapted: Export the model without its adaptation rule.
        force: Export even if participants do not support the rule.

    Raises:
        ConfigError: If the folder is not empty, the rule cannot be deployed, participants do not support the rule, or
            the format does not support the model.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists. Remove it, or choose another folder with --out.")
    saved = rule_of(model, unadapted=unadapted)
    if saved is not None and not force:
        check_supported(saved)
    about = model.about(None if saved is None else repr(saved.rule))
    if form == "safetensors":
        files: dict[str, bytes | str] = {
            weights.FILE: weights.weights_file_content(model.net, model.origin.run, saved, about)
        }
    else:
        model.expected.refuse_form(f"--to {form}")
        reads = saved is not None and saved.rule.reads_inputs
        about["reads_inputs"] = reads
        rule, state = (None, {}) if saved is None else (saved.rule, saved.state)
        program_file = program(about, form, rule, state, EVALUATION_BATCH)  # first, as it fails early
        graphs = _graphs(model, form, about, reads=reads)
        about["files"] = {name: hashlib.sha256(graph).hexdigest() for name, graph in graphs.items()}
        about = with_checksum(about)
        files = {**graphs, ABOUT: json.dumps(about, indent=1) + "\n", PROGRAM: program_file}
    is_new = not out.exists()
    try:
        for name, written in files.items():
            write_whole(out / name, written)
    except BaseException:
        if is_new:
            shutil.rmtree(out, ignore_errors=True)
        raise
    return Exported(out, tuple(files), about)


def predict_file(
    model: TrainedModel, path: Path, *, client: str | None = None, label: str | None = None, unadapted: bool = False
) -> tuple[Predictions, dict[str, Any]]:
    """Return a model's predictions for the rows of a file, and the model's description (`TrainedModel.about`).

    Args:
        model: Trained model, see `fedreach.deploy.saved.load`.
        path: Path of a ``.csv``, ``.parquet`` or ``.npz`` file.
        client: Column with the client of each row. Default: the client column of the run's data, if the file contains
            it.
        label: Column of labels, used only for scores. Default: the label column of the run's data, if the file contains
            it.
        unadapted: Predict with the unadapted model, even if it has an adaptation rule.

    Raises:
        ConfigError: If a column is missing, or the rule cannot be deployed.
        DataError: If the file cannot be read, or its examples differ in format from the training examples.
    """
    model.expected.refuse_form("fedreach predict")
    saved = rule_of(model, unadapted=unadapted)
    about = model.about(None if saved is None else repr(saved.rule))
    new_adapter = None if saved is None else partial(model.adapter_of, saved)
    return predictions(model, read_rows(path, about, client, label), about, new_adapter), about


def rule_of(model: TrainedModel, *, unadapted: bool) -> SavedRule | None:
    """Return the rule that adapts a model to clients, or None.

    Raises:
        ConfigError: If the rule cannot be deployed, or the file that defines it was changed.
    """
    if unadapted:
        return None
    try:
        saved = model.adaptation
        if saved is None:
            return None
        check_deployable(saved.rule)
    except ConfigError as error:
        raise ConfigError(f"{error} --unadapted exports the model without adaptation.") from error
    check_code(model.origin.run, saved.name, model.origin.base, code_files(saved.name, model.origin.base))
    return saved


def _graphs(model: TrainedModel, form: Form, about: dict[str, Any], *, reads: bool) -> dict[str, bytes]:
    device = next(model.parameters()).device
    raw = model.expected.example().to(device)
    graphs: dict[str, bytes] = {f"model{ENDINGS[form]}": content(model, raw, form, about)}
    if reads:
        inputs = model.inputs(raw)
        with_features = Features(model.net, inputs).eval()
        names = ("logits", "features") if with_features.has_features else ("logits",)
        graphs[f"inputs{ENDINGS[form]}"] = content(model.inputs, raw, form, about, ("inputs",))
        graphs[f"features{ENDINGS[form]}"] = content(with_features, inputs, form, about, names)
    return graphs

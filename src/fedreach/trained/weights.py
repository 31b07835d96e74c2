"""A model as one safetensors file: weights by name, and in its metadata all that makes the model of them again.

Metadata ``fedreach`` is JSON: what ``model.json`` of other exports says (where the model is from, what samples are
like, classes), and beside it

- ``construction``: ``model``, the table of the experiment; ``data``, its columns of client and label; ``code``, the
  sha256 of the user's own files that are needed,
- ``serving``: the part ``method.serving`` of the experiment, or null.

Tensors are those of the module's ``state_dict()`` by name, its buffers that are not persistent, and ``serving/NAME``,
what participants fitted. Of a type that numpy does not know, such as bfloat16, they are whole numbers of the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from fedreach.arrays import AnyArray
from fedreach.config.parts import make
from fedreach.config.sections import Choice
from fedreach.errors import DataError
from fedreach.federation.protocols import Serving
from fedreach.models.flat import Layout, bind
from fedreach.models.state import array_of, constants_of, tensor_of
from fedreach.runs.schema import RunRecord
from fedreach.serving.saved import SavedRule

FILE, KEY, FITTED = "model.safetensors", "fedreach", "serving/"


class Stored(NamedTuple):
    """What a file holds."""

    about: dict[str, Any]
    tensors: dict[str, AnyArray]

    def run(self) -> RunRecord:
        """Return of the run what the model needs of it."""
        made, config = self.about["construction"], {"name": self.about["name"]}
        config |= {"model": made["model"], "method": {"serving": self.about["serving"]}}
        return RunRecord(
            method=self.about["method"],
            seed=self.about["seed"],
            config=config,
            code=made["code"],
            environment={},
            git=None,
        )


def content(net: nn.Module, run: RunRecord, saved: SavedRule | None, about: Mapping[str, Any]) -> bytes:
    """Return the content of the file of a model and the rule that goes with it."""
    config = run.config
    said = {
        **about,
        "construction": {
            "model": config.get("model", {"name": ""}),
            "code": dict(run.code),
        },
        "serving": None if saved is None else config["method"]["serving"],
    }
    tensors = {name: array_of(tensor) for name, tensor in _state(net).items()}
    fitted = {} if saved is None else saved.state
    tensors |= {FITTED + name: np.asarray(value) for name, value in fitted.items()}
    return save({name: np.asarray(value, order="C") for name, value in tensors.items()}, {KEY: json.dumps(said)})


def read(path: Path) -> Stored:
    """Return what a file holds.

    Raises:
        DataError: If it is none that `content` wrote.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()[KEY])
            about["construction"], about["serving"]  # or it is another file
            return Stored(about, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no model that `fedreach export --to safetensors` wrote ({error}). Give that, or a run folder."
        ) from error


def fill(net: nn.Module, stored: Stored, path: Path) -> None:
    """Give a module that was made anew the stored numbers."""
    layout = Layout.of(net)
    wanted = {name: tuple(tensor.shape) for name, tensor in _state(net).items()}
    found = {name: value.shape for name, value in stored.tensors.items() if not name.startswith(FITTED)}
    if found != wanted:
        key = min(name for name in found.keys() | wanted if found.get(name) != wanted.get(name))
        raise DataError(
            f"{path} holds the weights of another model: {key!r} is {found.get(key, 'not there')}, and "
            f"{wanted.get(key, 'not there')} in the model. Give the one that was trained."
        )
    vector = torch.empty(layout.size)
    kept = _state(net)
    for name, view in layout.views(vector).items():
        view.copy_(tensor_of(stored.tensors[name], kept[name].dtype))
    for name, tensor in constants_of(net).items():
        tensor.data.copy_(tensor_of(stored.tensors[name], tensor.dtype))
    bind(net, vector, layout=layout)


def _state(net: nn.Module) -> dict[str, Tensor]:
    """Return all that a module holds by name: its `state_dict`, and buffers that are not persistent."""
    return {**dict(net.named_buffers()), **net.state_dict()}


def rule(path: Path, base: Path) -> SavedRule | None:
    """Return the rule in a file, or None."""
    stored = read(path)
    if stored.about["serving"] is None:
        return None
    choice = Choice.model_validate(stored.about["serving"])
    made: Serving = make("serving", choice, base)
    state = {name[len(FITTED) :]: value for name, value in stored.tensors.items() if name.startswith(FITTED)}
    return SavedRule(made, state, choice.name, stored.run(), stored.about["round"])

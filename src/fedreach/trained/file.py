"""A model as one file for processes with torch alone."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedreach
from fedreach.errors import ConfigError
from fedreach.storage import disk
from fedreach.storage.files import UNFINISHED
from fedreach.trained.inputs import Expected

ABOUT = "fedreach.json"


def write(module: nn.Module, expected: Expected, about: Mapping[str, Any], path: Path) -> None:
    """Write a module that takes raw samples, whole or not at all; see `fedreach.trained.TrainedModel.save`.

    Args:
        module: In evaluation mode.
        expected: What samples are like.
        about: What else the file says.
        path: Where to.
    """
    if path.suffix != ".pt2":
        raise ConfigError(f"The file of a model must end with .pt2, as torch.export has it; got {path.name}.")
    example = expected.example().to(next(module.parameters()).device)
    said = {"fedreach": fedreach.__version__, **about, **_samples(expected, str(example.dtype).partition(".")[2])}
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own LSTM layers and its own serialisation
        try:
            dynamic = ({0: torch.export.Dim("m")},)
            program = torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)
        except Exception as error:  # whatever the module of a user does
            first = f"{error}".strip().partition("\n")[0].rstrip(".")
            raise ConfigError(
                f"torch.export cannot follow the module of this model: {type(error).__name__}: {first}. Write it "
                "without Python that depends on values or on the number of samples; or pickle the model, for processes "
                "that have FedReach."
            ) from error
        torch.export.save(program, content, extra_files={ABOUT: json.dumps(said, indent=1)})
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        disk.make_folders(path.parent)
        disk.put(temporary, content.getbuffer())
        disk.replace(temporary, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Name another one.") from error
    finally:
        with suppress(OSError):
            disk.unlink(temporary)


def _samples(expected: Expected, dtype: str) -> dict[str, Any]:
    """Return what samples are like, for who reads the file."""
    if expected.preparation is None:
        return {"kind": expected.kind, "dtype": dtype, "shape": expected.shape}
    used = expected.preparation.used
    columns = [
        {"name": each.name, "kind": each.kind}
        | ({"categories": each.categories} if each.kind == "category" else {"mean": each.mean, "sd": each.sd})
        for each in used
    ]
    features = expected.preparation.feature_names
    return {"kind": "table", "dtype": dtype, "shape": [len(used)], "columns": columns, "features": features}

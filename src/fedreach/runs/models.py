"""The models that a run leaves: weights by name become vectors again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fedreach.arrays import Float32s
from fedreach.errors import RunFolderError
from fedreach.models.flat import Layout
from fedreach.runs.folder import RunFolder


class StoredModels(NamedTuple):
    """The last, the best or the refitted model of a run."""

    round: int  # after which it was the model
    vectors: Float32s  # (r, d): of several models one a cluster


def read_models(folder: RunFolder, name: str, layout: Layout) -> StoredModels | None:
    """Return the models that stand in ``NAME.safetensors``; None where there is no such file.

    Args:
        folder: Of the run.
        name: ``"last"``, ``"best"`` or ``"refit"``.
        layout: Of the model.

    Raises:
        RunFolderError: If the weights are those of another model.
    """
    stored = folder.read_tensors(f"{name}.safetensors")
    if stored is None:
        return None
    tensors, record = stored
    count = max(1, len(tensors) // len(layout.names))
    heads = [""] if count == 1 else [f"{model}/" for model in range(count)]
    own = dict(zip(layout.names, map(tuple, layout.shapes), strict=True))
    shapes = {head + key: shape for head in heads for key, shape in own.items()}
    found = {key: value.shape for key, value in tensors.items()}
    if found != shapes:
        key = min(key for key in found.keys() | shapes if found.get(key) != shapes.get(key))
        raise RunFolderError(
            f"{folder.path / name}.safetensors holds the weights of another model: {key!r} is "
            f"{found.get(key, 'not there')}, and {shapes.get(key, 'not there')} in the model. Give the one that was "
            "trained, or run again."
        )
    vectors = np.empty((count, layout.size), np.float32)
    for vector, head in zip(vectors, heads, strict=True):
        for key, view in layout.views(torch.from_numpy(vector)).items():
            view.copy_(torch.from_numpy(tensors[head + key]))
    return StoredModels(int(record["round"]), vectors)

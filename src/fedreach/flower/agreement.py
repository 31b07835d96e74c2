"""What server and clients must agree on before they train together."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedreach.data.datasets import Dataset, form_to_json
from fedreach.errors import ConfigError
from fedreach.experiments.naming import Shelf, said
from fedreach.federation.federation import Federation
from fedreach.models.flat import Layout

MOST_CLIENTS = 2**20  # ids are below it: tables have a row for each


def words(part: object) -> str:
    """Return what a part is, the same in every process: its repr without addresses.

    Example:
        >>> words(object())
        '<object object>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(part))


def terms_of(federation: Federation, layout: Layout) -> dict[str, str]:
    """Return what a client's training depends on, in words.

    Example:
        >>> from fedreach.testing.problems import tiny_federation
        >>> from torch import nn
        >>> terms_of(tiny_federation(), Layout.of(nn.Linear(2, 2)))["solver"]
        'FedAvg()'
    """
    shapes = repr([(name, tuple(shape)) for name, shape in zip(layout.names, layout.shapes, strict=True)])
    digest = hashlib.sha256(shapes.encode()).hexdigest()[:12]
    terms = {
        "solver": words(federation.solver),
        "local": words(federation.local),
        "loss": words(federation.loss),
        "augmentation": words(federation.augmentation),
        "measurements": words(federation.measurements()),
        "serving": words(federation.serving),
        "label_statistics": words(federation.label_statistics),
        "seed": words(federation.seed),
        "model": f"{layout.size} numbers, {layout.num_trainable} of them trained, {digest}",
    }
    if federation.label_statistics.only_sum:
        terms["weighting"] = words(federation.weighting)  # which each client works out for itself
    return terms


def samples_of(dataset: Dataset) -> str:
    """Return what a sample looks like and what is told of it, as JSON: the same at all clients of a federation."""
    return json.dumps(
        {
            "kind": dataset.kind,
            "dtype": dataset.train_x.dtype.name,
            "shape": list(dataset.train_x.shape[1:]),
            "mean": list(dataset.mean),
            "std": list(dataset.std),
            "classes": dataset.num_classes,
            "outputs": dataset.outputs,
            **form_to_json(dataset),
        }
    )


def identity_of(
    federation: Federation, model: nn.Module, name: str, rounds: int, inputs: Sequence[int], shelf: Shelf
) -> dict[str, Any]:
    """Return what a run is that no experiment file describes, see `fedreach.runs.identity`.

    Model and serving rule stand in it as an experiment file would name them, so that the run's folder can be loaded;
    what has no name is kept on the shelf.
    """
    config: dict[str, Any] = {
        "name": name,
        "federation": words(federation),
        "method": {"serving": said("serving", federation.serving, shelf)},
        "rounds": rounds,
        "inputs": [*inputs],
    }
    try:
        config["model"] = {"name": said("model", model, shelf)}
    except ConfigError:  # it cannot leave this process: who loads the run passes it
        config["module"] = str(model)
    return {"method": name, "seed": federation.seed, "config": config, "code": {}}


def difference(ours: Mapping[str, str], theirs: Mapping[str, object]) -> str | None:
    """Return the first term that differs, in words; None where all agree.

    Example:
        >>> difference({"solver": "FedAvg()"}, {"solver": "FedProx(mu=0.1)"})
        'its solver is FedProx(mu=0.1), not FedAvg()'
    """
    for name, term in ours.items():
        if theirs.get(name) != term:
            return f"its {name} is {str(theirs.get(name, 'not told'))[:300]}, not {term}"
    return None

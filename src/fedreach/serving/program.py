"""The program beside an exported model: it predicts files where there are numpy, pyarrow, and torch or onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import fedreach
from fedreach.federation.protocols import Serving
from fedreach.federation.values import State
from fedreach.serving import deployed
from fedreach.serving.export import check_deployable, place_of
from fedreach.serving.literals import arrays, authors, loader, made, said
from fedreach.serving.sources import modules

Library = Literal["torch", "onnx"]

FILE = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by FedReach {version}, of whose modules it consists{users}. It needs numpy, pyarrow and {package}.
"""Predict by a federated model{serving}.

{about}

    python {stem}.py rows.csv --out predictions.csv

    import {stem}

    {stem}.model.logits(samples)           # (m, {outputs}) of {samples}
    adapter = {stem}.model.new_adapter()   # one for each client, where the model has a rule
    answers = {stem}.model.answers(samples)
    adapter.fit(*answers).predict(*answers)
"""

{loader}

import functools
import json
from pathlib import Path

import {package}

HERE = Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "model.json").read_text(encoding="utf-8"))

STATE = {state}
"""What the participants fitted, for the rule."""

RULE = {rule}

{run}


model = {deployed}.Deployed(ABOUT, run, RULE, STATE, batch={batch})

if __name__ == "__main__":
    sys.exit({deployed}.main(model))
'''

PACKAGE = {"torch": "torch", "onnx": "onnxruntime"}
RUN = {
    "torch": """\
@functools.cache
def graph(name):
    return torch.export.load(HERE / f"{name}.pt2").module()


def run(name, x):
    with torch.no_grad():
        found = graph(name)(torch.from_numpy(x))
    return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]""",
    "onnx": """\
@functools.cache
def graph(name):
    return onnxruntime.InferenceSession(HERE / f"{name}.onnx", providers=["CPUExecutionProvider"])


def run(name, x):
    return graph(name).run(None, {"samples": x})""",
}


def program(
    about: Mapping[str, Any], library: Library, rule: Serving | None, state: State, batch: int, stem: str = "predict"
) -> str:
    """Return the text of the program.

    Args:
        about: What ``model.json`` says.
        library: What runs the graphs beside it.
        rule: By which clients are served, a dataclass; None: by the model as it is.
        state: As it was fitted.
        batch: Samples that a graph is given at a time.
        stem: Name of the file without its ending.

    Raises:
        ConfigError: If nobody can be served so, the rule's options cannot be written down, or it needs more than numpy.
    """
    roots: list[str | Path] = [deployed.__name__]
    if rule is not None:
        check_deployable(rule)
        roots.append(place_of(rule))
    found = modules(roots)
    told = {key: about[key] for key in ("name", "method", "seed", "model", "cluster", "round", "rule")}
    return FILE.format(
        version=fedreach.__version__,
        users=authors(found.values()),
        package=PACKAGE[library],
        serving="" if rule is None else ", each client served by its own inputs",
        about=said(told),
        stem=stem,
        outputs=about["outputs"],
        samples="a table" if about["kind"] == "table" else f"{about['kind']} of shape {tuple(about['shape'])}",
        loader=loader(found.values()),
        state="None" if rule is None else "{\n" + arrays(state) + "}",
        rule="None" if rule is None else made(rule, found[str(roots[-1])].name),
        run=RUN[library],
        deployed=found[deployed.__name__].name,
        batch=batch,
    )

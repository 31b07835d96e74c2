"""A whole run of any module: what torch alone computes, opened again, exported, or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach._util.streams import torch_seed
from fedreach.deploy.export import export
from fedreach.deploy.saved import load
from fedreach.engines.models.networks import build
from fedreach.federation.local_sgd import LocalSGD

from .plain_torch import train
from .zoo import CLASSES
from .zoo_runs import SEED, ZooRun, cases, finish

LOCAL = LocalSGD(batch_size=4, lr=0.0625, drop_last=True)  # bfloat16 has this rate; torch rounds others on a CPU
SAME = 1e-5
DRAWS, FOLLOWS = "draws random numbers in evaluation", "torch.export cannot trace the module"
REFUSED = {
    "AlwaysDropping": DRAWS,
    "NoiseByNumpy": DRAWS,
    "NoiseInEvaluation": DRAWS,
    "BranchByData": FOLLOWS,
    "BranchBySize": FOLLOWS,
    "BranchBySmallSize": FOLLOWS,
    "LoopByData": FOLLOWS,
    "ReadByData": FOLLOWS,
}
"""Members of which no graph can be made, and what is said of them."""
NO_ONNX = {
    "Attention": "torch.onnx cannot write this model",
    "Autocast": "onnxruntime cannot run this model",
    "AutocastToTheEnd": "onnxruntime cannot run this model",
    "NarrowBody": "onnxruntime cannot run this model",
    "bfloat16": "onnxruntime cannot run this model",
}
"""Members of which torch runs a graph, and onnxruntime does not."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ZooRun]:
    """Finished runs by name, each made when a test first needs it."""
    made: dict[str, ZooRun] = {}

    def call(name: str) -> ZooRun:
        if name not in made:
            made[name] = finish(name, tmp_path_factory.mktemp(name))
        return made[name]

    return call


def module_with(w: ZooRun, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Return the run's module with these numbers in place of its own."""
    module = build(w.member.make, w.member.shape, CLASSES, seed=torch_seed(SEED, "model"))
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
    return module


@pytest.mark.parametrize("name", cases())
@pytest.mark.sampled(4)
def test_a_run_ends_with_the_model_that_torch_alone_averages(name: str, finished: Callable[[str], ZooRun]) -> None:
    w = finished(name)
    module = module_with(w, {})
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    model = {key: own[key].detach().clone() for key in w.tensors}
    narrow = {key for key, value in model.items() if value.dtype in (torch.bfloat16, torch.float16)}
    model |= {key: model[key].float() for key in narrow}  # the server averages in float32; modules round once
    for row in w.rows[1:]:
        moves = []
        for client in row["cohort"]:
            received = module_with(w, model)
            began = {key: received.state_dict()[key].float() for key in narrow}  # a copy, as float() changes the type
            move, _ = train(received, w.data, client, LOCAL, seed=SEED, round_=row["round"], lr=LOCAL.lr)
            move |= {
                key: move[key] + began[key] - model[key] for key in narrow
            }  # from the average, not the rounded one
            moves.append(move)
        for key, value in model.items():
            value += sum(weight * move[key] for weight, move in zip(row["weights"], moves, strict=True))
    for key, stored in w.tensors.items():
        np.testing.assert_allclose(stored, model[key], rtol=0, atol=SAME, err_msg=key)


@pytest.mark.parametrize("name", cases())
@pytest.mark.sampled(4)
def test_an_opened_run_predicts_the_bits_that_the_run_was_scored_by(
    name: str, finished: Callable[[str], ZooRun], tmp_path: Path
) -> None:
    w = finished(name)
    x, y = w.data.dataset.test_x, w.data.dataset.test_y
    opened = fr.open(w.folder)
    assert isinstance(opened, fr.Run)
    model = opened.model(base=w.base)
    np.testing.assert_array_equal(model.logits(x), w.logits)
    assert (model.predict(x).astype(int) == y).mean() == pytest.approx(w.rows[-1]["test_accuracy"], abs=1e-8)
    export(model, tmp_path / "weights", "safetensors")
    np.testing.assert_array_equal(load(tmp_path / "weights", base=w.base).logits(x), w.logits)


@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize("name", cases(quick=("mlp", "NoiseInEvaluation", "BranchBySize")))
@pytest.mark.sampled(4)
def test_an_exported_graph_predicts_the_same_or_is_refused_in_words(
    name: str, form: str, finished: Callable[[str], ZooRun], tmp_path: Path
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
    w, out = finished(name), tmp_path / "out"
    model = fr.open(w.folder).model(base=w.base)  # type: ignore[union-attr]
    refused = REFUSED | (NO_ONNX if form == "onnx" else {})
    if name in refused:
        with pytest.raises(ConfigError, match=refused[name]):
            export(model, out, form)  # type: ignore[arg-type]
        assert not out.exists()
        return
    export(model, out, form)  # type: ignore[arg-type]
    raw = model.raw(w.data.dataset.test_x)
    for size in (len(raw),) if model.mixes else (len(raw), 1):
        if form == "torch":
            outputs = torch.export.load(out / "model.pt2").module()(raw[:size]).detach().numpy()
        else:
            session = pytest.importorskip("onnxruntime").InferenceSession(out / "model.onnx")
            (outputs,) = session.run(None, {"samples": raw[:size].numpy()})
        near = 2e-3 if name == "Float16" else SAME  # onnxruntime rounds sums of float16 elsewhere
        np.testing.assert_allclose(outputs, w.logits[:size], rtol=0, atol=near)

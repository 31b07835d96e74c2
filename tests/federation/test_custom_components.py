"""Custom components: a class that imports numpy or torch and `fedreach as fr`, in the simulator and on Flower."""

from __future__ import annotations

import ast
import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import fedreach as fr
from fedreach._util import registry
from fedreach.experiment.run import run

CUSTOM = Path(__file__).with_name("custom")
COMPONENTS = {
    "selection": "LongestWaiting",
    "weighting": "ByVariety",
    "loss": "Focal",
    "metric": "Brier",
    "adaptation": "MeanPrediction",
}
TINY = """
name = "tiny"
rounds = 2
partition = { name = "dirichlet_by_class", alpha = 0.3, clients = 8 }
population.participants = 5
model.name = "linear"
engine.name = "sequential"
[method]
cohort_size = 3
[evaluation]
every = 2
local = false
"""


def component(kind: str) -> type:
    """Return the custom component of a type."""
    loaded: type = registry.load_users(f"{kind}.py:{COMPONENTS[kind]}", CUSTOM)
    return loaded


@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_custom_component_imports_the_package_alone_and_passes_all_checks(kind: str) -> None:
    tree = ast.parse((CUSTOM / f"{kind}.py").read_text(encoding="utf-8"))
    imports = {node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)}
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imports <= {"numpy", "torch", "fedreach"}
    assert modules <= {"dataclasses"}
    fr.testing.check(component(kind)())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_custom_component_gives_the_simulators_run_on_flower(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from tests.flower.in_process import InProcess
    from tests.flower.same import rows_of

    from fedreach.flower.experiment import FlowerExperiment

    name = f"{CUSTOM / kind}.py:{COMPONENTS[kind]}"
    option = f'evaluation.metrics=["{name}"]' if kind == "metric" else f"method.{kind}={name}"
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    setup = FlowerExperiment(tmp_path / "tiny.toml", overrides=(option,))
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "simulator", base=setup.base)
    grid = InProcess(setup.client_app(), range(8))
    setup.strategy(tmp_path / "flower", timeout=5, patience=5).run(grid)
    ours, theirs = rows_of(tmp_path / "simulator"), rows_of(tmp_path / "flower")
    assert len(ours) == len(theirs) == 3
    for mine, other in zip(ours, theirs, strict=True):
        pooled = {f"{clients}_brier_pooled" for clients in ("participant", "unseen")}  # outputs stay with the clients
        assert mine.keys() - pooled == other.keys()
        for key in other:
            within = 1e-6 if key.endswith(("_loss", "_brier")) else 0
            assert other[key] == (pytest.approx(mine[key], abs=within) if within else mine[key]), key
    last = "last.safetensors"
    assert (tmp_path / "flower" / last).read_bytes() == (tmp_path / "simulator" / last).read_bytes()
    if kind == "metric":
        assert 0 < ours[-1]["unseen_brier"] < 2
    if kind == "adaptation":
        record = "adaptation.json"
        assert (tmp_path / "flower" / record).read_bytes() == (tmp_path / "simulator" / record).read_bytes()


# -------------------- What is wrong is found where the class is defined


def test_a_misspelled_attribute_is_found() -> None:
    with pytest.raises(fr.ComponentError, match=r"^Mine has no attribute `read_updates`\. Did you mean `reads_upd"):

        class Mine(fr.Selection):
            read_updates = True


def test_a_missing_method_is_found() -> None:
    class Mine(fr.Weighting):
        pass

    with pytest.raises(TypeError, match="abstract class Mine with abstract method weights"):
        Mine()
    with pytest.raises(fr.ComponentError, match=r"^Half must define trains, learn; not defined: learn\.$"):

        class Half(fr.server.Average):
            def trains(self, rng):
                return True


def test_a_promise_falls_when_its_method_is_overridden() -> None:
    class Cubed(fr.solver.FedProx):
        def correct(self, gradient, params, broadcast):
            return gradient**3

    assert fr.solver.FedProx().affine
    assert not Cubed().affine


# -------------------- Components of installed packages


class MostExamples(fr.Selection):
    """Select the clients with the most examples."""

    def select(self, state, view, k, rng):
        return fr.Cohort(view.available_ids[np.argsort(-view.num_examples[view.available], kind="stable")[:k]])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Return how to pretend that a package with an entry point is installed."""

    def install(name: str) -> None:
        entry = EntryPoint(name, f"{__name__}:MostExamples", registry.ENTRY_POINTS)
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: [entry] * (group == registry.ENTRY_POINTS)
        )
        registry.installed_components.cache_clear()

    yield install
    registry.installed_components.cache_clear()


def test_an_installed_package_adds_a_component_by_an_entry_point(installed) -> None:
    installed("selection.most_examples")
    assert "most_examples" in registry.table("selection")
    assert registry.find("selection", "most_examples", Path()).__name__ == "MostExamples"
    assert "most_examples" not in registry.table("weighting")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("selections.most_examples", r"must be named TYPE\.NAME; got .* Did you mean 'selection'"),
        ("most_examples", r"must be named TYPE\.NAME"),
        ("selection.uniform", "must not have a built-in component's name"),
    ],
)
def test_an_entry_point_with_a_wrong_name_is_refused(installed, name: str, rule: str) -> None:
    installed(name)
    with pytest.raises(fr.ConfigError, match=rule):
        registry.table("selection")

"""No honest client leaves a range, at its ends neither, for rounding; and what lies just beyond is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ComponentError
from fedreach.federation.adaptation import trust
from fedreach.federation.checks import ValidRange
from fedreach.federation.labels import DiscreteGaussian, DiscreteLaplace, Exact, entropy_range, released_entropy
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.measurements import WLRC, Disagreement
from fedreach.federation.types import LocalOutputs
from fedreach.federation.weighting import OwnWeight
from fedreach.runs.simulation import simulate
from fedreach.testing.problems import tiny_data, tiny_federation


def test_the_entropy_of_uniform_labels_is_in_its_range_for_every_number_of_classes():
    for classes in range(1, 1001):
        for each in (1, 3, 7):
            (entropy,) = released_entropy(np.full((1, classes), float(each)))
            assert entropy_range(classes).holds(entropy)


def test_losses_and_measurements_of_sure_and_unsure_models_are_in_range():
    rng = np.random.default_rng(0)
    for m, c, size in ((1, 2, 0.0), (5, 3, 1e4), (64, 10, 1.0), (100, 10, 1e4), (33, 2, 1e-3)):
        logits = (size * rng.standard_normal((m, c))).astype(np.float32)
        for labels in (logits.argmax(axis=1), logits.argmin(axis=1)):
            outputs = LocalOutputs(logits, labels, before=logits[::-1].copy())
            parts = [WLRC(o, estimator=e) for o in ("softmax", "logits", "excess_loss") for e in ("closed_form",)]
            parts += [WLRC(), *(Disagreement(loss, r, r / 10) for loss in ("jsd", "zero_one") for r in (0.2, 1.0))]
            for part in parts:
                value = part.measure(outputs, np.random.default_rng(1))
                assert ValidRange.of(part).holds(value), (part, value)


def test_a_range_is_a_promise_about_the_method_that_a_part_has():
    class Cheaper(CrossEntropy):
        def per_example(self, outputs, targets):
            return super().per_example(outputs, targets) - 1

    class Further(Disagreement):
        def measure(self, outputs, rng):
            return -1.0

    class Odd(Exact):
        def release(self, counts, rng):
            return counts + 0.5

    assert ValidRange.of(CrossEntropy()) == ValidRange(0.0)
    assert ValidRange.of(Cheaper()) == ValidRange.of(Further()) == ValidRange()
    assert Exact().knows_possible
    assert not Odd().knows_possible


def test_a_simulated_round_says_which_part_leaves_its_own_range():
    class Off(Disagreement):
        maximum = 1e-3

        def measure(self, outputs, rng):
            return 1.0

    class Asking(OwnWeight):
        measures = (Off(),)

        def raw(self, metrics):
            return metrics["num_examples"]

    federation = replace(tiny_federation(), weighting=Asking())
    simulation = simulate(tiny_data(), "linear", federation, rounds=1, engine="sequential")
    with pytest.raises(ComponentError, match=r"disagreement\.measure must return numbers .*; client \d+ measured 1"):
        simulation.step(simulation.start())


@pytest.mark.parametrize(
    "statistics", [Exact(), DiscreteLaplace(0.001), DiscreteLaplace(5.0), DiscreteGaussian(1, 1e-5)]
)
def test_whatever_is_released_is_possible(statistics):
    counts = np.random.default_rng(0).integers(0, 30, (20_000, 5))
    sizes = counts.sum(axis=1)
    released = statistics.release(counts, np.random.default_rng(1))
    assert statistics.possible(released, sizes).all()
    assert not statistics.possible(released + 1e7, sizes).any()
    assert not statistics.possible(released + 0.5, sizes).any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("engine", ["sequential", "native"])
def test_clipped_steps_go_as_far_as_they_can_and_no_further(engine, momentum):
    """Gradients that are far above the clip norm and all point one way reach the bound."""
    local = LocalSGD(lr=0.5, clip_norm=1e-3, batch_size=4, epochs=3, momentum=momentum)
    simulation = simulate(tiny_data(), "linear", replace(tiny_federation(), local=local), rounds=1, engine=engine)
    ids = simulation.data.population.participants
    trained = simulation.engine.train(simulation.engine.initial, ids, 1, local.lr, {})
    steps = local.steps_of(simulation.data.train.sizes[ids], ids, 0, 1)
    assert trained.steps.tolist() == steps.tolist()
    size = float(np.linalg.norm(simulation.engine.initial))
    furthest = [local.furthest(int(k), local.lr, size) for k in steps]
    norms = np.linalg.norm(trained.update.astype(np.float64), axis=1)
    assert (norms <= furthest).all()
    assert (norms >= 0.5 * np.array(furthest)).any()  # the bound says something


CONTRIBUTED = {
    "held_out": np.array([2.0, 1.0]),
    "trained": np.array([4.0, 5.0]),
    "confusion": np.array([[1.5, 0.25], [0.5, 0.75]]),
    "loss": np.array([0.5]),
    "gradient": np.array([0.1, -0.2, 0.2]),
    "curvature": np.array([0.5, 0.1, -0.1, 0.4, -0.4, 0.4]),
    "spread": np.full(41, -3.0),
    "predicted": np.array([1.75, 1.25]),
}


def test_what_a_client_can_contribute_is_believed():
    assert trust.are_sums(CONTRIBUTED, held_out=3, trained=9)
    assert entropy_range(2).holds(0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("held_out", [3.0, 1.0]),
        ("held_out", [2.5, 0.5]),
        ("held_out", [4.0, -1.0]),
        ("trained", [4.0, 6.0]),
        ("confusion", [[1.5, 0.25], [0.6, 0.75]]),
        ("confusion", [[3.0, 0.25], [-1.0, 0.75]]),
        ("loss", [-0.1]),
        ("gradient", [1e8, 0.0, 0.0]),
        ("gradient", [0.0, 4.0, -4.0]),
        ("curvature", [0.5, 0.1, -0.1, 0.8, -0.4, 0.4]),
        ("curvature", [-0.5, 0.1, -0.1, 0.4, -0.4, 0.4]),
        ("curvature", [0.5, 9.0, -0.1, 0.4, -0.4, 0.4]),
        ("spread", [1.0] * 41),
        ("predicted", [2.0, 2.0]),
        ("predicted", [4.0, -1.0]),
    ],
)
def test_what_no_client_can_contribute_is_not(name, value):
    assert not trust.are_sums({**CONTRIBUTED, name: np.array(value)}, held_out=3, trained=9)

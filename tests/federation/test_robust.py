"""Robust aggregators against another library, in blocks, with mixing, and where they break down."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach._util.arrays import Float32s
from fedreach._util.errors import ConfigError
from fedreach.experiment.load import load
from fedreach.federation import robust
from fedreach.federation.robust import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    Robust,
    TrimmedMean,
)

R, F, D = 11, 3, 40
SHARE = F / R


def sent(seed: int = 0, r: int = R) -> Float32s:
    return np.random.default_rng(seed).standard_normal((r, D)).astype(np.float32)


def combined(rule: Any, update: Float32s, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(update)))
    return np.asarray(rule.combine({}, weights, update, np.random.default_rng(seed))[0])


def of_byzfl(name: str) -> Any:
    """Return a module of byzfl without its top module, which imports plots and data sets."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        pytest.skip("byzfl is not installed")
    package = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("byzfl", package)
    return importlib.import_module(f"byzfl.aggregators.{name}")


def peers() -> dict[str, tuple[Robust, Any]]:
    library = of_byzfl("aggregators")
    return {
        "median": (Median(SHARE), library.Median()),
        "trimmed mean": (TrimmedMean(SHARE), library.TrMean(f=F)),
        "geometric median": (GeometricMedian(SHARE, iterations=3), library.GeometricMedian(nu=0.1, T=3)),
        "krum": (Krum(SHARE), library.Krum(f=F)),
        "multi-krum": (MultiKrum(SHARE), library.MultiKrum(f=F)),
        "centered clipping": (CenteredClipping(radius=2.0, iterations=4), library.CenteredClipping(L=4, tau=2.0)),
    }


@pytest.mark.parametrize(
    "name", ["median", "trimmed mean", "geometric median", "krum", "multi-krum", "centered clipping"]
)
def test_a_rule_equals_that_of_another_library(name: str) -> None:
    rule, peer = peers()[name]
    update = sent()
    np.testing.assert_allclose(combined(rule, update), peer(update.astype(np.float64)), rtol=0, atol=1e-6)


def test_mixing_of_neighbors_equals_that_of_another_library() -> None:
    mixed = of_byzfl("preaggregators").NNM(f=F)
    peer, update = peers()["geometric median"][1], sent()
    rule = GeometricMedian(SHARE, "nearest_neighbors", iterations=3)
    np.testing.assert_allclose(combined(rule, update), peer(mixed(update.astype(np.float64))), rtol=0, atol=1e-6)


RULES = (Median, TrimmedMean, GeometricMedian, MultiKrum, Krum, CenteredClipping)


@pytest.mark.parametrize("mixing", ["none", "nearest_neighbors", "bucketing"])
@pytest.mark.parametrize("rule", RULES)
def test_blocks_of_columns_give_the_numbers_of_one_block(
    rule: type[Robust], mixing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = combined(rule(SHARE, mixing), sent())
    monkeypatch.setattr(robust, "NUMBERS", 7 * R)
    np.testing.assert_allclose(combined(rule(SHARE, mixing), sent()), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES[:-1])
def test_weights_have_no_effect_but_zero_leaves_a_client_out(rule: type[Robust]) -> None:
    update = sent()
    assert (combined(rule(SHARE), update, 1) == combined(rule(SHARE), update, 2)).all()
    weights = np.r_[np.full(R, 1 / R), 0.0]
    with_one_more = rule(SHARE).combine({}, weights, np.r_[update, 1e6 * update[:1]], np.random.default_rng(0))[0]
    np.testing.assert_array_equal(with_one_more, combined(rule(SHARE), update))


@pytest.mark.parametrize("mixing", ["none", "nearest_neighbors"])
@pytest.mark.parametrize("rule", RULES[:-1])
def test_below_the_breakdown_point_the_center_stays_near_the_honest_mean(rule: type[Robust], mixing: Any) -> None:
    """With at most f liars the distance is at most a few honest deviations; with r - f liars it follows them."""
    update = sent()
    honest = update[F:].astype(np.float64)
    spread = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    for lie in (-10 * update[:F], np.full((F, D), 1e4, np.float32), np.zeros((F, D), np.float32)):
        attacked = np.r_[lie, update[F:]].astype(np.float32)
        assert np.linalg.norm(combined(rule(SHARE, mixing), attacked) - honest.mean(axis=0)) < 2 * spread
    taken_over = np.r_[np.full((R - F, D), 1e4), update[:F]].astype(np.float32)
    assert np.linalg.norm(combined(rule(SHARE, mixing), taken_over)) > 1e3


def test_equal_scores_share_their_weight_so_that_the_order_does_not_count() -> None:
    update = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    for rule in (Krum(0.25), MultiKrum(0.25), MultiKrum(0.25, "nearest_neighbors")):
        np.testing.assert_allclose(combined(rule, update), combined(rule, update[::-1]), rtol=0, atol=1e-12)


def test_a_weighting_without_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Median gives each client one vote, so ByEntropy would have no effect"):
        load(None, ["method.aggregation=median", "method.weighting=entropy"])
    assert load(None, ["method.aggregation=norm_bound", "method.weighting=entropy"]).method.cohort_size > 0


def test_a_small_cohort_withstands_one_liar_and_not_none() -> None:
    update = np.array([[1.0], [1.1], [0.9], [1e6]], np.float32)
    for rule in (TrimmedMean(), MultiKrum(), Krum(), Median(), GeometricMedian()):
        assert abs(combined(rule, update).item() - 1) < 0.2

"""Weightings made of weightings."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.experiment.options import options_model
from fedreach.federation.measurements import Disagreement
from fedreach.federation.types import ClientResults
from fedreach.federation.weighting import ByDisagreement, ByEntropy, ByExamples, Clip, Equal, Mix, Product, cap_weights

from .small import federation

checks = settings(deadline=None, derandomize=True)
shares = (
    st.lists(st.sampled_from([0.0, 1e-9, 0.2, 1.0, 3.0, 1e6]) | st.floats(0, 1), min_size=1, max_size=8)
    .map(np.array)
    .filter(lambda raw: raw.sum() > 1e-6)
    .map(lambda raw: np.where(raw < 1e-30, 0.0, raw / raw.sum()))  # ratios of smaller ones are rounding alone
)


@dataclass(frozen=True)
class Fixed(fr.Weighting):
    """Weights that stand fast, for every round the same."""

    values: tuple[float, ...]

    def weights(self, state, reports):
        return np.array(self.values), state


@dataclass(frozen=True)
class Fading(fr.Weighting):
    """Weights 1, 1/2, 1/4, ... for client 0 of two, over the rounds: it must remember how many there were."""

    needs = ("label_counts",)

    def weights(self, state, reports):
        seen = state.get("seen", np.zeros(1, np.int64))
        first = 0.5 ** int(seen[0])
        return np.array([first, 1 - first]), {"seen": seen + 1}


def reports_of(r):
    metrics = {
        "num_examples": np.arange(1.0, r + 1),
        "label_entropy": np.linspace(1, 0, r),
        "disagreement": np.linspace(0.4, 2, r) ** 2,
    }
    for values in metrics.values():
        values.setflags(write=False)
    return ClientResults(np.arange(r), np.zeros((r, 1), np.float32), metrics)


def weights_of(weighting, r=4):
    return weighting.weights({}, reports_of(r))[0]


# ---------------------------------------------------------------------------------------------------- product


def test_a_product_multiplies_the_weights():
    n, h = np.arange(1.0, 5), np.linspace(1, 0, 4)
    expected = n * np.exp(h)
    np.testing.assert_allclose(weights_of(Product((ByExamples(), ByEntropy()))), expected / expected.sum(), rtol=1e-13)
    expected = n**0.5 * np.exp(3 * h)
    found = weights_of(Product((ByExamples(), ByEntropy()), exponents=[0.5, 3]))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-13)


def test_an_equal_part_or_an_exponent_of_0_changes_no_product():
    alone = weights_of(ByEntropy())
    for product in (
        Product((ByEntropy(),)),
        Product((ByEntropy(), Equal())),
        Product((ByEntropy(), Fixed((1, 0, 0, 0))), exponents=(1, 0)),
        Product((Product((ByEntropy(), Equal()), exponents=(2, 1)),), exponents=(0.5,)),
    ):
        np.testing.assert_allclose(weights_of(product), alone, rtol=1e-13)


def test_a_product_of_very_small_weights_is_not_lost():
    tiny = Fixed((1 - 1e-200, 1e-200, 1e-201, 0))
    found = weights_of(Product((Fixed((0, 0.5, 0.5, 0)), tiny)))
    np.testing.assert_allclose(found, [0, 10 / 11, 1 / 11, 0], rtol=1e-12)
    last = Fixed((1e-200, 1e-200, 1e-200, 1))  # the one whom the other part gives no weight
    np.testing.assert_allclose(weights_of(Product((tiny, last))), [1, 0, 0, 0], atol=1e-150)


def test_a_product_that_leaves_nobody_names_its_parts():
    nobody = Product((Fixed((1, 0)), Fixed((0, 1))))
    with pytest.raises(ComponentError, match="at least one client must have a positive weight in all of Fixed, Fixed"):
        weights_of(nobody, 2)


def test_a_product_has_raw_weights_if_all_its_parts_have():
    metrics = reports_of(3).metrics
    product = Product((ByExamples(), Product((ByEntropy(), ByDisagreement()))), exponents=(2, 1))
    expected = metrics["num_examples"] ** 2 * np.exp(metrics["label_entropy"]) / metrics["disagreement"]
    np.testing.assert_allclose(product.raw(metrics), expected, rtol=1e-13)
    assert not Product((ByExamples(), Fixed((1,)))).has_own_weights
    assert not Product((ByExamples(), Mix((Equal(),)))).has_own_weights


# -------------------------------------------------------------------------------------------------------- mix


def test_a_mix_averages_the_weights():
    entropy, examples = weights_of(ByEntropy()), weights_of(ByExamples())
    np.testing.assert_allclose(weights_of(Mix((ByEntropy(), ByExamples()))), (entropy + examples) / 2, rtol=1e-13)
    found = weights_of(Mix((ByEntropy(), ByExamples()), shares=[3, 1]))
    np.testing.assert_allclose(found, 0.75 * entropy + 0.25 * examples, rtol=1e-13)


def test_a_mix_of_one_part_is_that_part_bit_for_bit():
    alone = weights_of(ByEntropy()).tobytes()
    assert weights_of(Mix((ByEntropy(),), shares=(7,))).tobytes() == alone
    assert weights_of(Mix((ByEntropy(), ByExamples()), shares=(1, 0))).tobytes() == alone


# ------------------------------------------------------------------------------------------------------- clip


@checks
@given(weights=shares, above=st.floats(0, 1))
def test_clipping_cuts_at_the_cap_and_scales_the_rest_by_one_factor(weights, above):
    cap = max(above, 1 / len(weights))
    found = cap_weights(weights, cap)
    assert (found <= cap).all()
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, rel=1e-12)
    assert (found[np.argsort(weights)][1:] >= found[np.argsort(weights)][:-1] * (1 - 1e-12)).all()
    free = (found < cap) & (weights > 0)
    factors = found[free] / weights[free]
    if factors.size:
        assert factors.max() <= factors.min() * (1 + 1e-9)
        # those at the cap would be at it or above with that factor
        assert (weights[found == cap] * factors.min() >= cap * (1 - 1e-9)).all()
    np.testing.assert_allclose(cap_weights(found, cap), found, rtol=1e-12)


@checks
@given(weights=shares, above=st.floats(0, 1))
def test_weights_of_zero_are_clipped_like_very_small_ones(weights, above):
    cap = max(above, 1 / len(weights))
    weights = np.where(weights > 1e-6, weights, 0)
    nearly = np.where(weights > 0, weights, 1e-15)
    found = [cap_weights(w / w.sum(), cap) for w in (weights, nearly)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-7)


@checks
@given(weights=shares)
def test_a_cap_that_nobody_exceeds_changes_no_bit_and_the_lowest_one_makes_all_equal(weights):
    assert cap_weights(weights, weights.max()).tobytes() == weights.tobytes()
    np.testing.assert_allclose(
        cap_weights(weights, 1 / len(weights)), np.full(len(weights), 1 / len(weights)), rtol=1e-12
    )


def test_water_is_filled_by_hand():
    # 0.6 is cut to 0.35; 0.25, 0.1, 0.05 share 0.65 and would get .40625, so 0.25 is cut, too; 0.1, 0.05 share 0.3.
    np.testing.assert_allclose(cap_weights(np.array([0.6, 0.25, 0.1, 0.05]), 0.35), [0.35, 0.35, 0.2, 0.1], rtol=1e-13)


def test_both_limits_hold_and_few_replies_all_weigh_the_same():
    uneven = Fixed((0.7, 0.1, 0.1, 0.1))
    for limits, most in (
        ({"max": 0.4}, 0.4),
        ({"times_equal": 2}, 0.5),
        ({"max": 0.4, "times_equal": 2}, 0.4),
        ({"max": 0.9, "times_equal": 1.2}, 0.3),
        ({"max": 0.05}, 0.25),  # no four weights can be that small
        ({"times_equal": 1}, 0.25),
        ({"max": 1}, 0.7),
    ):
        assert weights_of(Clip(uneven, **limits)).max() == pytest.approx(most)


# ---------------------------------------------------------------------------------------------------- nesting


def test_what_is_inside_asks_and_measures():
    nested = Clip(Product((ByEntropy(), Mix((Fading(), ByDisagreement(step=0.1))), ByEntropy(2.0))), max=0.5)
    whole = federation(weighting=nested)
    assert whole.needs() == {"label_entropy", "label_counts"}
    assert whole.measurements() == (Disagreement(step=0.1),)


def test_two_measurements_of_one_name_are_told_apart():
    whole = federation(weighting=Mix((ByDisagreement(), ByDisagreement(radius=0.1))))
    with pytest.raises(ComponentError, match="Two components measure 'disagreement' differently"):
        whole.measurements()
    assert len(federation(weighting=Mix((ByDisagreement(), ByDisagreement()))).measurements()) == 1


def test_each_part_inside_remembers_for_itself():
    nested = Mix((Fading(), Clip(Product((Equal(), Fading())), times_equal=1.5)))
    state = {}
    for round_, first in enumerate([1, 0.5, 0.25, 0.125]):
        weights, new = nested.weights(state, reports_of(2))
        assert weights[0] == pytest.approx((first + min(max(first, 0.25), 0.75)) / 2)
        assert set(new) == {"0.seen", "1.inner.1.seen"}
        assert {int(seen[0]) for seen in new.values()} == {round_ + 1}
        again, _ = nested.weights(state, reports_of(2))  # the state that came in is as it was
        assert again.tobytes() == weights.tobytes()
        state = new


def test_a_part_inside_that_breaks_the_contract_is_named():
    for wrong, rule in (
        ((0.5, 0.6), "sum to 1"),
        ((1.5, -0.5), "not negative"),
        ((1.0,), "one weight for each of the 2"),
    ):
        for outer in (Clip(Fixed(wrong), max=0.9), Mix((Equal(), Fixed(wrong))), Product((Fixed(wrong),))):
            with pytest.raises(ComponentError, match=rf"Fixed\.weights must return .*{rule}"):
                weights_of(outer, 2)


def test_parts_are_compared_and_shown_by_what_they_hold():
    assert Product([ByEntropy(), Equal()]) == Product((ByEntropy(), Equal()), exponents=[1, 1])
    assert hash(Mix((Equal(),), shares=[2])) == hash(Mix((Equal(),), shares=(2,)))
    assert repr(Clip(ByEntropy(), max=0.3)) == "Clip(inner=ByEntropy(temperature=1.0), max=0.3, times_equal=None)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Product(()), r"Product\.parts must contain at least one weighting"),
        (
            lambda: Mix(("entropy", "equal")),
            r"Mix\.parts must contain only weightings, such as ByEntropy\(\); got 'entropy'",
        ),
        (lambda: Product("entropy"), r"Product\.parts must contain only weightings.*; got 'entropy'"),
        (lambda: Clip("entropy", max=0.3), r"Clip\.inner must contain only weightings.*; got 'entropy'"),
        (lambda: Clip(ByEntropy, max=0.3), r"Clip\.inner must contain only weightings"),
        (
            lambda: Product((Equal(),), exponents=(1, 2)),
            r"Product\.exponents must have one number for each of the 1 parts",
        ),
        (
            lambda: Product((Equal(),), exponents=(-1,)),
            r"Product\.exponents must be finite, not negative and not all 0",
        ),
        (lambda: Mix((Equal(), Equal()), shares=(0, 0)), r"Mix\.shares must be finite, not negative and not all 0"),
        (lambda: Mix((Equal(),), shares=(np.nan,)), r"Mix\.shares must be finite"),
        (lambda: Clip(Equal()), r"Clip must have a limit\. Set `max`, such as 0\.3, or `times_equal`"),
        (lambda: Clip(Equal(), max=0), r"Clip\.max must be in \(0, 1\]; got 0"),
        (lambda: Clip(Equal(), max=1.5), r"Clip\.max must be in \(0, 1\]; got 1\.5"),
        (lambda: Clip(Equal(), times_equal=0.9), r"Clip\.times_equal must be at least 1; got 0\.9"),
        (lambda: Clip(Equal(), times_equal=np.nan), r"Clip\.times_equal must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_numbers_of_an_experiment_file_are_options():
    for part, options in ((Product, {"parts": [], "exponents": [1, 0.5]}), (Mix, {"parts": [], "shares": [1, 3]})):
        options_model(part, ()).model_validate(options)

"""Checks of the built-in weightings: what theory says only of one method."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats
from fedreach.federation.checks import check_weights
from fedreach.federation.labels import released_entropy
from fedreach.federation.types import NO_STATE, ClientResults
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.testing.base import Subject, define_check, fail, must_be_close, shown

from .running import each_method, must_pass

COUNTS = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]], np.float64)


@define_check()
def in_proportion_to_examples(subject: Subject) -> None:
    """Each example has the same say: 10, 20 and 70 examples weigh 0.1, 0.2 and 0.7."""
    got = _weights_from(subject.make(), num_examples=[10, 20, 70])
    must_be_close("the weights", got, [0.1, 0.2, 0.7], "10, 20 and 70 examples", 1e-12)


@define_check()
def all_the_same(subject: Subject) -> None:
    """Each of r reports weighs 1 / r."""
    got = _weights_from(subject.make(), num_examples=[10, 20, 70, 1])
    must_be_close("the weights", got, np.full(4, 0.25), "10, 20, 70 and 1 examples", 1e-12)


@define_check()
def golden_entropy(subject: Subject) -> None:
    """Entropy weights are the softmax of the label entropies in nats; the softmax depends on the logarithm's base.

    Reference: specification, section 2.1
    """
    got = _weights_from(subject.make(), label_entropy=released_entropy(COUNTS))
    expected = [0.0943742075, 0.1887484150, 0.3393805473, 0.3774968301]
    must_be_close("the weights", got, expected, f"label counts {shown(COUNTS)}", 1e-9)


@define_check()
def a_uniform_mix_counts_c(subject: Subject) -> None:
    """A client with a uniform mix of c classes counts c times what one with a single class counts, never more.

    Reference: specification, section 2.1
    """
    for c in (2, 10, 100):
        weights = _weights_from(subject.make(), label_entropy=np.array([0.0, np.log(c)]))
        must_be_close("the ratio of the weights", weights[1] / weights[0], c, f"{c} classes", 1e-9 * c)


@define_check()
def temperature(subject: Subject) -> None:
    """With temperature T, entropy weights are the softmax of H / T: their ratio is at most c^(1/T)."""
    for t in (0.5, 2.0, 1e9):
        weights = _weights_from(subject.make(temperature=t), label_entropy=np.array([0.0, np.log(4)]))
        must_be_close("the ratio of the weights", weights[1] / weights[0], 4 ** (1 / t), f"4 classes, T = {t:g}", 1e-8)


@define_check()
def golden_disagreement(subject: Subject) -> None:
    """A report weighs 1 / eta over the sum of 1 / eta.

    Reference: specification, section 3.1: 0-1 losses with errors 0, .05, .1 and .3
    """
    eta = [0.30394672, 1.3233460281, 1.8156892047, 2.773511073]
    expected = [0.6637154350, 0.1524424642, 0.1111060907, 0.0727360101]
    must_be_close("the weights", _weights_from(subject.make(), disagreement=eta), expected, f"eta = {eta}", 1e-9)


@define_check()
def a_common_factor_of_eta(subject: Subject) -> None:
    """Disagreement weights do not change when all eta are multiplied by the same number.

    Reference: specification, section 7
    """
    eta = np.array([0.3, 1.0, 2.5])
    a, b = (_weights_from(subject.make(), disagreement=eta * factor) for factor in (1.0, 7.0))
    must_be_close("the weights for 7 eta", b, a, f"eta = {shown(eta)}", 1e-12, "those for eta")


@define_check()
def product_by_hand(subject: Subject) -> None:
    """The product of weightings is proportional to w_i1^e_1 w_i2^e_2."""
    case: dict[str, Any] = {"num_examples": [1, 4, 16], "label_entropy": np.log([1.0, 2.0, 3.0])}
    got = _weights_from(subject.make(parts=(ByEntropy(), ByExamples()), exponents=None), **case)
    must_be_close("the weights", got, np.array([1, 8, 48]) / 57, "examples 1, 4, 16, entropies ln 1, ln 2, ln 3", 1e-12)
    got = _weights_from(subject.make(parts=(ByExamples(), Equal()), exponents=(0.5, 3)), **case)
    must_be_close("the weights", got, np.array([1, 2, 4]) / 7, "the root of the examples 1, 4, 16", 1e-12)


@define_check()
def mix_by_hand(subject: Subject) -> None:
    """The mix of weightings is sum_j s_j w_ij."""
    component = subject.make(parts=(ByExamples(), Equal()), shares=(3, 1))
    got = _weights_from(component, num_examples=[1, 9])
    must_be_close("the weights", got, [0.2, 0.8], "shares 3 and 1 of (.1, .9) and (.5, .5)", 1e-12)


@define_check()
def no_weight_above_the_cap(subject: Subject) -> None:
    """No weight exceeds the cap or 1 / r, whichever is larger, and weights below the cap keep their ratios."""
    for most in (0.1, 0.3, 0.5, 1.0):
        for sizes in ([60, 30, 10], [1000, 1, 1, 2], [5, 5, 5, 5, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1, 1]):
            weights = _weights_from(subject.make(inner=ByExamples(), max=most, times_equal=None), num_examples=sizes)
            cap, case = max(most, 1 / len(sizes)), f"most = {most}, {sizes} examples"
            if weights.max() > cap + 1e-12:
                fail(f"the largest weight is {weights.max():.9g}, above {cap:.9g}", case)
            below = weights < cap - 1e-9
            ratio = weights[below] / np.array(sizes, np.float64)[below]
            if ratio.size and ratio.max() > ratio.min() * (1 + 1e-9):
                fail(f"the weights {shown(weights)} below the cap are not in the ratio of the examples", case)


@define_check()
def the_lower_cap_counts(subject: Subject) -> None:
    """No weight exceeds `times_equal` / r, r the number of replies, nor `max`: the lower of the two is the cap."""
    sizes = [60, 30, 10]
    for most, times_equal, expected in (
        (None, 1.5, [0.5, 0.375, 0.125]),  # 1.5 / 3
        (0.4, 1.5, [0.4, 0.4, 0.2]),
        (0.9, 1.0, [1 / 3] * 3),
    ):
        component = subject.make(inner=ByExamples(), max=most, times_equal=times_equal)
        case = f"most = {most}, times_equal = {times_equal}, {sizes} examples"
        must_be_close("the weights", _weights_from(component, num_examples=sizes), expected, case, 1e-12)


@define_check()
def per_step_and_as_many_steps(subject: Subject) -> None:
    """FedNova's step is (sum_i p_i tau_i) sum_i p_i u_i / tau_i, p_i by `inner` and tau_i local steps.

    Reference: Wang et al. 2020, eq. 5 to 8
    """
    update = np.array([[1.0, 0.0], [2.0, -3.0], [0.5, 4.0]], np.float32)
    for inner, p in ((ByExamples(), np.array([0.1, 0.2, 0.7])), (Equal(), np.full(3, 1 / 3))):
        for tau in (np.array([1.0, 5.0, 2.0]), np.array([2.5, 0.5, 40.0])):
            step = np.zeros(2)
            for i in range(3):
                step += p[i] * update[i] / tau[i]
            step *= sum(p[i] * tau[i] for i in range(3))
            got = _scaled_step(subject.make(inner=inner), update, num_examples=np.array([10.0, 20.0, 70.0]), steps=tau)
            must_be_close("the step", got, step, f"tau = {shown(tau)}, p = {shown(p)}, updates {shown(update)}", 1e-9)


@define_check()
def equal_steps_are_those_of_inner(subject: Subject) -> None:
    """Where all take equally many steps, weights are those of `inner` and the factor is 1, however many they are."""
    update = np.array([[1.0, 0.0], [2.0, -3.0]], np.float32)
    for tau in (1.0, 7.0):
        case = {"num_examples": np.array([10.0, 30.0]), "steps": np.full(2, tau)}
        got = _scaled_step(subject.make(inner=ByExamples()), update, **case)
        must_be_close("the step", got, [1.75, -2.25], f"{tau:g} steps each, 10 and 30 examples", 1e-9)


METHOD_CHECKS = {
    "fednova": (per_step_and_as_many_steps, equal_steps_are_those_of_inner),
    "by_examples": (in_proportion_to_examples,),
    "equal": (all_the_same,),
    "entropy": (golden_entropy, a_uniform_mix_counts_c, temperature),
    "disagreement": (golden_disagreement, a_common_factor_of_eta),
    "product": (product_by_hand,),
    "mix": (mix_by_hand,),
    "clip": (no_weight_above_the_cap, the_lower_cap_counts),
}


def _scaled_step(component: Any, update: Float32s, **metrics: Floats) -> Floats:
    """Return the weighted mean of the updates, times the factor of the weighting."""
    r = len(update)
    reports = ClientResults(np.arange(r), update, {"loss": np.ones(r), **metrics})
    weights, _ = check_weights(component, component.weights(NO_STATE, reports), r)
    return np.asarray(component.mean_scale(NO_STATE, reports, r) * (weights @ update.astype(np.float64)))


def _weights_from(component: Any, **metrics: Sequence[float] | Floats) -> Floats:
    arrays = {name: np.array(values, np.float64) for name, values in metrics.items()}
    r = len(next(iter(arrays.values())))
    arrays = {"num_examples": np.ones(r), "loss": np.ones(r), **arrays}
    return np.asarray(component.weights(NO_STATE, ClientResults(np.arange(r), np.ones((r, 2), np.float32), arrays))[0])


@each_method("weighting", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)

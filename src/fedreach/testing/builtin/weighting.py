"""Laws of the built-in weightings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.labels import released_entropy
from fedreach.federation.round import NO_STATE
from fedreach.federation.values import Reports
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, told

COUNTS = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]], np.float64)


@law()
def in_proportion_to_examples(subject: Subject) -> None:
    """Each example has the same say: 10, 20 and 70 examples weigh 0.1, 0.2 and 0.7."""
    got = _weights(subject.make(), num_examples=[10, 20, 70])
    must_be_close("the weights", got, [0.1, 0.2, 0.7], "10, 20 and 70 examples", 1e-12)


@law()
def all_the_same(subject: Subject) -> None:
    """Each of r reports weighs 1 / r."""
    got = _weights(subject.make(), num_examples=[10, 20, 70, 1])
    must_be_close("the weights", got, np.full(4, 0.25), "10, 20, 70 and 1 examples", 1e-12)


@law()
def golden_entropy(subject: Subject) -> None:
    """Entropy weights are the softmax of the label entropies in nats; the softmax depends on the logarithm's base.

    Reference: specification, section 2.1
    """
    got = _weights(subject.make(), label_entropy=released_entropy(COUNTS))
    expected = [0.0943742075, 0.1887484150, 0.3393805473, 0.3774968301]
    must_be_close("the weights", got, expected, f"label counts {told(COUNTS)}", 1e-9)


@law()
def a_uniform_mix_counts_c(subject: Subject) -> None:
    """A client with a uniform mix of c classes counts c times what one with a single class counts, never more.

    Reference: specification, section 2.1
    """
    for c in (2, 10, 100):
        weights = _weights(subject.make(), label_entropy=np.array([0.0, np.log(c)]))
        must_be_close("the ratio of the weights", weights[1] / weights[0], c, f"{c} classes", 1e-9 * c)


@law()
def temperature(subject: Subject) -> None:
    """With temperature T, entropy weights are the softmax of H / T: their ratio is at most c^(1/T)."""
    for t in (0.5, 2.0, 1e9):
        weights = _weights(subject.make(temperature=t), label_entropy=np.array([0.0, np.log(4)]))
        must_be_close("the ratio of the weights", weights[1] / weights[0], 4 ** (1 / t), f"4 classes, T = {t:g}", 1e-8)


@law()
def golden_disagreement(subject: Subject) -> None:
    """A report weighs 1 / eta over the sum of 1 / eta.

    Reference: specification, section 3.1: 0-1 losses with errors 0, .05, .1 and .3
    """
    eta = [0.30394672, 1.3233460281, 1.8156892047, 2.773511073]
    expected = [0.6637154350, 0.1524424642, 0.1111060907, 0.0727360101]
    must_be_close("the weights", _weights(subject.make(), disagreement=eta), expected, f"eta = {eta}", 1e-9)


@law()
def a_common_factor_of_eta(subject: Subject) -> None:
    """Disagreement weights do not change when all eta are multiplied by the same number.

    Reference: specification, section 7
    """
    eta = np.array([0.3, 1.0, 2.5])
    a, b = (_weights(subject.make(), disagreement=eta * factor) for factor in (1.0, 7.0))
    must_be_close("the weights for 7 eta", b, a, f"eta = {told(eta)}", 1e-12, "those for eta")


@law()
def product_by_hand(subject: Subject) -> None:
    """The product of weightings is proportional to w_i1^e_1 w_i2^e_2."""
    given: dict[str, Any] = {"num_examples": [1, 4, 16], "label_entropy": np.log([1.0, 2.0, 3.0])}
    got = _weights(subject.make(parts=(ByEntropy(), ByExamples()), exponents=None), **given)
    must_be_close("the weights", got, np.array([1, 8, 48]) / 57, "examples 1, 4, 16, entropies ln 1, ln 2, ln 3", 1e-12)
    got = _weights(subject.make(parts=(ByExamples(), Equal()), exponents=(0.5, 3)), **given)
    must_be_close("the weights", got, np.array([1, 2, 4]) / 7, "the root of the examples 1, 4, 16", 1e-12)


@law()
def mix_by_hand(subject: Subject) -> None:
    """The mix of weightings is sum_j s_j w_ij."""
    part = subject.make(parts=(ByExamples(), Equal()), shares=(3, 1))
    got = _weights(part, num_examples=[1, 9])
    must_be_close("the weights", got, [0.2, 0.8], "shares 3 and 1 of (.1, .9) and (.5, .5)", 1e-12)


@law()
def no_weight_above_the_cap(subject: Subject) -> None:
    """No weight exceeds the cap or 1 / r, whichever is larger, and weights below the cap keep their ratios."""
    for most in (0.1, 0.3, 0.5, 1.0):
        for sizes in ([60, 30, 10], [1000, 1, 1, 2], [5, 5, 5, 5, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1, 1]):
            weights = _weights(subject.make(inner=ByExamples(), most=most, times_equal=None), num_examples=sizes)
            cap, given = max(most, 1 / len(sizes)), f"most = {most}, {sizes} examples"
            if weights.max() > cap + 1e-12:
                broken(f"the largest weight is {weights.max():.9g}, above {cap:.9g}", given)
            below = weights < cap - 1e-9
            ratio = weights[below] / np.array(sizes, np.float64)[below]
            if ratio.size and ratio.max() > ratio.min() * (1 + 1e-9):
                broken(f"the weights {told(weights)} below the cap are not in the ratio of the examples", given)


LAWS: Mapping[str, tuple[Law, ...]] = {
    "by_examples": (in_proportion_to_examples,),
    "equal": (all_the_same,),
    "entropy": (golden_entropy, a_uniform_mix_counts_c, temperature),
    "disagreement": (golden_disagreement, a_common_factor_of_eta),
    "product": (product_by_hand,),
    "mix": (mix_by_hand,),
    "clip": (no_weight_above_the_cap,),
}


def _weights(part: Any, **metrics: Sequence[float] | Floats) -> Floats:
    arrays = {name: np.array(values, np.float64) for name, values in metrics.items()}
    r = len(next(iter(arrays.values())))
    arrays = {"num_examples": np.ones(r), "loss": np.ones(r), **arrays}
    weights: Floats = part.weights(NO_STATE, Reports(np.arange(r), np.ones((r, 2), np.float32), arrays))[0]
    return weights

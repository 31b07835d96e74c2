"""Laws of weightings: of all, and of single methods."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.answers import checked_weights
from fedreach.federation.labels import released_entropy
from fedreach.federation.traits import Traits
from fedreach.federation.values import NO_STATE, Reports, State
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, shown
from fedreach.testing.laws import weighting_participation
from fedreach.testing.laws.any_part import Outcome, Playing, as_it_is, options_are_all_it_is
from fedreach.testing.worlds import ReportSeries, report_series


def _play(part: Any, given: ReportSeries, keep: Callable[[State], State] = as_it_is) -> list[Outcome]:
    """Weigh the reports of each round."""
    state: State = NO_STATE
    outcomes = []
    for number, report in enumerate(given.rounds, start=1):
        reports = _reports(part, report)
        weights, state = checked_weights(part, part.weights(state, reports), len(reports.ids))
        state = keep(state)
        outcomes.append(Outcome(f"in round {number} the weights were {shown(weights)}", weights.copy()))
    return outcomes


PLAYING = Playing(report_series, _play)


@law(report_series)
def simplex(subject: Subject, given: ReportSeries) -> None:
    """The weights are not negative and sum to 1, one for each report."""
    PLAYING.straight(subject, given)


@law(report_series)
def order_does_not_count(subject: Subject, given: ReportSeries) -> None:
    """Reports in another order, by clients with other ids, get their weights in that order."""
    for report in given.rounds[:1]:
        reports = _reports(subject.part, report)
        straight = _weights(subject.part, reports)
        r = len(reports.ids)
        for order in (np.arange(r)[::-1], np.roll(np.arange(r), 1)):
            other = _weights(subject.part, _picked(reports, order))
            if not np.allclose(other, straight[order], rtol=1e-9, atol=1e-12):
                broken(
                    f"the weights were {shown(straight)}; with the reports in the order {shown(order)}, {shown(other)}"
                )


@law(report_series)
def raw_gives_the_weights(subject: Subject, given: ReportSeries) -> None:
    """Where there is a method `raw`, its numbers divided by their sum are the weights."""
    if not Traits.of(subject.part).own_weight:
        return
    reports = _reports(subject.part, given.rounds[0])
    raw, weights = np.asarray(subject.part.raw(reports.metrics)), _weights(subject.part, reports)
    if raw.shape != weights.shape or not np.isfinite(raw).all() or (raw < 0).any() or raw.sum() <= 0:
        broken(f"raw must be {len(weights)} numbers that are not negative and not all 0; got {shown(raw)}")
    if not np.allclose(raw / raw.sum(), weights, rtol=1e-9, atol=1e-12):
        broken(f"raw / its sum is {shown(raw / raw.sum())}, the weights are {shown(weights)}")


@law(report_series)
def raw_is_each_clients_own(subject: Subject, given: ReportSeries) -> None:
    """Each number of `raw` depends on that client's own metrics only, so that the client can compute it alone."""
    if not Traits.of(subject.part).own_weight:
        return
    metrics = _reports(subject.part, given.rounds[0]).metrics
    together = np.asarray(subject.part.raw(metrics))
    for i, number in enumerate(together):
        alone = np.asarray(subject.part.raw({key: values[i : i + 1] for key, values in metrics.items()}))
        if not np.allclose(alone, number, rtol=1e-9, atol=0):
            broken(f"client {i} of {len(together)} gets {number:.9g} among the others, and {shown(alone)} alone")


LAWS = (
    simplex,
    order_does_not_count,
    PLAYING.same_again(
        "The same state and reports give the same weights, whatever was done with the weighting before.",
        "Draw no random numbers, keep nothing in `self`.",
    ),
    PLAYING.arguments_untouched("A weighting does not write to its arguments: state and reports."),
    PLAYING.going_on_from_a_file(),
    raw_gives_the_weights,
    raw_is_each_clients_own,
    options_are_all_it_is,
)


def _reports(part: Any, report: Callable[..., Reports]) -> Reports:
    traits = Traits.of(part)
    return report(traits.needs, traits.measures)


def _weights(part: Any, reports: Reports) -> Floats:
    return checked_weights(part, part.weights(NO_STATE, reports), len(reports.ids))[0]


def _picked(reports: Reports, order: Ints) -> Reports:
    metrics: Mapping[str, Floats] = {key: values[order] for key, values in reports.metrics.items()}
    counts = None if reports.label_counts is None else reports.label_counts[order]
    return replace(reports, update=reports.update[order], metrics=metrics, label_counts=counts)


COUNTS = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]], np.float64)


@law()
def in_proportion_to_examples(subject: Subject) -> None:
    """Each example has the same say: 10, 20 and 70 examples weigh 0.1, 0.2 and 0.7."""
    got = _weights_from(subject.make(), num_examples=[10, 20, 70])
    must_be_close("the weights", got, [0.1, 0.2, 0.7], "10, 20 and 70 examples", 1e-12)


@law()
def all_the_same(subject: Subject) -> None:
    """Each of r reports weighs 1 / r."""
    got = _weights_from(subject.make(), num_examples=[10, 20, 70, 1])
    must_be_close("the weights", got, np.full(4, 0.25), "10, 20, 70 and 1 examples", 1e-12)


@law()
def golden_entropy(subject: Subject) -> None:
    """Entropy weights are the softmax of the label entropies in nats; the softmax depends on the logarithm's base.

    Reference: specification, section 2.1
    """
    got = _weights_from(subject.make(), label_entropy=released_entropy(COUNTS))
    expected = [0.0943742075, 0.1887484150, 0.3393805473, 0.3774968301]
    must_be_close("the weights", got, expected, f"label counts {shown(COUNTS)}", 1e-9)


@law()
def a_uniform_mix_counts_c(subject: Subject) -> None:
    """A client with a uniform mix of c classes counts c times what one with a single class counts, never more.

    Reference: specification, section 2.1
    """
    for c in (2, 10, 100):
        weights = _weights_from(subject.make(), label_entropy=np.array([0.0, np.log(c)]))
        must_be_close("the ratio of the weights", weights[1] / weights[0], c, f"{c} classes", 1e-9 * c)


@law()
def temperature(subject: Subject) -> None:
    """With temperature T, entropy weights are the softmax of H / T: their ratio is at most c^(1/T)."""
    for t in (0.5, 2.0, 1e9):
        weights = _weights_from(subject.make(temperature=t), label_entropy=np.array([0.0, np.log(4)]))
        must_be_close("the ratio of the weights", weights[1] / weights[0], 4 ** (1 / t), f"4 classes, T = {t:g}", 1e-8)


@law()
def golden_disagreement(subject: Subject) -> None:
    """A report weighs 1 / eta over the sum of 1 / eta.

    Reference: specification, section 3.1: 0-1 losses with errors 0, .05, .1 and .3
    """
    eta = [0.30394672, 1.3233460281, 1.8156892047, 2.773511073]
    expected = [0.6637154350, 0.1524424642, 0.1111060907, 0.0727360101]
    must_be_close("the weights", _weights_from(subject.make(), disagreement=eta), expected, f"eta = {eta}", 1e-9)


@law()
def a_common_factor_of_eta(subject: Subject) -> None:
    """Disagreement weights do not change when all eta are multiplied by the same number.

    Reference: specification, section 7
    """
    eta = np.array([0.3, 1.0, 2.5])
    a, b = (_weights_from(subject.make(), disagreement=eta * factor) for factor in (1.0, 7.0))
    must_be_close("the weights for 7 eta", b, a, f"eta = {shown(eta)}", 1e-12, "those for eta")


@law()
def product_by_hand(subject: Subject) -> None:
    """The product of weightings is proportional to w_i1^e_1 w_i2^e_2."""
    given: dict[str, Any] = {"num_examples": [1, 4, 16], "label_entropy": np.log([1.0, 2.0, 3.0])}
    got = _weights_from(subject.make(parts=(ByEntropy(), ByExamples()), exponents=None), **given)
    must_be_close("the weights", got, np.array([1, 8, 48]) / 57, "examples 1, 4, 16, entropies ln 1, ln 2, ln 3", 1e-12)
    got = _weights_from(subject.make(parts=(ByExamples(), Equal()), exponents=(0.5, 3)), **given)
    must_be_close("the weights", got, np.array([1, 2, 4]) / 7, "the root of the examples 1, 4, 16", 1e-12)


@law()
def mix_by_hand(subject: Subject) -> None:
    """The mix of weightings is sum_j s_j w_ij."""
    part = subject.make(parts=(ByExamples(), Equal()), shares=(3, 1))
    got = _weights_from(part, num_examples=[1, 9])
    must_be_close("the weights", got, [0.2, 0.8], "shares 3 and 1 of (.1, .9) and (.5, .5)", 1e-12)


@law()
def no_weight_above_the_cap(subject: Subject) -> None:
    """No weight exceeds the cap or 1 / r, whichever is larger, and weights below the cap keep their ratios."""
    for most in (0.1, 0.3, 0.5, 1.0):
        for sizes in ([60, 30, 10], [1000, 1, 1, 2], [5, 5, 5, 5, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1, 1]):
            weights = _weights_from(subject.make(inner=ByExamples(), most=most, times_equal=None), num_examples=sizes)
            cap, given = max(most, 1 / len(sizes)), f"most = {most}, {sizes} examples"
            if weights.max() > cap + 1e-12:
                broken(f"the largest weight is {weights.max():.9g}, above {cap:.9g}", given)
            below = weights < cap - 1e-9
            ratio = weights[below] / np.array(sizes, np.float64)[below]
            if ratio.size and ratio.max() > ratio.min() * (1 + 1e-9):
                broken(f"the weights {shown(weights)} below the cap are not in the ratio of the examples", given)


@law()
def the_lower_cap_counts(subject: Subject) -> None:
    """No weight exceeds `times_equal` / r, r the number of replies, nor `most`: the lower of the two is the cap."""
    sizes = [60, 30, 10]
    for most, times_equal, expected in (
        (None, 1.5, [0.5, 0.375, 0.125]),  # 1.5 / 3
        (0.4, 1.5, [0.4, 0.4, 0.2]),
        (0.9, 1.0, [1 / 3] * 3),
    ):
        part = subject.make(inner=ByExamples(), most=most, times_equal=times_equal)
        given = f"most = {most}, times_equal = {times_equal}, {sizes} examples"
        must_be_close("the weights", _weights_from(part, num_examples=sizes), expected, given, 1e-12)


@law()
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


@law()
def equal_steps_are_those_of_inner(subject: Subject) -> None:
    """Where all take equally many steps, weights are those of `inner` and the factor is 1, however many they are."""
    update = np.array([[1.0, 0.0], [2.0, -3.0]], np.float32)
    for tau in (1.0, 7.0):
        given = {"num_examples": np.array([10.0, 30.0]), "steps": np.full(2, tau)}
        got = _scaled_step(subject.make(inner=ByExamples()), update, **given)
        must_be_close("the step", got, [1.75, -2.25], f"{tau:g} steps each, 10 and 30 examples", 1e-9)


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "fednova": (per_step_and_as_many_steps, equal_steps_are_those_of_inner),
    "by_examples": (in_proportion_to_examples,),
    "equal": (all_the_same,),
    "entropy": (golden_entropy, a_uniform_mix_counts_c, temperature),
    "disagreement": (golden_disagreement, a_common_factor_of_eta),
    "product": (product_by_hand,),
    "mix": (mix_by_hand,),
    "clip": (no_weight_above_the_cap, the_lower_cap_counts),
    **weighting_participation.METHOD_LAWS,
}


def _scaled_step(part: Any, update: Float32s, **metrics: Floats) -> Floats:
    """Return the weighted mean of the updates, times the factor of the weighting."""
    r = len(update)
    reports = Reports(np.arange(r), update, {"loss": np.ones(r), **metrics})
    weights, _ = checked_weights(part, part.weights(NO_STATE, reports), r)
    return np.asarray(part.mean_scale(NO_STATE, reports, r) * (weights @ update.astype(np.float64)))


def _weights_from(part: Any, **metrics: Sequence[float] | Floats) -> Floats:
    arrays = {name: np.array(values, np.float64) for name, values in metrics.items()}
    r = len(next(iter(arrays.values())))
    arrays = {"num_examples": np.ones(r), "loss": np.ones(r), **arrays}
    return np.asarray(part.weights(NO_STATE, Reports(np.arange(r), np.ones((r, 2), np.float32), arrays))[0])

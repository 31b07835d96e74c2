"""Laws of label statistics: of all, and of single methods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.labels import released_entropy
from fedreach.federation.labels.released import entropy_range
from fedreach.federation.traits import Traits
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, shown
from fedreach.testing.laws.any_part import Given, Outcome, Playing, options_are_all_it_is


@dataclass(frozen=True, eq=False)
class Labels(Given):
    """Label counts of some clients."""

    counts: Ints  # (n, c)


def labels() -> Iterator[Labels]:
    """Yield label counts of many clients, of one, and of clients with a single class."""
    rng = generator(0, "testing labels")
    yield Labels("20 clients with 0 to 29 examples of each of 5 classes", rng.integers(0, 30, (20, 5)))
    yield Labels("one client with 1 example of 2 classes", np.array([[1, 0]]))
    yield Labels("4 clients with a single class each", np.eye(4, dtype=np.int64) * 100)


def _play(part: Any, given: Labels) -> list[Outcome]:
    released = part.release(given.counts.copy(), generator(0, "labels"))
    return [Outcome(f"it released {shown(released)}", released)]


PLAYING = Playing(labels, _play)


@law(labels)
def counts_of_everybody(subject: Subject, given: Labels) -> None:
    """What is released is (n, c) numbers in float64, finite unless only sums are shown."""
    ((_, released),) = PLAYING.straight(subject, given)
    if not isinstance(released, np.ndarray) or released.shape != given.counts.shape:
        broken(f"release should return an array of shape {given.counts.shape}; got {shown(released)}")
    if released.dtype != np.float64 or not (subject.part.only_sum or np.isfinite(released).all()):
        broken(f"released counts should be finite numbers in float64; got {released.dtype}: {shown(released)}")


@law(labels)
def entropies_in_range(subject: Subject, given: Labels) -> None:
    """The label entropies that follow from what is released are between 0 and ln c nats."""
    if subject.part.only_sum:
        return
    ((_, released),) = PLAYING.straight(subject, given)
    entropy, wanted = released_entropy(released), entropy_range(given.counts.shape[1])
    if not wanted.holds(entropy).all():
        broken(f"the entropies are {shown(entropy)}; they should be {wanted}")


@law(labels)
def counts_are_possible(subject: Subject, given: Labels) -> None:
    """Statistics that say which counts are impossible allow those that they release."""
    if not Traits.of(subject.part).knows_possible:
        return
    ((_, released),) = PLAYING.straight(subject, given)
    sizes = given.counts.sum(axis=1)
    allowed = subject.part.possible(released, sizes)
    if np.shape(allowed) != sizes.shape or not np.all(allowed):
        broken(f"of clients with {shown(sizes)} examples, `possible` says {shown(allowed)} of {shown(released)}")


LAWS = (
    counts_of_everybody,
    entropies_in_range,
    counts_are_possible,
    PLAYING.same_again(
        "The same counts and stream release the same numbers.", "Draw from the `rng` that is handed in."
    ),
    PLAYING.arguments_untouched("Releasing does not write to the counts."),
    options_are_all_it_is,
)


MANY = 40_000
FAR = 1000  # counts that the noise does not bring to 0


@law()
def the_truth(subject: Subject) -> None:
    """The counts are released as they are."""
    counts = np.array([[3, 0, 5], [1, 1, 1]])
    must_be_close("what is released", subject.make().release(counts, generator(0, "labels")), counts, shown(counts), 0)


@law()
def the_sum_is_the_weighted_mean(subject: Subject) -> None:
    """The model under a secure sum is that of a federation in which the server sees every weight and update."""
    from fedreach.testing.problems import two_quadratics

    part = subject.make()
    if not part.only_sum or np.isfinite(part.release(np.ones((2, 3), np.int64), generator(0, "labels"))).any():
        broken("`only_sum` should be set, and nan released: the server sees no client's labels")
    for weighting in (ByExamples(), Equal(), ByEntropy()):
        plain = two_quadratics(weighting=weighting)
        secure = replace(plain, federation=replace(plain.federation, label_statistics=part))
        ends = []
        for simulation in (secure, plain):
            state = simulation.start()
            for _ in range(5):
                state = simulation.step(state).state
            ends.append(state.params)
        given = f"two quadratics, weighting {type(weighting).__name__}"
        must_be_close("the model after 5 rounds", ends[0], ends[1], given, 1e-6, "that without the sum")


@law()
def discrete_laplace_noise(subject: Subject) -> None:
    """The noise is a whole number x with probability proportional to exp(-epsilon |x| / 2).

    Replacing one example changes two counts by 1, so that each may differ by epsilon / 2.
    """
    for epsilon in (0.5, 2.0):
        noise = _noise(subject.make(epsilon=epsilon))
        a = np.exp(-epsilon / 2)
        for x in range(-3, 4):
            _must_come(noise, x, (1 - a) / (1 + a) * a ** abs(x), f"epsilon = {epsilon}")


@law()
def discrete_gaussian_noise(subject: Subject) -> None:
    """The noise is a whole number x of probability proportional to exp(-x^2 / (2 sigma^2)), sigma as small as allowed.

    The smallest sigma for epsilon = 1 and delta = 1e-5 is 5.275, by the sum of the privacy losses of two counts.

    Reference: Canonne, Kamath and Steinke 2020
    """
    sigma, noise = 5.275, _noise(subject.make(epsilon=1.0, delta=1e-5))
    x = np.arange(-100, 101)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    for number in (0, 1, -4, 8):
        _must_come(noise, number, float(mass[number + 100] / mass.sum()), "epsilon 1, delta 1e-5")
    # The variance of a squared normal is 2 sigma^4.
    if abs(noise.var() - sigma**2) > 5 * sigma**2 * np.sqrt(2 / MANY):
        broken(f"the noise has the variance {noise.var():.2f}, instead of {sigma**2:.2f}", "epsilon 1, delta 1e-5")


@law()
def noise_does_not_see_the_data(subject: Subject) -> None:
    """The noise added to one client's counts is the same whatever other clients hold, and counts below 0 become 0."""
    part = subject.make()
    counts = np.full((3, 2), FAR)
    other = counts.copy()
    other[1] = 5 * FAR
    a, b = (part.release(made, generator(0, "labels")) for made in (counts, other))
    if not np.array_equal(a[[0, 2]], b[[0, 2]]):
        broken(
            f"clients 0 and 2 were {shown(a[[0, 2]])}, and {shown(b[[0, 2]])} when client 1 held more", shown(counts)
        )
    least = part.release(np.zeros((200, 5), np.int64), generator(0, "labels"))
    if (least < 0).any() or not (least == np.rint(least)).all():
        broken(f"released counts should be whole and not negative; got {shown(np.unique(least))}", "200 empty clients")


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "exact": (the_truth,),
    "secure_sum": (the_sum_is_the_weighted_mean,),
    "discrete_laplace": (discrete_laplace_noise, noise_does_not_see_the_data),
    "discrete_gaussian": (discrete_gaussian_noise, noise_does_not_see_the_data),
}


def _must_come(noise: Floats, number: int, p: float, given: str) -> None:
    """Say the law is broken unless a number came about as often as this probability says."""
    share = float((noise == number).mean())
    if abs(share - p) > 5 * np.sqrt(p * (1 - p) / MANY):  # five standard errors
        broken(f"noise of {number} came in {share:.2%} of {MANY} draws, instead of {p:.2%}", given)


def _noise(part: Any) -> Floats:
    counts = np.full((MANY // 4, 4), FAR)
    return np.asarray((part.release(counts, generator(0, "noise")) - counts).ravel())

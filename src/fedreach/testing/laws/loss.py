"""Laws of losses: of all, and of single methods."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.protocols import ShiftsOutputs
from fedreach.federation.ranges import Range
from fedreach.federation.traits import Traits
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, shown
from fedreach.testing.laws import loss_objectives
from fedreach.testing.laws.any_part import Given, options_are_all_it_is
from fedreach.testing.laws.label_statistics import Labels


@dataclass(frozen=True, eq=False)
class Batch(Given):
    """What a model says of some examples, and their classes or numbers."""

    outputs: Float32s  # (b, c), or (b, t) of numbers
    targets: Ints | Float32s  # (b,) classes, or (b, t) numbers


def batches() -> Iterator[Batch]:
    """Yield batches of one example and more, of a model that is unsure and of one that is certain."""
    rng = generator(0, "testing batches")
    for b, c, size in ((1, 2, 1.0), (7, 3, 1.0), (40, 10, 5.0), (4, 3, 60.0)):
        outputs = (size * rng.standard_normal((b, c))).astype(np.float32)
        yield Batch(f"{b} examples of {c} classes, outputs of about {size:g}", outputs, rng.integers(0, c, b))
    for b, t, size in ((1, 1, 1.0), (7, 1, 1.0), (40, 3, 5.0), (4, 2, 300.0)):
        outputs, targets = (size * rng.standard_normal((2, b, t))).astype(np.float32)
        yield Batch(f"{b} examples with {t} numbers, outputs of about {size:g}", outputs, targets)


def of_batches(check: Callable[[Subject, Batch], None]) -> Law:
    """Make a law that is tried on batches of classes, or of numbers where the loss needs such."""

    @wraps(check)
    def suited(subject: Subject, given: Batch) -> None:
        if Traits.of(subject.part).needs_numbers is (given.targets.dtype.kind == "f"):
            check(subject, given)

    return law(batches)(suited)


@of_batches
def one_number_an_example(subject: Subject, given: Batch) -> None:
    """A loss is one finite number for each example."""
    loss, _ = _asked(subject.part, given.outputs, given.targets)
    if loss.shape != (len(given.targets),) or not np.isfinite(loss).all():
        broken(f"the losses should be {len(given.targets)} finite numbers; got {shown(loss)} of shape {loss.shape}")


@of_batches
def losses_in_their_range(subject: Subject, given: Batch) -> None:
    """No loss is below the `minimum` or above the `maximum` that it states: beyond, clients would be refused."""
    loss, wanted = _asked(subject.part, given.outputs, given.targets)[0], Range.of(subject.part)
    if not wanted.holds(loss[np.isfinite(loss)]).all():
        broken(f"the losses are {shown(loss)}; they should be {wanted}")


@of_batches
def each_example_by_itself(subject: Subject, given: Batch) -> None:
    """What an example costs does not depend on the others of its batch, nor on their order."""
    loss, _ = _asked(subject.part, given.outputs, given.targets)
    order = np.arange(len(loss))[::-1]
    turned, _ = _asked(subject.part, given.outputs[order], given.targets[order])
    must_be_close("the losses in the order turned round", turned[order], loss, str(given))
    alone, _ = _asked(subject.part, given.outputs[:1], given.targets[:1])
    must_be_close("the first loss, asked alone", alone, loss[:1], str(given))


@of_batches
def downhill(subject: Subject, given: Batch) -> None:
    """A small step against its gradient, which is finite, does not make the loss larger."""
    loss, gradient = _asked(subject.part, given.outputs, given.targets)
    if not np.isfinite(gradient).all():
        broken(f"the gradient is {shown(gradient)}")
    after, _ = _asked(subject.part, given.outputs - np.float32(1e-3) * gradient, given.targets)
    if not (after <= loss + 1e-5 * (1 + np.abs(loss))).all():
        broken(f"the losses {shown(loss)} became {shown(after)}")


def labels() -> Iterator[Labels]:
    """Yield clients with all classes, with one, with as many of each, and with none at all."""
    counts = np.array([[5, 0, 2], [7, 0, 0], [4, 4, 4], [0, 1, 600], [0, 0, 0]])
    yield Labels("clients with labels of three classes", counts)
    yield Labels("one client with labels of ten classes", np.arange(10)[None])


@law(labels)
def shifts_by_what_each_has(subject: Subject, given: Labels) -> None:
    """What a loss adds to outputs is one finite number a class, by what labels a client itself has."""
    if not isinstance(subject.part, ShiftsOutputs):
        return
    found = np.asarray(subject.part.shift(given.counts))
    if found.shape != given.counts.shape or not np.isfinite(found).all():
        broken(f"the shifts should be finite numbers of shape {given.counts.shape}; got {shown(found)}")
    alone = np.concatenate([subject.part.shift(row[None]) for row in given.counts])
    must_be_close("the shifts of each client asked alone", alone, found, str(given))


LAWS = (
    one_number_an_example,
    losses_in_their_range,
    each_example_by_itself,
    downhill,
    shifts_by_what_each_has,
    *loss_objectives.LAWS,
    options_are_all_it_is,
)


@of_batches
def nats_of_the_right_class(subject: Subject, given: Batch) -> None:
    """The loss is log sum_c exp(z_c) - z_y, and its gradient softmax(z) - 1[y]."""
    z = given.outputs.astype(np.float64)
    shifted = z - z.max(axis=1, keepdims=True)
    total, rows = np.log(np.exp(shifted).sum(axis=1)), np.arange(len(z))
    softmax = np.exp(shifted - total[:, None])
    softmax[rows, given.targets] -= 1
    loss, gradient = _asked(subject.part, given.outputs, given.targets)
    must_be_close("the losses", loss, total - shifted[rows, given.targets], str(given), 1e-4)
    must_be_close("the gradients", gradient, softmax, str(given), 1e-5)


@law(labels)
def log_class_shares(subject: Subject, given: Labels) -> None:
    """The shifts are strength log(C p), p the smoothed class shares: e^shift has mean 1 with strength 1."""
    for strength, smoothing in ((1.0, 1.0), (0.5, 0.1), (0.0, 1.0)):
        n, c = given.counts.sum(axis=1, keepdims=True), given.counts.shape[1]
        expected = strength * np.log(c * (given.counts + smoothing) / (n + c * smoothing))
        found = subject.make(strength=strength, smoothing=smoothing).shift(given.counts)
        must_be_close(f"the shifts with strength {strength:g}, smoothing {smoothing:g}", found, expected, str(given))


@law()
def golden_margins(subject: Subject) -> None:
    """Of 16, 1, 81 and no examples outputs are lowered by 1/2, 1, 1/3 and, as of 1/10 000, by 10 times the strength.

    Unless it is said otherwise, classes without examples by 100 times, which leaves them out.

    Reference: Zhang et al. 2022, eq. (9)
    """
    found = subject.make(strength=2.0, absent=1e-4).shift(np.array([[16, 1, 81, 0]]))
    must_be_close("the shifts", found, [[-1.0, -2.0, -2 / 3, -20.0]], "16, 1, 81 and 0 examples, strength 2")
    must_be_close("the shifts", subject.make().shift(np.array([[1, 0]])), [[-1.0, -100.0]], "1 and 0 examples")


@of_batches
def towards_smoothed_labels(subject: Subject, given: Batch) -> None:
    """The gradient is softmax(z) minus a label of which a share is spread evenly over all classes."""
    z = given.outputs.astype(np.float64)
    softmax = np.exp(z - z.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    for share in (0.0, 0.1, 1.0):
        label = (1 - share) * np.eye(z.shape[1])[given.targets] + share / z.shape[1]
        _, gradient = _asked(subject.make(share=share), given.outputs, given.targets)
        must_be_close(f"the gradient with share {share}", gradient, softmax - label, str(given), 1e-5)


@of_batches
def squared_distance(subject: Subject, given: Batch) -> None:
    """The loss is the mean of (z - y)^2 over an example's targets, and its gradient 2 (z - y) / t."""
    errors = given.outputs.astype(np.float64) - given.targets
    loss, gradient = _asked(subject.part, given.outputs, given.targets)
    squares = (errors**2).mean(axis=1)
    must_be_close("the losses", loss, squares, str(given), 1e-5 * (1 + squares.max()))
    must_be_close("the gradients", gradient, 2 * errors / errors.shape[1], str(given), 1e-6 * (1 + abs(errors).max()))


@of_batches
def half_of_mse_at_most(subject: Subject, given: Batch) -> None:
    """With delta above all errors the loss is half the mean squared error, and with any it is no more."""
    half = ((given.outputs.astype(np.float64) - given.targets) ** 2).mean(axis=1) / 2
    loss, _ = _asked(subject.make(delta=1e9), given.outputs, given.targets)
    must_be_close("the losses with delta 10^9", loss, half, str(given), 1e-5 * (1 + half.max()))
    loss, _ = _asked(subject.make(delta=0.1), given.outputs, given.targets)
    if not (loss <= half * (1 + 1e-5)).all():
        broken(f"the losses with delta 0.1 are {shown(loss)}, above half the squared errors {shown(half)}")


@of_batches
def pulls_by_delta_at_most(subject: Subject, given: Batch) -> None:
    """The gradient is the error, cut off at -delta and delta, over the number of targets."""
    errors = given.outputs.astype(np.float64) - given.targets
    for delta in (0.1, 1.0, 50.0):
        _, gradient = _asked(subject.make(delta=delta), given.outputs, given.targets)
        expected = errors.clip(-delta, delta) / errors.shape[1]
        must_be_close(f"the gradient with delta {delta:g}", gradient, expected, str(given), 1e-5)


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "cross_entropy": (nats_of_the_right_class,),
    "logit_adjusted": (nats_of_the_right_class, log_class_shares),
    "fedlc": (nats_of_the_right_class, golden_margins),
    "label_smoothing": (towards_smoothed_labels,),
    "mse": (squared_distance,),
    "huber": (half_of_mse_at_most, pulls_by_delta_at_most),
    **loss_objectives.METHOD_LAWS,
}


def _asked(part: Any, outputs: Float32s, targets: Ints | Float32s) -> tuple[Floats, Float32s]:
    """Return the losses (b,) and the gradient (b, c) of their sum."""
    import torch

    z = torch.from_numpy(outputs.copy()).requires_grad_()
    loss = part.per_example(z, torch.from_numpy(targets.copy()))
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach().numpy().astype(np.float64), gradient.numpy()

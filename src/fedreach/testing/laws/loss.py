"""Laws of losses: of all, and of single methods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.protocols import ShiftsOutputs
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, shown
from fedreach.testing.laws.any_part import Given, options_are_all_it_is
from fedreach.testing.laws.label_statistics import Labels


@dataclass(frozen=True, eq=False)
class Batch(Given):
    """What a model says of some examples, and their classes."""

    outputs: Float32s  # (b, c)
    targets: Ints  # (b,)


def batches() -> Iterator[Batch]:
    """Yield batches of one example and more, of a model that is unsure and of one that is certain."""
    rng = generator(0, "testing batches")
    for b, c, size in ((1, 2, 1.0), (7, 3, 1.0), (40, 10, 5.0), (4, 3, 60.0)):
        outputs = (size * rng.standard_normal((b, c))).astype(np.float32)
        yield Batch(f"{b} examples of {c} classes, outputs of about {size:g}", outputs, rng.integers(0, c, b))


@law(batches)
def one_number_an_example(subject: Subject, given: Batch) -> None:
    """A loss is one finite number for each example."""
    loss, _ = _asked(subject.part, given.outputs, given.targets)
    if loss.shape != (len(given.targets),) or not np.isfinite(loss).all():
        broken(f"the losses should be {len(given.targets)} finite numbers; got {shown(loss)} of shape {loss.shape}")


@law(batches)
def each_example_by_itself(subject: Subject, given: Batch) -> None:
    """What an example costs does not depend on the others of its batch, nor on their order."""
    loss, _ = _asked(subject.part, given.outputs, given.targets)
    order = np.arange(len(loss))[::-1]
    turned, _ = _asked(subject.part, given.outputs[order], given.targets[order])
    must_be_close("the losses in the order turned round", turned[order], loss, str(given))
    alone, _ = _asked(subject.part, given.outputs[:1], given.targets[:1])
    must_be_close("the first loss, asked alone", alone, loss[:1], str(given))


@law(batches)
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


LAWS = (one_number_an_example, each_example_by_itself, downhill, shifts_by_what_each_has, options_are_all_it_is)


@law(batches)
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
    part = subject.part
    found = part.shift(given.counts)
    if part.strength:
        shares = np.exp(np.asarray(found) / part.strength) / given.counts.shape[1]
        n = given.counts.sum(axis=1, keepdims=True)
        expected = (given.counts + part.smoothing) / (n + given.counts.shape[1] * part.smoothing)
        must_be_close("the class shares that the shifts stand for", shares, expected, str(given))
    else:
        must_be_close("the shifts with strength 0", found, np.zeros(given.counts.shape), str(given))


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "cross_entropy": (nats_of_the_right_class,),
    "logit_adjusted": (nats_of_the_right_class, log_class_shares),
}


def _asked(part: Any, outputs: Float32s, targets: Ints) -> tuple[Floats, Float32s]:
    """Return the losses (b,) and the gradient (b, c) of their sum."""
    import torch

    z = torch.from_numpy(outputs.copy()).requires_grad_()
    loss = part.per_example(z, torch.from_numpy(targets.astype(np.int64)))
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach().numpy().astype(np.float64), gradient.numpy()

"""Checks of the built-in losses: what theory says only of one method."""

import numpy as np

from fedreach.testing.base import Subject, define_check, fail, must_be_close, shown
from fedreach.testing.checks.label_statistics import Labels
from fedreach.testing.checks.loss import Batch, labels, loss_and_gradient, of_batches

from .running import each_method, must_pass


@of_batches
def nats_of_the_right_class(subject: Subject, case: Batch) -> None:
    """The loss is log sum_c exp(z_c) - z_y, and its gradient softmax(z) - 1[y]."""
    z = case.outputs.astype(np.float64)
    shifted = z - z.max(axis=1, keepdims=True)
    total, rows = np.log(np.exp(shifted).sum(axis=1)), np.arange(len(z))
    softmax = np.exp(shifted - total[:, None])
    softmax[rows, case.targets] -= 1
    loss, gradient = loss_and_gradient(subject.component, case.outputs, case.targets)
    must_be_close("the losses", loss, total - shifted[rows, case.targets], str(case), 1e-4)
    must_be_close("the gradients", gradient, softmax, str(case), 1e-5)


@define_check(labels)
def log_class_shares(subject: Subject, case: Labels) -> None:
    """The shifts are strength log(C p), p the smoothed class shares: e^shift has mean 1 with strength 1."""
    for strength, smoothing in ((1.0, 1.0), (0.5, 0.1), (0.0, 1.0)):
        n, c = case.counts.sum(axis=1, keepdims=True), case.counts.shape[1]
        expected = strength * np.log(c * (case.counts + smoothing) / (n + c * smoothing))
        found = subject.make(strength=strength, smoothing=smoothing).shift(case.counts)
        must_be_close(f"the shifts with strength {strength:g}, smoothing {smoothing:g}", found, expected, str(case))


@define_check()
def golden_margins(subject: Subject) -> None:
    """Of 16, 1, 81 and no examples outputs are lowered by 1/2, 1, 1/3 and, as of 1/10 000, by 10 times the strength.

    Unless it is said otherwise, classes without examples by 100 times, which leaves them out.

    Reference: Zhang et al. 2022, eq. (9)
    """
    found = subject.make(strength=2.0, absent=1e-4).shift(np.array([[16, 1, 81, 0]]))
    must_be_close("the shifts", found, [[-1.0, -2.0, -2 / 3, -20.0]], "16, 1, 81 and 0 examples, strength 2")
    must_be_close("the shifts", subject.make().shift(np.array([[1, 0]])), [[-1.0, -100.0]], "1 and 0 examples")


@of_batches
def towards_smoothed_labels(subject: Subject, case: Batch) -> None:
    """The gradient is softmax(z) minus a label of which a share is spread evenly over all classes."""
    z = case.outputs.astype(np.float64)
    softmax = np.exp(z - z.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    for share in (0.0, 0.1, 1.0):
        label = (1 - share) * np.eye(z.shape[1])[case.targets] + share / z.shape[1]
        _, gradient = loss_and_gradient(subject.make(share=share), case.outputs, case.targets)
        must_be_close(f"the gradient with share {share}", gradient, softmax - label, str(case), 1e-5)


@of_batches
def squared_distance(subject: Subject, case: Batch) -> None:
    """The loss is the mean of (z - y)^2 over an example's targets, and its gradient 2 (z - y) / t."""
    errors = case.outputs.astype(np.float64) - case.targets
    loss, gradient = loss_and_gradient(subject.component, case.outputs, case.targets)
    squares = (errors**2).mean(axis=1)
    must_be_close("the losses", loss, squares, str(case), 1e-5 * (1 + squares.max()))
    must_be_close("the gradients", gradient, 2 * errors / errors.shape[1], str(case), 1e-6 * (1 + abs(errors).max()))


@of_batches
def half_of_mse_at_most(subject: Subject, case: Batch) -> None:
    """With delta above all errors the loss is half the mean squared error, and with any it is no more."""
    half = ((case.outputs.astype(np.float64) - case.targets) ** 2).mean(axis=1) / 2
    loss, _ = loss_and_gradient(subject.make(delta=1e9), case.outputs, case.targets)
    must_be_close("the losses with delta 10^9", loss, half, str(case), 1e-5 * (1 + half.max()))
    loss, _ = loss_and_gradient(subject.make(delta=0.1), case.outputs, case.targets)
    if not (loss <= half * (1 + 1e-5)).all():
        fail(f"the losses with delta 0.1 are {shown(loss)}, above half the squared errors {shown(half)}")


@of_batches
def pulls_by_delta_at_most(subject: Subject, case: Batch) -> None:
    """The gradient is the error, cut off at -delta and delta, over the number of targets."""
    errors = case.outputs.astype(np.float64) - case.targets
    for delta in (0.1, 1.0, 50.0):
        _, gradient = loss_and_gradient(subject.make(delta=delta), case.outputs, case.targets)
        expected = errors.clip(-delta, delta) / errors.shape[1]
        must_be_close(f"the gradient with delta {delta:g}", gradient, expected, str(case), 1e-5)


METHOD_CHECKS = {
    "cross_entropy": (nats_of_the_right_class,),
    "logit_adjusted": (nats_of_the_right_class, log_class_shares),
    "fedlc": (nats_of_the_right_class, golden_margins),
    "label_smoothing": (towards_smoothed_labels,),
    "mse": (squared_distance,),
    "huber": (half_of_mse_at_most, pulls_by_delta_at_most),
}


@each_method("loss", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)

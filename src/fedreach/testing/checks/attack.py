"""Checks of attacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedreach._util.streams import generator
from fedreach.testing.base import Subject, define_check, fail, other_global_seeds, same, shown

UPDATE = generator(0, "updates").standard_normal(7).astype(np.float32)
HONEST = generator(1, "updates").standard_normal((4, 7))
LABELS, CLASSES = np.array([0, 2, 1, 1]), 3


def answers(component: Any, round_: int = 1) -> dict[str, Any]:
    """Return what each method of an attack returns, by its name."""
    counts = np.bincount(LABELS, minlength=CLASSES)
    calls: dict[str, tuple[bool, Callable[[], Any]]] = {
        "update": (component.changes_updates, lambda: component.update(UPDATE.copy(), generator(0, "attack", round_))),
        "collude": (component.colludes, lambda: component.collude(HONEST.copy())),
        "labels": (component.changes_labels, lambda: component.labels(LABELS.copy(), CLASSES)),
        "label_counts": (component.claims_labels, lambda: component.label_counts(counts)),
        "examples": (component.claims_examples, lambda: component.examples(7)),
        "loss": (component.claims_losses, lambda: component.loss(0.5)),
    }
    return {name: call() for name, (applies, call) in calls.items() if applies}


@define_check()
def changes_something(subject: Subject) -> None:
    """An attack sends something that an honest client does not send."""
    honest = {
        "update": UPDATE,
        "collude": HONEST.mean(axis=0),
        "labels": LABELS,
        "label_counts": np.bincount(LABELS),
        "examples": 7,
        "loss": 0.5,
    }
    sent = answers(subject.component)
    if not subject.component.replays and all(same(np.asarray(v), np.asarray(honest[name])) for name, v in sent.items()):
        fail("it sends what an honest client sends", "an update of seven numbers")


@define_check()
def valid_shapes(subject: Subject) -> None:
    """Updates have the shape of the honest update, labels are classes, counts and losses are finite numbers."""
    for name, value in answers(subject.component).items():
        shape = {"update": (7,), "collude": (7,), "labels": (4,), "label_counts": (CLASSES,)}.get(name, ())
        if np.shape(value) != shape or not np.isfinite(value).all():
            fail(f"{name} should return finite numbers of shape {shape}; got {shown(value)}", name)
        if name in ("labels", "label_counts", "examples") and (np.asarray(value) < 0).any():
            fail(f"{name} should not return negative numbers; got {shown(value)}", name)
        if name == "labels" and (np.asarray(value) >= CLASSES).any():
            fail(f"labels should be below {CLASSES}; got {shown(value)}", name)


@define_check()
def reproducible(subject: Subject) -> None:
    """The same stream gives the same result, for any order of the rounds."""
    results = []
    for i, round_ in enumerate([1, 2, 3, 3, 2, 1]):
        with other_global_seeds(i):
            results.append(answers(subject.component, round_))
    for a, b in zip(results, results[::-1], strict=True):
        for name in a:
            if not same(np.asarray(a[name]), np.asarray(b[name])):
                fail(f"{name} was {shown(a[name])} and {shown(b[name])} when repeated", name)

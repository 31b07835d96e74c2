"""Checks of weightings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.federation.checks import check_weights
from fedreach.federation.types import NO_STATE, ClientResults, State
from fedreach.testing.base import Outcome, RepeatedRuns, Subject, define_check, fail, shown
from fedreach.testing.problems import ReportSeries, report_series


def _play(component: Any, case: ReportSeries, keep: Callable[[State], State] = lambda state: state) -> list[Outcome]:
    """Return the weights of the replies in each round."""
    state: State = NO_STATE
    outcomes = []
    for number, reports in enumerate(case.reports(component), start=1):
        weights, state = check_weights(component, component.weights(state, reports), len(reports.ids))
        state = keep(state)
        outcomes.append(Outcome(f"in round {number} the weights were {shown(weights)}", weights.copy()))
    return outcomes


PLAYING = RepeatedRuns(report_series, _play)


@define_check(report_series)
def simplex(subject: Subject, case: ReportSeries) -> None:
    """A weighting returns one weight per reply; the weights are not negative and sum to 1."""
    PLAYING.straight(subject, case)


@define_check(report_series)
def order_does_not_matter(subject: Subject, case: ReportSeries) -> None:
    """In another order, replies receive the same weights, independent of the clients' ids."""
    reports, *_ = case.reports(subject.component)
    straight, rows = _weights(subject.component, reports), np.arange(len(reports.ids))
    for order in (rows[::-1], np.roll(rows, 1)):
        reordered = _weights(subject.component, _pick(reports, order))
        if not np.allclose(reordered, straight[order], rtol=1e-9, atol=1e-12):
            fail(f"the weights were {shown(straight)}; in the order {shown(order)} they are {shown(reordered)}")


@define_check(report_series, lambda component, _: component.has_own_weights)
def raw_gives_the_weights(subject: Subject, case: ReportSeries) -> None:
    """The weights are the numbers of the method `raw`, if defined, divided by their sum."""
    reports, *_ = case.reports(subject.component)
    raw, weights = np.asarray(subject.component.raw(reports.metrics)), _weights(subject.component, reports)
    if raw.shape != weights.shape or not np.isfinite(raw).all() or (raw < 0).any() or raw.sum() <= 0:
        fail(f"raw must return {len(weights)} numbers that are not negative and not all 0; got {shown(raw)}")
    if not np.allclose(raw / raw.sum(), weights, rtol=1e-9, atol=1e-12):
        fail(f"raw divided by its sum is {shown(raw / raw.sum())}, but the weights are {shown(weights)}")


@define_check(report_series, lambda component, _: component.has_own_weights)
def raw_depends_on_own_metrics(subject: Subject, case: ReportSeries) -> None:
    """Each number of `raw` depends only on the client's own metrics, so that the client can compute it alone."""
    metrics = case.reports(subject.component)[0].metrics
    together = np.asarray(subject.component.raw(metrics))
    for i, number in enumerate(together):
        alone = np.asarray(subject.component.raw({key: values[i : i + 1] for key, values in metrics.items()}))
        if not np.allclose(alone, number, rtol=1e-9, atol=0):
            fail(f"client {i} of {len(together)} gets {number:.9g} with the others, and {shown(alone)} alone")


def _weights(component: Any, reports: ClientResults) -> Floats:
    return check_weights(component, component.weights(NO_STATE, reports), len(reports.ids))[0]


def _pick(reports: ClientResults, order: Ints) -> ClientResults:
    metrics: Mapping[str, Floats] = {key: values[order] for key, values in reports.metrics.items()}
    counts = None if reports.label_counts is None else reports.label_counts[order]
    return replace(reports, update=reports.update[order], metrics=metrics, label_counts=counts)

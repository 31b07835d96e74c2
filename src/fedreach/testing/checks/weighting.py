"""Checks of weightings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.federation.checks import check_weights
from fedreach.federation.types import NO_STATE, ClientResults, State
from fedreach.testing.base import Subject, define_check, fail, shown
from fedreach.testing.checks.common import Outcome, RepeatedRuns, as_it_is, options_are_all_it_is
from fedreach.testing.problems import ReportSeries, report_series


def _play(component: Any, case: ReportSeries, keep: Callable[[State], State] = as_it_is) -> list[Outcome]:
    """Weigh the reports of each round."""
    state: State = NO_STATE
    outcomes = []
    for number, report in enumerate(case.rounds, start=1):
        reports = _reports(component, report)
        weights, state = check_weights(component, component.weights(state, reports), len(reports.ids))
        state = keep(state)
        outcomes.append(Outcome(f"in round {number} the weights were {shown(weights)}", weights.copy()))
    return outcomes


PLAYING = RepeatedRuns(report_series, _play)


@define_check(report_series)
def simplex(subject: Subject, case: ReportSeries) -> None:
    """The weights are not negative and sum to 1, one for each report."""
    PLAYING.straight(subject, case)


@define_check(report_series)
def order_does_not_count(subject: Subject, case: ReportSeries) -> None:
    """ClientResults in another order, by clients with other ids, get their weights in that order."""
    for report in case.rounds[:1]:
        reports = _reports(subject.component, report)
        straight = _weights(subject.component, reports)
        r = len(reports.ids)
        for order in (np.arange(r)[::-1], np.roll(np.arange(r), 1)):
            reordered = _weights(subject.component, _pick(reports, order))
            if not np.allclose(reordered, straight[order], rtol=1e-9, atol=1e-12):
                fail(f"the weights were {shown(straight)}; in the order {shown(order)} they are {shown(reordered)}")


@define_check(report_series)
def raw_gives_the_weights(subject: Subject, case: ReportSeries) -> None:
    """Where there is a method `raw`, its numbers divided by their sum are the weights."""
    if not subject.component.has_own_weights:
        return
    reports = _reports(subject.component, case.rounds[0])
    raw, weights = np.asarray(subject.component.raw(reports.metrics)), _weights(subject.component, reports)
    if raw.shape != weights.shape or not np.isfinite(raw).all() or (raw < 0).any() or raw.sum() <= 0:
        fail(f"raw must be {len(weights)} numbers that are not negative and not all 0; got {shown(raw)}")
    if not np.allclose(raw / raw.sum(), weights, rtol=1e-9, atol=1e-12):
        fail(f"raw / its sum is {shown(raw / raw.sum())}, the weights are {shown(weights)}")


@define_check(report_series)
def raw_is_each_clients_own(subject: Subject, case: ReportSeries) -> None:
    """Each number of `raw` depends on that client's own metrics only, so that the client can compute it alone."""
    if not subject.component.has_own_weights:
        return
    metrics = _reports(subject.component, case.rounds[0]).metrics
    together = np.asarray(subject.component.raw(metrics))
    for i, number in enumerate(together):
        alone = np.asarray(subject.component.raw({key: values[i : i + 1] for key, values in metrics.items()}))
        if not np.allclose(alone, number, rtol=1e-9, atol=0):
            fail(f"client {i} of {len(together)} gets {number:.9g} among the others, and {shown(alone)} alone")


CHECKS = (
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


def _reports(component: Any, report: Callable[..., ClientResults]) -> ClientResults:
    parts = [*component.with_inner()]
    return report({name for part in parts for name in part.needs}, [m for part in parts for m in part.measures])


def _weights(component: Any, reports: ClientResults) -> Floats:
    return check_weights(component, component.weights(NO_STATE, reports), len(reports.ids))[0]


def _pick(reports: ClientResults, order: Ints) -> ClientResults:
    metrics: Mapping[str, Floats] = {key: values[order] for key, values in reports.metrics.items()}
    counts = None if reports.label_counts is None else reports.label_counts[order]
    return replace(reports, update=reports.update[order], metrics=metrics, label_counts=counts)

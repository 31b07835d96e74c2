"""What parts may return, and what is said where they return something else."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.round import plan_probe, plan_round
from fedreach.federation.selection.random import FunctionSelection
from fedreach.federation.types import Probe
from fedreach.federation.weighting import FunctionWeighting

from .small import conclude, federation, make_view, start


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ([0, 99], r"participants only; client 99 is not one of the 6 participants"),
        ([-1], r"participants only; client -1"),
        ([2, 2], r"not return a client twice; client 2 is returned twice"),
        ([0, 5], r"available clients only; client 5 is not available"),
        ([0, 1, 2], r"at most k = 2 clients; got 3"),
        ([], r"at least one of the 5 available clients"),
        ([0.0, 1.0], r"a list of client ids; got shape \(2,\) of float64"),
        ([True, False, True, False, False, False], r"a list of client ids; got shape \(6,\) of bool"),
        ([[0, 1]], r"a list of client ids; got shape \(1, 2\)"),
        (None, r"a list of client ids; got shape \(\) of object"),
    ],
)
def test_a_selection_that_breaks_a_rule_is_named_with_the_rule(answer, rule):
    def my_policy(view, k, rng):
        return answer

    chosen, view = federation(FunctionSelection(my_policy)), make_view(available=np.arange(6) < 5)
    with pytest.raises(ComponentError, match=rf"^my_policy\.select must.*{rule}"):
        plan_round(chosen, start(chosen, view), view)


@dataclass(frozen=True)
class Curious(fr.Selection):
    """Asks for and chooses whatever it is told to."""

    asked: object
    chosen: object = None

    def probe(self, state, view, k, rng):
        return self.asked

    def select(self, state, view, k, rng):
        return self.chosen


def test_a_probe_obeys_the_same_rules():
    chosen, view = federation(Curious(Probe(np.array([0, 7])))), make_view()
    with pytest.raises(ComponentError, match=r"Curious\.probe must return participants only; client 7"):
        plan_probe(chosen, start(chosen, view), view)


def test_a_policy_that_forgets_to_wrap_its_ids_is_told_how():
    chosen, view = federation(Curious(np.array([0]), chosen=np.array([0]))), make_view()
    with pytest.raises(
        ComponentError, match=r"Curious\.probe must return a Probe; got ndarray\. Return `Probe\(ids\)`"
    ):
        plan_probe(chosen, start(chosen, view), view)
    with pytest.raises(ComponentError, match=r"Curious\.select must return a Cohort; got ndarray"):
        plan_round(chosen, start(chosen, view), view)


@dataclass(frozen=True)
class Told(fr.Weighting):
    """A weighting that returns what it is told to."""

    answer: object

    def weights(self, state, reports):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (([0.5, 0.4], {}), r"weights that sum to 1; got a sum of 0\.9"),
        (([1.5, -0.5], {}), r"finite weights that are not negative"),
        (([np.nan, 1.0], {}), r"finite weights that are not negative"),
        (([np.inf, 0.0], {}), r"finite weights that are not negative"),
        (([1.0], {}), r"one weight for each of the 2 reports; got shape \(1,\)"),
        (([[0.5, 0.5]], {}), r"one weight for each of the 2 reports; got shape \(1, 2\)"),
        (np.array([0.5, 0.5]), r"a pair, the weights and the new state; got ndarray"),
    ],
)
def test_weights_that_are_no_simplex_are_named_with_the_rule(answer, rule):
    with pytest.raises(ComponentError, match=rf"^Told\.weights must return.*{rule}"):
        conclude(federation(weighting=Told(answer)), [1, 4])


def test_a_function_that_weighs_too_few_reports_is_named():
    def half(reports):
        return np.ones(1)

    with pytest.raises(ComponentError, match=r"half\.weights must return one weight for each of the 2 reports"):
        conclude(federation(weighting=FunctionWeighting(half)), [1, 4])


def test_a_fact_that_does_not_exist_is_answered_with_the_nearest():
    def mine(view, k, rng):
        return view.ids[:k]

    mine.needs = ("label_count",)
    with pytest.raises(
        ComponentError, match=r"mine\.needs must list client statistics; got 'label_count'\. Did you mean 'label_count"
    ):
        federation(FunctionSelection(mine)).needs()


@pytest.mark.parametrize(("option", "value"), [("cohort_size", 0), ("cohort_size", -1), ("seed", -1)])
def test_a_federation_without_cohort_or_seed_is_refused(option, value):
    with pytest.raises(ConfigError, match=rf"Federation\.{option} must be (at least|not negative).*got {value}"):
        replace(federation(), **{option: value})

"""The checks that everybody may use: what they find, how they report it, and that all built-in components pass."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fedreach as fr
from fedreach._util import registry
from fedreach._util.errors import ConfigError
from fedreach.federation.adaptation.base import Unadapted
from fedreach.federation.selection.losses import Minimax
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.types import Cohort
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.testing import CheckFailed, check
from fedreach.testing.base import Subject, run_checks
from fedreach.testing.problems import play_rounds, report_series, toy_federations
from fedreach.testing.verify import EXAMPLE_OPTIONS, check_built_in, check_component, checks_of, kind_of

from .own_rule import Own
from .variants import VARIANTS

EVERYTHING = [(kind, name) for kind in registry.VERIFIED for name in registry.table(kind)]
LONG = {("selection", "csra"), ("selection", "rademacher")}  # a minute together: they solve a problem every round
BUILT_IN = [pytest.param(*each, marks=pytest.mark.slow) if each in LONG else each for each in EVERYTHING]
FURTHER = [(kind, name, options) for (kind, name), variants in VARIANTS.items() for options in variants]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "name"), BUILT_IN, ids=lambda value: value)
def test_a_built_in_component_passes_all_checks(kind, name):
    results = check_built_in(kind, name)
    assert not results.failures, "\n".join(map(str, results.failures))
    assert not results.skipped
    assert results.checks == len(checks_of(kind))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "options"), FURTHER, ids=str)
def test_a_built_in_component_passes_them_with_other_options(kind, name, options):
    results = check_built_in(kind, name, options)
    assert not results.failures, "\n".join(map(str, results.failures))
    assert not results.skipped


def test_options_are_given_to_built_in_components_only():
    assert {*EXAMPLE_OPTIONS, *VARIANTS} <= set(EVERYTHING)


@pytest.mark.parametrize("kind", registry.VERIFIED)
def test_every_check_has_a_name_and_a_statement(kind):
    checks = checks_of(kind)
    for each in checks:
        assert each.statement.endswith("."), each.name
        assert each.statement[0].isupper()
        assert len(each.name) > 5
    assert len({each.name for each in checks}) == len(checks)


def test_an_unknown_type_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'selection'"):
        checks_of("selections")


# ------------------------------------------------------------------------------------------------ what is checked


def test_right_components_pass_the_checks_of_their_type():
    for component in (Uniform(), ByEntropy(), FedAvg(), Average()):
        check(component)
    for kind, name in [("participation", "always"), ("label_statistics", "exact"), ("measurement", "disagreement")]:
        check(registry.table(kind)[name]())


def test_plain_functions_are_components():
    check(lambda view, k, rng: rng.choice(view.ids[view.available], k, replace=False))
    check(lambda reports: np.sqrt(reports.metrics["num_examples"]))
    with pytest.raises(CheckFailed) as caught:
        check(lambda view, k, rng: np.arange(k))
    assert caught.value.check == "valid choice"


def test_a_failure_names_component_check_input_and_what_happened():
    class AllOfThem(fr.Selection):
        def select(self, state, view, k, rng):
            return Cohort(view.ids[view.available])

    with pytest.raises(CheckFailed) as caught:
        check(AllOfThem())
    failure = caught.value
    assert (failure.component, failure.check) == ("AllOfThem", "valid choice")
    assert failure.case == "6 different clients, 0 to 5; cohort 2"
    assert failure.happened.startswith("FedReach rejected it: AllOfThem.select must return at most k = 2 clients")
    assert str(failure).splitlines() == [
        'AllOfThem fails the check "valid choice": In every round, a policy returns a `Cohort` of available '
        "participants, each at most once.",
        f"  with:     {failure.case}",
        f"  happened: {failure.happened}",
    ]
    assert any('also fails "cohort size"' in note for note in failure.__notes__)


def test_an_exception_is_told_with_its_line_and_what_facts_are():
    with pytest.raises(CheckFailed) as caught:
        check(lambda view, k, rng: view.ids[np.argsort(view.label_entropy[view.available])[:k]])
    assert "it raised TypeError in line" in caught.value.happened
    assert "of test_checks.py" in caught.value.happened
    assert "List the client statistics that it uses" in caught.value.happened
    with pytest.raises(CheckFailed, match=r"it raised KeyError .* in its attribute `needs`"):
        check(lambda reports: reports.metrics["label_entropy"])


def test_a_check_can_be_left_out_by_its_name():
    def low_ids_first(view, k, rng):
        return view.ids[view.available][:k]

    with pytest.raises(CheckFailed, match="renaming"):
        check(low_ids_first)
    check(low_ids_first, without=["renaming"])
    with pytest.raises(ConfigError, match=r"Unknown check 'renamin' for low_ids_first\. Did you mean 'renaming'"):
        check(low_ids_first, without=["renamin"])


def test_a_policy_may_begin_without_chance_and_draw_later():
    class FirstTheLargest(fr.Selection):
        def init(self, view):
            return {"rounds": np.zeros(1)}

        def select(self, state, view, k, rng):
            ids = view.ids[view.available]
            if state["rounds"][0]:
                return Cohort(rng.choice(ids, size=k, replace=False))
            return Cohort(ids[np.lexsort((ids, -view.num_examples[view.available]))[:k]])

        def observe(self, state, reports):
            return {"rounds": state["rounds"] + 1}

    check(FirstTheLargest())


# ------------------------------------------------------------------------------------------ the type of a component


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "name"), EVERYTHING, ids=lambda value: value)
def test_the_type_of_a_component_is_seen_from_its_methods(kind, name):
    assert kind_of(registry.table(kind)[name]) == kind


def test_what_is_no_component_is_refused():
    with pytest.raises(ConfigError, match=r"int must be derived from one of these classes of fedreach: .*Selection"):
        kind_of(5)


# -------------------------------------------------------------------------------------- what components are checked on


def test_components_are_tried_on_inconvenient_federations():
    """The inputs themselves: were they all ordinary, the checks would find little."""
    made = list(toy_federations())
    assert len({world.words for world in made}) == len(made) >= 10
    sizes = [len(world.ids) for world in made]
    assert min(sizes) == 1
    assert max(sizes) > 10
    assert any(world.cohort_size == len(world.ids) for world in made)
    assert any(world.ids.tolist() != list(range(len(world.ids))) for world in made)
    assert any(not world.available(3).any() for world in made)
    assert any(len(world.lost.get(2, ())) == len(world.ids) for world in made)
    assert any((world.label_counts == 0).all(axis=1).any() for world in made)
    assert any((np.count_nonzero(world.label_counts, axis=1) == 1).all() for world in made)
    assert any(not world.updates(np.arange(6), 1).any() for world in made if len(world.ids) == 6)
    assert any(len(given.rounds[1]) == 1 for given in report_series() if len(given.rounds) > 1)


def test_rounds_are_played_as_in_a_simulation():
    (six, *_) = toy_federations()
    turns = play_rounds(Minimax(), six)
    assert turns[0].probed == tuple(range(6))  # everybody is asked for an update once
    assert [turn.probed for turn in turns[1:]] == [()] * 3
    assert all(len(turn.chosen) == 2 for turn in turns)
    assert turns == play_rounds(Minimax(), six)


def test_a_renamed_client_takes_everything_along():
    (six, *_) = toy_federations()
    order = np.array([5, 3, 0, 1, 4, 2])
    other = six.renamed(order)
    a = six.reports(six.ids, 2, ("label_entropy", "label_counts"), ())
    b = other.reports(other.ids, 2, ("label_entropy", "label_counts"), ())
    np.testing.assert_array_equal(b.update, a.update[order])
    np.testing.assert_array_equal(b.label_counts, a.label_counts[order])
    for name, values in b.metrics.items():
        np.testing.assert_array_equal(values, a.metrics[name][order])


def test_a_component_whose_library_is_missing_is_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    results = check_built_in("selection", "csra", {"search": "paper"})
    assert "pip install 'fedreach[reproduce]'" in results.skipped
    assert results.passed


def test_checks_do_not_disturb_the_generators_that_everybody_shares():
    np.random.seed(7)  # noqa: NPY002
    wanted = np.random.random(3)  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    run_checks(Subject.of("selection", Uniform()), checks_of("selection"))
    np.testing.assert_array_equal(np.random.random(3), wanted)  # noqa: NPY002


def test_weightings_are_tried_with_what_they_need_and_measure():
    check(registry.table("weighting")["product"]((ByEntropy(), ByExamples(), Equal())))
    check(registry.table("weighting")["disagreement"]())


# ------------------------------------------------------------------------------------------ rules that are not built in


@pytest.mark.parametrize("rule", [Own(), Own(strength=1.0), Unadapted()], ids=repr)
def test_a_right_adaptation_rule_passes_all_checks(rule):
    assert kind_of(rule) == "adaptation"
    results = check_component("adaptation", rule)
    assert not results.failures, "\n".join(map(str, results.failures))

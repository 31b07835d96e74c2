"""The checks that everybody may use: what they find, how they say it, and that all built-in parts pass them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest

from fedreach import registry
from fedreach.errors import ConfigError
from fedreach.federation.selection import Minimax, Policy, Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, Scaffold
from fedreach.federation.values import Selection
from fedreach.federation.weighting import ByEntropy, ByExamples, Equal
from fedreach.testing import (
    BrokenLaw,
    check_label_statistics,
    check_measurement,
    check_participation,
    check_selection,
    check_server,
    check_solver,
    check_weighting,
    trial,
)
from fedreach.testing.law import Subject, judge
from fedreach.testing.laws import selection as selection_laws
from fedreach.testing.rounds import played
from fedreach.testing.worlds import report_series, worlds

EVERYTHING = [(kind, name) for kind in registry.VERIFIED for name in registry.table(kind)]
LONG = {("selection", "csra"), ("selection", "rademacher")}  # a minute together: they solve a problem a round
TRIED = [pytest.param(*one, marks=pytest.mark.slow) if one in LONG else one for one in EVERYTHING]


@pytest.mark.parametrize(("kind", "name"), TRIED, ids=lambda value: value)
def test_a_built_in_part_keeps_all_laws(kind, name):
    found = trial.verdict_of_built_in(kind, name)
    assert not found.broken, "\n".join(map(str, found.broken))
    assert not found.skipped
    shared = len(trial.laws_of(kind))
    assert found.laws > shared, "beside those of its kind, every built-in part has laws of its own"


@pytest.mark.parametrize("kind", registry.VERIFIED)
def test_every_law_says_what_it_is(kind):
    laws = trial.laws_of(kind, list(registry.table(kind)))
    for law in laws:
        assert law.statement.endswith("."), law.name
        assert law.statement[0].isupper()
        assert len(law.name) > 5
    contract = [law.name for law in trial.laws_of(kind)]
    assert len(set(contract)) == len(contract)


def test_the_table_of_laws_names_built_in_parts_only():
    for kind in registry.VERIFIED:
        for name in registry.table(kind):
            assert trial.laws_of(kind, [name])[len(trial.laws_of(kind)) :], f"{kind} {name} has no law of its own"
    with pytest.raises(ConfigError, match=r"There is no selection 'minimaxx'\. Did you mean 'minimax'"):
        trial.laws_of("selection", ["minimaxx"])
    with pytest.raises(ConfigError, match="Did you mean 'selection'"):
        trial.laws_of("selections")


# ------------------------------------------------------------------------------------------------ what is checked


def test_right_parts_pass_the_check_of_their_kind():
    check_selection(Uniform())
    check_weighting(ByEntropy())
    check_solver(FedAvg())
    check_server(Average())
    for check, kind, name in [
        (check_participation, "participation", "always"),
        (check_label_statistics, "label_statistics", "exact"),
        (check_measurement, "measurement", "disagreement"),
    ]:
        check(registry.table(kind)[name]())


def test_plain_functions_are_parts():
    check_selection(lambda view, k, rng: rng.choice(view.ids[view.available], k, replace=False))
    check_weighting(lambda reports: np.sqrt(reports.metrics["num_examples"]))
    with pytest.raises(BrokenLaw) as caught:
        check_selection(lambda view, k, rng: np.arange(k))
    assert caught.value.law == "valid choice"


def test_a_breach_says_part_law_input_and_what_happened():
    class AllOfThem(Policy):
        def select(self, state, view, k, rng):
            return Selection(view.ids[view.available])

    with pytest.raises(BrokenLaw) as caught:
        check_selection(AllOfThem())
    breach = caught.value
    assert (breach.part, breach.law) == ("AllOfThem", "valid choice")
    assert breach.given == "6 clients, 0 to 5, no two alike; cohort 2"
    assert breach.happened.startswith("it was refused: AllOfThem.select must return at most the 2 clients")
    assert str(breach).splitlines() == [
        'AllOfThem breaks the law "valid choice": In every round a policy chooses participants that can be reached, '
        "each once, and says so in a `Selection`.",
        f"  with:     {breach.given}",
        f"  happened: {breach.happened}",
    ]
    assert any('also breaks "cohort size"' in note for note in breach.__notes__)


def test_an_exception_is_told_with_its_line_and_what_facts_are():
    with pytest.raises(BrokenLaw) as caught:
        check_selection(lambda view, k, rng: view.ids[np.argsort(view.label_entropy[view.available])[:k]])
    assert "it raised TypeError in line" in caught.value.happened
    assert "of test_checks.py" in caught.value.happened
    assert "whose attribute `needs` lists them" in caught.value.happened
    with pytest.raises(BrokenLaw, match=r"it raised KeyError .* whose attribute `needs` lists them"):
        check_weighting(lambda reports: reports.metrics["label_entropy"])


def test_a_law_can_be_left_out_by_its_name():
    def low_ids_first(view, k, rng):
        return view.ids[view.available][:k]

    with pytest.raises(BrokenLaw, match="renaming"):
        check_selection(low_ids_first)
    check_selection(low_ids_first, without=["renaming"])
    with pytest.raises(ConfigError, match=r"There is no law 'renamin' for low_ids_first\. Did you mean 'renaming'"):
        check_selection(low_ids_first, without=["renamin"])


def test_a_policy_may_begin_without_chance_and_draw_later():
    class FirstTheLargest(Policy):
        def init(self, view):
            return {"rounds": np.zeros(1)}

        def select(self, state, view, k, rng):
            ids = view.ids[view.available]
            if state["rounds"][0]:
                return Selection(rng.choice(ids, size=k, replace=False))
            return Selection(ids[np.lexsort((ids, -view.num_examples[view.available]))[:k]])

        def observe(self, state, reports):
            return {"rounds": state["rounds"] + 1}

    check_selection(FirstTheLargest())


# -------------------------------------------------------------------------------------------- whose laws are kept


def test_an_heir_or_namesake_of_a_built_in_part_keeps_its_laws():
    class Heir(Scaffold): ...

    namesake = type("Scaffold", (FedAvg,), {})
    assert trial.like("solver", Heir()) == ("scaffold",)
    assert trial.like("solver", namesake()) == ("fedavg", "scaffold")
    assert trial.like("solver", object()) == ()
    with pytest.raises(BrokenLaw):
        check_solver(namesake())


def test_a_replacement_is_held_to_the_laws_of_what_it_replaces():
    @dataclass(frozen=True)
    class Mine:
        def weights(self, state, reports):
            raw = 2.0 ** reports.metrics["label_entropy"]
            return raw / raw.sum(), state

        needs = ("label_entropy",)

    check_weighting(Mine())
    with pytest.raises(BrokenLaw) as caught:
        check_weighting(Mine(), as_="entropy")
    assert caught.value.law == "golden entropy"


@pytest.mark.parametrize(("kind", "name"), EVERYTHING, ids=lambda value: value)
def test_the_kind_of_a_part_is_seen_from_its_methods(kind, name):
    assert trial.kind_of(registry.table(kind)[name]) == kind


def test_what_is_no_part_is_refused():
    with pytest.raises(ConfigError, match=r"int has the methods of no kind of part .* Say which it is meant to be"):
        trial.kind_of(5)


# ------------------------------------------------------------------------------------------------- what laws see


def test_parts_are_tried_on_inconvenient_federations():
    """The inputs themselves: were they all ordinary, the laws would find little."""
    made = list(worlds())
    assert len({world.words for world in made}) == len(made) >= 10
    sizes = [len(world.ids) for world in made]
    assert min(sizes) == 1
    assert max(sizes) > 10
    assert any(world.cohort == len(world.ids) for world in made)
    assert any(world.ids.tolist() != list(range(len(world.ids))) for world in made)
    assert any(not world.available(3).any() for world in made)
    assert any(len(world.lost.get(2, ())) == len(world.ids) for world in made)
    assert any((world.label_counts == 0).all(axis=1).any() for world in made)
    assert any((np.count_nonzero(world.label_counts, axis=1) == 1).all() for world in made)
    assert any(not world.updates(np.arange(6), 1).any() for world in made if len(world.ids) == 6)
    assert any(len(given.rounds[1]((), ()).ids) == 1 for given in report_series() if len(given.rounds) > 1)


def test_rounds_are_played_as_in_a_simulation():
    (six, *_) = worlds()
    turns = played(Minimax(), six)
    assert turns[0].asked == tuple(range(6))  # everybody is asked for an update once
    assert [turn.asked for turn in turns[1:]] == [()] * 3
    assert all(len(turn.chosen) == 2 for turn in turns)
    assert turns == played(Minimax(), six)


def test_a_renamed_client_takes_everything_along():
    (six, *_) = worlds()
    order = np.array([5, 3, 0, 1, 4, 2])
    other = six.renamed(order)
    a = six.reports(six.ids, 2, ("label_entropy", "label_counts"), ())
    b = other.reports(other.ids, 2, ("label_entropy", "label_counts"), ())
    np.testing.assert_array_equal(b.update, a.update[order])
    np.testing.assert_array_equal(b.label_counts, a.label_counts[order])
    for name, values in b.metrics.items():
        np.testing.assert_array_equal(values, a.metrics[name][order])


def test_a_part_whose_library_is_missing_is_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    monkeypatch.setattr(trial, "variants", lambda kind, name: ({"search": "paper"},))
    found = trial.verdict_of_built_in("selection", "csra")
    assert "pip install 'fedreach[reproduce]'" in found.skipped
    assert found.keeps_all


def test_laws_do_not_disturb_the_generators_that_everybody_shares():
    np.random.seed(7)  # noqa: NPY002
    wanted = np.random.random(3)  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    judge(Subject.of("selection", Uniform()), selection_laws.LAWS)
    np.testing.assert_array_equal(np.random.random(3), wanted)  # noqa: NPY002


def test_weightings_are_tried_with_what_they_need_and_measure():
    check_weighting(registry.table("weighting")["product"]((ByEntropy(), ByExamples(), Equal())))
    check_weighting(registry.table("weighting")["disagreement"]())

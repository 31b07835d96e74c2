"""Who is adapted by which fit, mode by mode, against the same worked out in plain numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

import fedreach
import fedreach as fr
from fedreach._util.errors import DataError
from fedreach._util.streams import generator
from fedreach.evaluation.evaluator import mean_interval
from fedreach.evaluation.metrics import expected_calibration_error
from fedreach.evaluation.modes import (
    AdaptationEvaluator,
    AdaptationScores,
    Client,
    Score,
    adapt_and_score,
    merge_scores,
    mode_names,
    score,
    tabulate_scores,
)
from fedreach.evaluation.scores import worst_decile
from fedreach.federation.adaptation.base import Unadapted, log_softmax
from fedreach.federation.types import NO_STATE, Outputs

from .test_evaluator import PARTICIPANTS, UNSEEN, make_data, params_of

C = 4


@dataclass(frozen=True)
class Counting(fr.Adaptation):
    """Shifts logits by what participants hold out and train on, and by the classes that a client is taken to have."""

    def query(self, state):
        return None if state else NO_STATE

    def contribute(self, query, outputs, labels, counts):
        return {"held": np.bincount(labels, minlength=C).astype(np.float64), "trained": counts}

    def fold(self, state, sums):
        return dict(sums)

    def start(self, state):
        return {"seen": np.zeros(C)}

    def update(self, state, client, outputs):
        seen = client["seen"] + learnt(state["held"], outputs.logits).sum(axis=0)
        return {"seen": seen, "adapted": np.array([float(len(outputs.logits) > 2)])}

    def predict(self, state, client, outputs):
        return adapted(state["held"], state["trained"], client["seen"], outputs.logits)

    def predict_online(self, state, client, outputs):
        rows = []
        for row in outputs.logits:
            rows.append(self.predict(state, client, Outputs(row[None])))
            client = self.update(state, client, Outputs(row[None]))
        return np.concatenate(rows), client

    def with_prior(self, state, prior):
        return {"seen": 9.0 * prior}


class Reference(Counting):
    """The same, adapted by the class shares that it is told."""

    reads_oracle_prior = True


def learnt(held, logits):
    return np.exp(log_softmax(logits + 0.5 * np.log1p(held)))


def adapted(held, trained, seen, logits):
    return log_softmax(logits + np.log1p(held) - 0.5 * np.log1p(trained) + np.log1p(seen))


def modes_by_hand(held, trained, logits, y, n=None):
    """Return the scores of one client on every mode, the inductive ones if it has more than n inputs."""
    p = learnt(held, logits)
    told = (np.bincount(y, minlength=C) + 0.1) / (len(y) + 0.1 * C)
    before = np.vstack([np.zeros(C), np.cumsum(p, axis=0)[:-1]])
    found = {
        "unadapted": (log_softmax(logits), y),
        "calibrated": (adapted(held, trained, 0.0, logits), y),
        "adapted": (adapted(held, trained, p.sum(axis=0), logits), y),
        "online": (adapted(held, trained, before, logits), y),
        "oracle_prior": (adapted(held, trained, 9.0 * told, logits), y),
    }
    if n is not None and len(y) > n:
        found[f"unadapted_{n}"] = (log_softmax(logits[n:]), y[n:])
        found[f"adapted_{n}"] = (adapted(held, trained, p[:n].sum(axis=0), logits[n:]), y[n:])
    return {
        mode: (
            (log_p.argmax(axis=1) == labels).mean(),
            -log_p[np.arange(len(labels)), labels].mean(),
            expected_calibration_error(log_p, labels),
        )
        for mode, (log_p, labels) in found.items()
    }


def assert_adapted(scores, expected):
    """Hold the scores of a population against {client: its modes by hand}."""
    assert {mode for own in expected.values() for mode in own} == set(scores.modes)
    for mode, own in scores.modes.items():
        assert list(own) == [client for client in expected if mode in expected[client]]
        for client, found in own.items():
            assert found == pytest.approx(expected[client][mode], abs=1e-6), (mode, client)


# --------------------------------------------------------------------------------------------------- a population

HELD, TRAINED = np.array([5.0, 0.0, 2.0, 9.0]), np.array([1.0, 7.0, 0.0, 3.0])
STATE = {"held": HELD, "trained": TRAINED}


def clients(sizes=(1, 2, 3, 8)):
    rng = generator(0, "adapted")
    return [Client(10 + i, Outputs(rng.normal(size=(m, C))), rng.integers(C, size=m)) for i, m in enumerate(sizes)]


def test_every_mode_is_the_rule_after_what_the_client_has_then_seen():
    who = clients()
    scores = adapt_and_score(Counting(), STATE, iter(who), [2], online=True)
    assert_adapted(scores, {c.id: modes_by_hand(HELD, TRAINED, c.outputs.logits, c.labels, 2) for c in who})
    assert list(scores.modes["adapted_2"]) == [12, 13]  # two inputs of two leave none to predict
    assert scores.noted == {"adapted": 2}
    assert scores.inputs == {c.id: len(c.labels) for c in who}
    names, more = mode_names(Counting(), [2], online=True)
    assert set(scores.modes) == {*names, *more[0]}


def test_modes_that_are_not_asked_for_or_that_a_rule_cannot_give_are_left_out():
    who = clients()
    assert list(adapt_and_score(Counting(), STATE, who).modes) == ["unadapted", "calibrated", "adapted", "oracle_prior"]
    plain = adapt_and_score(Unadapted(), {}, who, [2], online=True)
    assert list(plain.modes) == ["unadapted", "calibrated", "adapted", "unadapted_2", "adapted_2"]
    assert plain.modes["adapted"] == plain.modes["unadapted"]
    assert plain.noted == {}
    told = adapt_and_score(Reference(), STATE, who, [2])
    assert told.modes["adapted"] == told.modes["oracle_prior"]
    assert "adapted_2" not in told.modes  # of a rule that goes by no inputs
    assert told.noted == {}


def test_a_rule_that_serves_many_at_a_time_serves_each_as_alone():
    class Together(Counting):
        def update_many(self, state, clients, outputs):
            asked.append(len(clients))
            return [self.update(state, client, one) for client, one in zip(clients, outputs, strict=True)]

    asked, who = [], clients()
    assert adapt_and_score(Together(), STATE, who, [2]).modes == adapt_and_score(Counting(), STATE, who, [2]).modes
    assert asked == [4, 2]  # all, and those with more than two inputs


def test_a_score_has_the_digits_of_its_file():
    log_p, labels = log_softmax(generator(1, "digits").normal(size=(7, C))), np.array([0, 1, 2, 3, 0, 0, 1])
    one = score(log_p, labels)
    assert one == (round(one.accuracy, 9), round(one.loss, 6), round(one.calibration_error, 9))
    assert one.accuracy == pytest.approx((log_p.argmax(axis=1) == labels).mean(), abs=1e-9)
    assert one.calibration_error == pytest.approx(expected_calibration_error(log_p, labels), abs=1e-9)


def test_a_rule_has_the_modes_that_it_can_give():
    assert mode_names(Counting()) == (["unadapted", "calibrated", "adapted", "oracle_prior"], [])
    assert mode_names(Unadapted(), [2], online=True) == (
        ["unadapted", "calibrated", "adapted"],
        [["unadapted_2", "adapted_2"]],
    )
    assert mode_names(Reference(), [2, 5])[1] == [["unadapted_2"], ["unadapted_5"]]


def test_columns_are_means_over_clients():
    accuracy = {"unadapted": [0.5, 0.75, 1.0], "adapted": [0.25, 1.0, 1.0], "adapted_5": [0.5, 0.75]}
    scores = {mode: {3 * i: Score(a, 1 - a, a / 8) for i, a in enumerate(values)} for mode, values in accuracy.items()}
    columns = AdaptationScores(scores, {"adapted": 2}, {0: 5, 3: 9, 6: 12}).columns("unseen")
    for mode, values in accuracy.items():
        mean = np.mean(values)
        assert columns[f"unseen_{mode}_accuracy"] == pytest.approx(mean)
        assert columns[f"unseen_{mode}_loss"] == pytest.approx(1 - mean)
        assert columns[f"unseen_{mode}_calibration_error"] == pytest.approx(mean / 8)
        assert columns[f"unseen_{mode}_accuracy_worst_decile"] == pytest.approx(worst_decile(np.array(values)))
        bounds = mean_interval(np.array(values))
        assert tuple(columns[f"unseen_{mode}_accuracy_{side}"] for side in ("low", "high")) == pytest.approx(bounds)
    assert {name for name in columns if "too_few" in name} == {"unseen_adapted_5_too_few"}
    assert columns["unseen_adapted_5_too_few"] == 1
    assert columns["unseen_adapted"] == 2


@pytest.mark.parametrize(
    ("changes", "inputs", "worse", "harmed", "worst"),
    [
        ([-0.25, 0.25, 0.0], [5, 9, 12], 1 / 3, 1 / 3, (-0.25, 5)),
        ([-0.05, -0.050001, -0.01, 0.0], [5, 6, 7, 8], 3 / 4, 1 / 4, (-0.050001, 6)),  # 5 points are not more than 5
        ([-0.3, -0.3, -0.3], [4, 40, 7], 1, 1, (-0.3, 40)),  # of those that lose the same, the one with more inputs
        ([0.1, 0.2], [3, 8], 0, 0, (0.1, 3)),  # nobody loses: who gains least
    ],
)
def test_columns_say_which_share_of_clients_loses_and_who_loses_most(changes, inputs, worse, harmed, worst):
    # Differences of 0.95 and 0.65 from their like are not to the last bit those of 0.9 and 0.6: they are rounded.
    before = [0.95, 0.65, 0.7, 0.8][: len(changes)]
    plain = {i: Score(a, 1.0, 0.0) for i, a in enumerate(before)}
    adapted = {i: Score(a + change, 1.0, 0.0) for i, (a, change) in enumerate(zip(before, changes, strict=True))}
    columns = AdaptationScores({"unadapted": plain, "adapted": adapted}, {}, dict(enumerate(inputs))).columns("unseen")
    assert (columns["unseen_worse"], columns["unseen_harmed"]) == pytest.approx((worse, harmed))
    assert (columns["unseen_worst_change"], columns["unseen_worst_inputs"]) == worst


def test_of_a_single_client_there_is_no_spread():
    scores = AdaptationScores({mode: {0: Score(0.5, 1.0, 0.0)} for mode in ("unadapted", "adapted")}, {}, {0: 30})
    columns = scores.columns("test")
    assert not [name for name in columns if name.endswith(("_low", "_high", "_worst_decile"))]
    assert (columns["test_worse"], columns["test_harmed"], columns["test_worst_change"]) == (0.0, 0.0, 0.0)
    assert columns["test_worst_inputs"] == 30


def test_a_line_has_a_modes_single_clients():
    scores = AdaptationScores(
        {"unadapted": {4: Score(0.5, 1.0, 0.25), 7: Score(0.75, 0.5, 0.0)}}, {}, {7: 20, 4: 9, 1: 2}
    )
    assert list(scores.lines("unseen")) == [
        {
            "population": "unseen",
            "mode": "unadapted",
            "ids": [4, 7],
            "inputs": [9, 20],
            "accuracy": [0.5, 0.75],
            "loss": [1.0, 0.5],
            "calibration_error": [0.25, 0.0],
        }
    ]


def test_several_models_are_averaged_by_their_shares_and_their_own_clients_joined_by_id():
    first, second = (
        AdaptationScores(
            {"unadapted": {client: Score(*score) for client, score in own.items()}},
            {"adapted": adapted},
            {client: 10 * client for client in own},
        )
        for own, adapted in (({5: (1.0, 2.0, 0.0), 2: (0.5, 1.0, 0.5)}, 1), ({5: (0.0, 4.0, 1.0)}, 2))
    )
    found = merge_scores([(0.25, first), (0.75, second)])
    assert list(found.modes["unadapted"]) == [2, 5]
    assert found.modes["unadapted"][2] == pytest.approx((0.5, 1.0, 0.5))  # one model has it: that one counts alone
    assert found.modes["unadapted"][5] == pytest.approx((0.25, 3.5, 0.75))
    assert found.noted == {"adapted": 3}
    assert found.inputs == {2: 20, 5: 50}


def test_lines_are_of_participants_and_unseen_clients_and_columns_of_the_test_set_too():
    one = AdaptationScores({mode: {0: Score(0.5, 1.0, 0.0)} for mode in ("unadapted", "adapted")}, {}, {0: 9})
    joined = {"participant": [(1.0, one)], "unseen": [(1.0, one)], "test": [(1.0, one)]}
    columns, lines = tabulate_scores(joined)
    assert {name.partition("_")[0] for name in columns} == set(joined)
    assert [line["population"] for line in lines] == ["participants"] * 2 + ["unseen"] * 2
    assert tabulate_scores({"participant": []}) == ({}, [])


# ----------------------------------------------------------------------------------------------- who is fitted on whom


class Linear:
    """A linear model as the engine of an evaluation, and what it was asked for."""

    def __init__(self, data):
        self.d, self.with_inputs = data.dataset, set()

    def answers(self, params, split, index, *, inputs):
        self.with_inputs.add(inputs)
        assert split in ("true", "test")  # nobody is adapted, or fits a rule, by noisy labels
        return Outputs(said(params, (self.d.test_x if split == "test" else self.d.train_x)[index]))


def said(params, x):
    return x @ params[:12].reshape(C, 3).T.astype(np.float64) + params[12:]


class Fit(NamedTuple):
    held: np.ndarray
    trained: np.ndarray


def fit_by_hand(data, who, most=None):
    """Return what these participants hold out and train on, class by class; labels of training may be noisy."""
    held = np.concatenate([data.held_out[c][:most] for c in who])
    trained = np.concatenate([data.train[c] for c in who])
    return Fit(*(np.bincount(y, minlength=C) for y in (data.dataset.train_y[held], data.labels[trained])))


def by_hand(data, params, index, fitted, n=None):
    x, y = data.dataset.train_x[index], data.dataset.train_y[index]
    return modes_by_hand(*fitted, said(params, x), y, n)


def evaluate(evaluator, models, clusters=(0, 0, 0, 0), **more):
    columns, lines, fitted = evaluator.evaluate(np.stack(models), np.array(clusters), 7, **more)
    table = {
        (line["population"], line["mode"]): dict(
            zip(line["ids"], zip(line["accuracy"], line["loss"], line["calibration_error"], strict=True), strict=True)
        )
        for line in lines
    }
    return columns, table, fitted


def assert_lines(table, population, expected):
    assert {mode for own in expected.values() for mode in own} == {mode for p, mode in table if p == population}
    for client, modes in expected.items():
        for mode, found in modes.items():
            assert table[population, mode][client] == pytest.approx(found, abs=1e-6), (population, mode, client)


HOLDING = [0, 3, 4]  # participant 1 has one example, of which it holds out none


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("noise", [False, True])
def test_participants_are_adapted_by_the_others_fit_and_everybody_else_by_that_of_all(most, noise):
    data, params = make_data(noise=noise), params_of()
    evaluator = AdaptationEvaluator(Linear(data), data, Counting(), max_samples=most, inputs=[1])
    columns, table, (fitted,) = evaluate(evaluator, [params])
    everybody = fit_by_hand(data, HOLDING, most)
    for name, value in everybody._asdict().items():
        np.testing.assert_array_equal(fitted.state[name], value)
    own = {
        c: by_hand(data, params, data.held_out[c][:most], fit_by_hand(data, [o for o in HOLDING if o != c], most), 1)
        for c in HOLDING
    }
    assert_lines(table, "participants", own)
    whole = {c: np.concatenate([data.train[c], data.held_out[c]])[:most] for c in UNSEEN.tolist()}
    unseen = {c: by_hand(data, params, index, everybody, 1) for c, index in whole.items()}
    assert_lines(table, "unseen", unseen)
    for name, expected in (("participant", own), ("unseen", unseen)):
        mean = np.mean([modes["adapted"] for modes in expected.values()], axis=0)
        assert columns[f"{name}_adapted_accuracy"] == pytest.approx(mean[0], abs=1e-6)
        assert columns[f"{name}_adapted_loss"] == pytest.approx(mean[1], abs=1e-5)
        low, high = mean_interval(np.array([modes["adapted"][0] for modes in expected.values()]))
        assert (columns[f"{name}_adapted_accuracy_low"], columns[f"{name}_adapted_accuracy_high"]) == (
            pytest.approx(low, abs=1e-6),
            pytest.approx(high, abs=1e-6),
        )
    tests = modes_by_hand(*everybody, said(params, data.dataset.test_x), data.dataset.test_y)
    for mode in ("unadapted", "calibrated", "adapted", "oracle_prior"):
        assert columns[f"test_{mode}_loss"] == pytest.approx(tests[mode][1], abs=1e-5)
    assert not [name for name in columns if name.startswith("test_online") or name.startswith("test_adapted_1")]


def test_a_single_participant_is_adapted_by_nobodys_fit():
    data = make_data(unseen=np.arange(1, 6))
    columns, table, (fitted,) = evaluate(AdaptationEvaluator(Linear(data), data, Counting()), [params_of()], [0])
    np.testing.assert_array_equal(fitted.state["held"], fit_by_hand(data, [0]).held)
    assert {population for population, _ in table} == {"unseen"}
    accuracy = np.array([score[0] for score in table["unseen", "adapted"].values()])
    bounds = mean_interval(accuracy)
    assert tuple(columns[f"unseen_adapted_accuracy_{side}"] for side in ("low", "high")) == pytest.approx(bounds)


def test_each_model_is_fitted_by_its_own_participants_and_strangers_get_all_by_their_shares():
    data, models = make_data(), [params_of(0), params_of(1)]
    evaluator = AdaptationEvaluator(Linear(data), data, Counting())
    columns, table, fitted = evaluate(evaluator, models, (1, 0, 0, 1))  # of participants 0, 1, 3, 4
    mine = [[3], [0, 4]]
    for number, who in enumerate(mine):
        np.testing.assert_array_equal(fitted[number].state["held"], fit_by_hand(data, who).held)
    # Nobody else could fit a rule for 3, so it is adapted by none: it stands in no line.
    own = {c: by_hand(data, models[1], data.held_out[c], fit_by_hand(data, [o])) for c, o in ((0, 4), (4, 0))}
    assert_lines(table, "participants", own)
    assert 3 not in table["participants", "unadapted"]
    for c in UNSEEN.tolist():
        index = np.concatenate([data.train[c], data.held_out[c]])
        each = [by_hand(data, m, index, fit_by_hand(data, who))["adapted"] for m, who in zip(models, mine, strict=True)]
        assert table["unseen", "adapted"][c] == pytest.approx(np.mean(each, axis=0), abs=1e-6)
    tests = [
        modes_by_hand(*fit_by_hand(data, who), said(m, data.dataset.test_x), data.dataset.test_y)["adapted"]
        for m, who in zip(models, mine, strict=True)
    ]
    assert columns["test_adapted_accuracy"] == pytest.approx(np.mean(tests, axis=0)[0], abs=1e-6)


def test_a_model_that_nobody_has_or_whose_clients_hold_nothing_out_is_fitted_by_all():
    data = make_data()
    evaluator = AdaptationEvaluator(Linear(data), data, Counting())
    _, table, fitted = evaluate(evaluator, [params_of(0), params_of(1)], (0, 1, 0, 0))
    np.testing.assert_array_equal(fitted[1].state["held"], fit_by_hand(data, HOLDING).held)
    assert set(table["participants", "unadapted"]) == set(HOLDING)  # by their own model, once


def test_in_between_clients_are_adapted_on_all_they_have_only():
    data = make_data()
    evaluator = AdaptationEvaluator(Linear(data), data, Counting(), inputs=[1])
    _, whole, _ = evaluate(evaluator, [params_of()])
    _, some, _ = evaluate(evaluator, [params_of()], whole=False)
    assert {mode for _, mode in whole} - {mode for _, mode in some} == {"online", "unadapted_1", "adapted_1"}
    assert all(whole[key] == scores for key, scores in some.items())


def test_sums_may_be_taken_elsewhere_and_what_fitting_costs_is_asked_by_who_sends_how_much():
    data, asked = make_data(), []

    class Spent(NamedTuple):
        seconds: float = 2.5
        joules: float = 0.5

    def cost(examples, sent, round_):
        asked.append((dict(examples), tuple(sent), round_))
        return Spent()

    evaluator = AdaptationEvaluator(Linear(data), data, Counting(), cost=cost, summed=lambda parts: 2.0 * sum(parts))
    _, _, (fitted,) = evaluate(evaluator, [params_of()])
    # Eight numbers of 8 bytes in the one exchange. Fits that leave someone out are for evaluation and cost nobody.
    assert asked == [({0: 4, 3: 6, 4: 1}, (64,), 7)]
    assert (fitted.seconds, fitted.joules) == (2.5, 0.5)
    np.testing.assert_array_equal(fitted.state["held"], 2 * fit_by_hand(data, HOLDING).held)
    _, _, (free,) = evaluate(replace(evaluator, cost=lambda *asked: None), [params_of()])
    assert (free.seconds, free.joules) == (None, None)


def test_only_a_rule_that_reads_inputs_is_given_them():
    class Reading(Counting):
        reads_inputs = True

    for rule, wanted in ((Counting(), False), (Reading(), True)):
        data = make_data()
        engine = Linear(data)
        evaluate(AdaptationEvaluator(engine, data, rule), [params_of()])
        assert engine.with_inputs == {wanted}


def test_without_unseen_clients_or_a_test_set_there_are_no_columns_of_them():
    data = make_data(unseen=np.empty(0, np.int64), tests=0)
    clusters = np.zeros(len(data.population.participants), np.int64)
    columns, table, _ = evaluate(AdaptationEvaluator(Linear(data), data, Counting()), [params_of()], clusters)
    assert {name.partition("_")[0] for name in columns} == {"participant"}
    assert {population for population, _ in table} == {"participants"}
    assert set(PARTICIPANTS) <= set(data.population.participants)


def test_where_no_participant_holds_anything_out_that_is_said():
    rng = np.random.default_rng(0)
    sizes = [1, 1, 1, 25]
    clients = {f"c{i}": (rng.random((n, 4)), rng.integers(0, 3, n)) for i, n in enumerate(sizes)}
    data = fedreach.FederatedData.from_clients(clients, participants=["c0", "c1", "c2"], num_classes=3)
    with pytest.raises(DataError, match="LabelShift is fitted to held-out examples of participants; got none"):
        list(fedreach.run(data, fedreach.Method(adaptation="label_shift"), model="linear", rounds=1, cohort_size=2))

"""The reference that fine-tunes the last layer on a client's own labelled examples."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedreach._util.errors import ConfigError
from fedreach.evaluation.modes import Client, adapt_and_score
from fedreach.federation.adaptation.base import Unadapted, log_softmax
from fedreach.federation.adaptation.few_labels import FewLabels, fit_head
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs
from fedreach.testing import check


def made(m=12, h=5, c=3, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return Outputs(scale * rng.normal(size=(m, c)), scale * rng.normal(size=(m, h))), rng.integers(c, size=m)


def test_it_keeps_all_laws():
    check(FewLabels(labels=5, strength=0.1))


def test_it_says_what_it_is():
    assert isinstance(FewLabels(), Adaptation)
    assert FewLabels().learns_labels
    assert FewLabels().needs_labels
    assert not Unadapted().needs_labels


@pytest.mark.parametrize(("m", "h", "pull"), [(1, 4, 0.5), (12, 5, 0.01), (60, 3, 1e-4)])
def test_the_head_is_that_of_a_general_solver(m, h, pull):
    outputs, labels = made(m, h)
    x = np.column_stack([outputs.features, np.ones(m)])

    def objective(flat):
        head = flat.reshape(h + 1, 3)
        log_p = log_softmax(outputs.logits + x @ head)
        slope = x.T @ (np.exp(log_p) - np.eye(3)[labels]) / m + pull * head
        return -log_p[np.arange(m), labels].mean() + pull / 2 * (head**2).sum(), slope.ravel()

    best = minimize(objective, np.zeros(3 * (h + 1)), jac=True, method="BFGS", options={"gtol": 1e-9})
    found = fit_head(outputs.features, outputs.logits, labels, pull)
    assert found.ravel() == pytest.approx(best.x, abs=1e-6 / pull**0.5)
    assert objective(found.ravel())[0] <= objective(best.x)[0] + 1e-12


def test_the_head_is_that_of_fine_tuning_the_last_layer_of_a_torch_model():
    """Gradient descent on weight and bias themselves, pulled to where they began."""
    outputs, labels = made()
    layer = torch.nn.Linear(5, 3).double()
    began = [p.detach().clone() for p in layer.parameters()]
    features, y = torch.from_numpy(outputs.features), torch.from_numpy(labels)
    with torch.no_grad():
        own = Outputs(layer(features).numpy(), outputs.features)
    descent = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(2000):
        descent.zero_grad()
        far = sum(((p - p0) ** 2).sum() for p, p0 in zip(layer.parameters(), began, strict=True))
        (torch.nn.functional.cross_entropy(layer(features), y) + 1.0 / (2 * len(y)) * far).backward()
        descent.step()
    with torch.no_grad():
        tuned = torch.log_softmax(layer(features), 1).numpy()
    rule = FewLabels(strength=1.0)
    assert rule.predict({}, rule.with_labels({}, own, labels), own) == pytest.approx(tuned, abs=1e-6)


def test_a_model_that_is_sure_of_the_wrong_classes_is_moved_too():
    outputs, _ = made(m=8, scale=300.0)
    labels = outputs.logits.argmin(axis=1)
    rule = FewLabels(strength=0.01)
    client = rule.with_labels({}, outputs, labels)
    assert (rule.predict({}, client, outputs).argmax(axis=1) == labels).all()


# ------------------------------------------------------------------------------------------- which examples are scored


def clients():
    return [Client(i, *made(m, seed=i)) for i, m in enumerate((1, 3, 4, 20))]


def test_without_labels_it_is_the_model_bit_for_bit():
    plain, none = (
        adapt_and_score(Unadapted(), {}, clients(), [2]),
        adapt_and_score(FewLabels(labels=0), {}, clients(), [2]),
    )
    assert none.modes == plain.modes


def test_an_example_whose_label_is_known_is_not_scored():
    """Of 1, 3, 4 and 20 examples, 0, 2, 3 and 3 are known: all modes are of the others."""
    rule, who = FewLabels(labels=3), clients()
    found = adapt_and_score(rule, {}, who, [2, 3, 5])
    assert list(found.modes) == [
        *("unadapted", "calibrated", "adapted"),
        *(f"{r}_{n}" for n in (2, 3, 5) for r in ("unadapted", "adapted")),
    ]
    for one, known in zip(who, (0, 2, 3, 3), strict=True):
        own = rule.with_labels({}, one.outputs.at(slice(known)), one.labels[:known])
        rest = Client(one.id, one.outputs.at(slice(known, None)), one.labels[known:])
        log_p = rule.predict({}, own, rest.outputs)
        assert found.modes["adapted"][one.id].accuracy == pytest.approx((log_p.argmax(axis=1) == rest.labels).mean())
        assert found.modes["unadapted"][one.id] == adapt_and_score(Unadapted(), {}, [rest]).modes["unadapted"][one.id]


def test_with_so_many_inputs_it_is_scored_on_the_examples_of_every_other_rule():
    found, plain = (
        adapt_and_score(FewLabels(labels=3), {}, clients(), [2, 3, 5]),
        adapt_and_score(Unadapted(), {}, clients(), [2, 3, 5]),
    )
    for n in (2, 3, 5):
        assert found.modes[f"unadapted_{n}"] == plain.modes[f"unadapted_{n}"]
        own = adapt_and_score(FewLabels(labels=min(n, 3)), {}, clients(), [n]).modes[
            f"adapted_{n}"
        ]  # it has no more than n
        assert found.modes[f"adapted_{n}"] == own


class Memory(FewLabels):
    """Knows the labels that it was told, and nothing else: its features are numbers of the examples."""

    def with_labels(self, state, outputs, labels):
        return {"known": np.column_stack([outputs.features[:, 0], labels])}

    def predict(self, state, client, outputs):
        known = dict(client.get("known", np.zeros((0, 2))).tolist())
        ones = [np.eye(3)[int(known[x])] if x in known else np.ones(3) / 3 for x in outputs.features[:, 0].tolist()]
        return np.log(np.array(ones) + 1e-9) - np.log1p(3e-9)


def test_who_only_remembers_gains_nothing():
    """The planted fault is an evaluation that scores what it told: then this rule would be right every third time."""
    m = 30
    who = [Client(0, Outputs(np.zeros((m, 3)), np.arange(float(m))[:, None]), np.arange(m) % 3)]
    scores = adapt_and_score(Memory(labels=10), {}, who, [10, 20]).modes
    for mode in ("adapted", "adapted_10", "adapted_20"):
        assert scores[mode][0].loss == pytest.approx(np.log(3), abs=1e-6), mode
    told = Memory(labels=10).with_labels({}, who[0].outputs, who[0].labels)
    caught = -Memory(labels=10).predict({}, told, who[0].outputs)[np.arange(m), who[0].labels].mean()
    assert caught == pytest.approx(0, abs=1e-6)  # were it scored on them, it would be perfect


def test_labels_of_the_others_are_never_read():
    """With other labels of the examples that are scored, the same is predicted: only scores change."""
    who = clients()[3]
    handed = []

    class Noting(FewLabels):
        def with_labels(self, state, outputs, labels):
            handed.append((len(outputs.logits), labels.tolist()))
            return super().with_labels(state, outputs, labels)

    adapt_and_score(Noting(labels=3), {}, [who], [2, 5])
    first = who.labels[:3].tolist()
    assert handed == [(3, first), (2, first[:2]), (3, first)]


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("options", [{"labels": -1}, {"strength": 0.0}, {"strength": float("inf")}])
def test_an_option_outside_its_range_is_refused(options):
    with pytest.raises(ConfigError, match=rf"FewLabels\.{next(iter(options))} must be"):
        FewLabels(**options)

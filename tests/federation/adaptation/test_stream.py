"""Streams of inputs: what is forgotten, and what a safeguard does about inputs that look different later on."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.adaptation import inference as stream
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.safeguard import Guard
from fedreach.federation.types import Outputs

from . import test_guard as images
from .test_guard_together import states
from .worlds import C, draw, exact_logits, means_of

BASE, SHIFTED = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.05, 0.05, 0.1, 0.8])
SEVERAL = (8.0, np.inf)


def some_u(seed, m, prior):
    x, labels = draw(np.random.default_rng(seed), m, np.array(prior), means_of())
    return exact_logits(x, means_of(), np.ones(C)), labels


def followed(u, half_lives=SEVERAL, **options):
    before = stream.empty_stream(C, half_lives)
    return stream.follow_stream(before, u, BASE, 2.0, half_lives, **{"odds": 9.0, **options})


def right(u, labels, half_lives):
    known, _ = followed(u, half_lives)
    shares = known.weight[:-1, None] * known.prior[:-1] + (1 - known.weight[:-1, None]) * BASE
    return float(((u + np.log(shares)).argmax(axis=1) == labels).mean())


def test_a_client_mixes_half_lives_and_base_as_bayes_rule_has_it():
    u, _ = some_u(0, 25, SHIFTED)
    known, _ = followed(u)
    alone = [followed(u, (life,), odds=0.0)[0] for life in SEVERAL]
    likely = np.stack([np.full(26, 9.0), *(np.exp(each.log_w) / 2 for each in alone)])
    likely /= likely.sum(axis=0)
    expected = likely[0, :, None] * BASE + sum(
        w[:, None] * each.prior for w, each in zip(likely[1:], alone, strict=True)
    )
    found = known.weight[:, None] * known.prior + (1 - known.weight[:, None]) * BASE
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_mean_over_half_lives_keeps_the_guarantee():  # Ville: at most 1 in 20 ever reaches 20
    highest = np.array([followed(some_u(s, 60, BASE)[0])[0].log_w.max() for s in range(600)])
    assert (highest >= np.log(20)).mean() <= 0.05


def test_inputs_sorted_by_class_are_followed_and_others_are_not_forgotten():
    u, labels = some_u(1, 600, (0.25, 0.25, 0.25, 0.25))
    order = np.argsort(labels, kind="stable")
    several, never, short = (right(u[order], labels[order], lives) for lives in (SEVERAL, (np.inf,), (8.0,)))
    assert several > never + 0.03
    assert several > short - 0.01
    u, labels = some_u(2, 600, SHIFTED)
    assert abs(right(u, labels, SEVERAL) - right(u, labels, (np.inf,))) < 0.01


def test_it_goes_on_where_it_stopped():
    u, _ = some_u(0, 40, SHIFTED)
    whole, end = followed(u, correlation=0.1, amplification=2.0)
    _, kept = followed(u[:17], correlation=0.1, amplification=2.0)
    rest, gone_on = stream.follow_stream(kept, u[17:], BASE, 2.0, SEVERAL, odds=9.0, correlation=0.1, amplification=2.0)
    for one, other in zip(rest, whole, strict=True):
        assert one.tolist() == other[17:].tolist()
    assert [np.asarray(x).tolist() for x in gone_on] == [np.asarray(x).tolist() for x in end]


def test_the_limit_holds_and_copies_under_a_correlation_of_one_are_one_input():
    copies = np.tile(np.log([0.5, 0.2, 0.2, 0.1]), (300, 1))
    mean = np.exp(copies[0]) * BASE
    mean /= mean.sum()
    limited, _ = followed(copies, amplification=1.5)
    assert np.abs(limited.prior[-1] - BASE).sum() <= 1.5 * np.abs(mean - BASE).sum() + 1e-12
    one, many = followed(copies[:1], (np.inf,))[0], followed(copies, (np.inf,), correlation=1.0)[0]
    assert np.abs(many.prior[-1] - BASE).sum() < 1.5 * np.abs(one.prior[-1] - BASE).sum()
    assert np.abs(followed(copies, (np.inf,))[0].prior[-1] - BASE).sum() > 2 * np.abs(many.prior[-1] - BASE).sum()


def test_a_batch_that_came_before_counts_as_far_as_each_half_life_remembers():
    u, _ = some_u(3, 90, SHIFTED)
    rule, state = LabelShift(guard=False, strength=1.0), states_of(BASE)
    outputs = Outputs(u + np.log(BASE))
    client = rule.update(state, rule.start(state), outputs)
    begun = stream.Stream.of(client, (8.0, np.inf))
    np.testing.assert_allclose(begun.counts[1], client["counts"], rtol=1e-12)
    d = 0.5 ** (1 / 8)
    assert begun.counts[0].sum() == pytest.approx((1 - d**90) / (1 - d), rel=1e-6)


def states_of(base):
    return {"a": np.ones(1), "b": np.zeros(C), "base": base, "pseudo_counts": np.array([2.0])}


def test_a_safeguard_decides_often_at_first_and_then_every_so_many_inputs():
    assert stream.decision_times(1, 600) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512]
    assert stream.decision_times(129, 255) == []


@pytest.mark.parametrize("online", [False, True])
def test_inputs_that_look_different_from_some_time_on_are_no_longer_adapted_to(online):
    rule, state = LabelShift(strength=1.0, online=online), next(states())
    x = images.draw(600, images.SHIFTED, np.random.default_rng(5))[0].astype(np.float32)
    x[300:] += 1.5
    outputs = images.model(x)
    log_p, client = rule.predict_online(state, rule.start(state), outputs)
    unadapted = log_softmax_of(state, outputs)
    assert not np.allclose(log_p[250:300], unadapted[250:300])
    np.testing.assert_allclose(log_p[520:], unadapted[520:], atol=1e-12)
    assert client["stream_adapted"][0] == 0
    assert len(client["stream_logits"]) == stream.WINDOW
    if online:
        assert client["adapted"][0] == 0
        np.testing.assert_allclose(rule.predict(state, client, outputs), unadapted, atol=1e-12)


def log_softmax_of(state, outputs):
    z = state.get("inverse_temperature", state["a"]) * outputs.logits
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("online", [False, True])
def test_a_guarded_stream_in_parts_is_the_whole_stream(online, monkeypatch):
    """Each decision goes by the inputs, and the weight, of its time, and holds from the next input on."""
    asked = []
    adapts = Guard.adapts
    monkeypatch.setattr(
        Guard, "adapts", lambda self, chosen, weight: asked.append(weight) or adapts(self, chosen, weight)
    )
    rule, state = LabelShift(strength=1.0, online=True), next(states())
    x = images.draw(600, images.SHIFTED, np.random.default_rng(7))[0].astype(np.float32)
    x[300:] += 1.5
    outputs = images.model(x)
    whole, _ = rule.predict_online(state, rule.start(state), outputs)
    weights, asked = asked, []
    assert np.ptp(weights) > 0.5
    rule, client, parts = replace(rule, online=online), rule.start(state), []
    for part in (slice(1), slice(1, 3), slice(3, 500), slice(500, None)):
        log_p, client = rule.predict_online(state, client, outputs.at(part))
        parts.append(log_p)
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-9)
    if online:
        np.testing.assert_allclose(asked, weights, atol=1e-9)
    unadapted = log_softmax_of(state, outputs)
    np.testing.assert_allclose(whole[1], unadapted[1], atol=1e-9)  # decided after one input, which is too few
    assert not np.allclose(whole[2], unadapted[2], atol=1e-3)

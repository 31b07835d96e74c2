"""Which examples a client sees in which step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach.engines.batches import batch_plan, batch_plans
from fedreach.federation.local_sgd import LocalSGD

checks = settings(deadline=None, derandomize=True)
sizes = st.integers(1, 30)


@checks
@given(n=sizes, batch=sizes, epochs=st.integers(1, 4), round_=st.integers(1, 99), client=st.integers(0, 999))
def test_every_epoch_sees_every_example_once_in_full_batches_but_the_last(n, batch, epochs, round_, client):
    plan = batch_plan(0, round_, client, n, LocalSGD(batch_size=batch, epochs=epochs))
    steps = -(-n // batch)
    assert len(plan) == epochs * steps
    for epoch in plan.reshape(epochs, steps, -1):
        assert sorted(epoch[epoch >= 0]) == list(range(n))
        filled = (epoch >= 0).sum(axis=1)
        assert (filled[:-1] == min(batch, n)).all()
        assert filled[-1] == (n - 1) % batch + 1
        assert (epoch[-1][: filled[-1]] >= 0).all()  # what is left stands first


@checks
@given(n=sizes, batch=sizes, steps=st.integers(1, 50))
def test_a_number_of_steps_is_exact_and_goes_through_whole_epochs(n, batch, steps):
    plan = batch_plan(0, 1, 0, n, LocalSGD(batch_size=batch, steps=steps))
    assert len(plan) == steps
    seen = np.bincount(plan[plan >= 0], minlength=n)
    assert seen.max() - seen.min() <= 1


@checks
@given(n=sizes, batch=sizes, epochs=st.integers(1, 3))
def test_a_longer_plan_begins_as_the_shorter_one(n, batch, epochs):
    short = batch_plan(0, 1, 0, n, LocalSGD(batch_size=batch, epochs=epochs))
    long = batch_plan(0, 1, 0, n, LocalSGD(batch_size=batch, epochs=epochs + 1))
    np.testing.assert_array_equal(long[: len(short)], short)
    np.testing.assert_array_equal(batch_plan(0, 1, 0, n, LocalSGD(batch_size=batch, steps=len(short))), short)


@checks
@given(n=sizes, batch=sizes, epochs=st.integers(1, 3))
def test_dropping_leaves_the_full_batches_as_they_are_and_nothing_else(n, batch, epochs):
    whole, dropped = (
        batch_plan(0, 1, 0, n, LocalSGD(batch_size=batch, epochs=epochs, drop_last=drop)) for drop in (False, True)
    )
    np.testing.assert_array_equal(dropped, whole[(whole >= 0).all(axis=1)])


@checks
@given(batch=sizes, batches=st.integers(1, 5), epochs=st.integers(1, 3), steps=st.none() | st.integers(1, 20))
def test_dropping_changes_nothing_where_all_batches_are_full(batch, batches, epochs, steps):
    local = LocalSGD(batch_size=batch, epochs=epochs, steps=steps)
    plans = [batch_plan(0, 1, 0, batch * batches, replace(local, drop_last=drop)) for drop in (False, True)]
    np.testing.assert_array_equal(*plans)


@checks
@given(n=sizes, batch=sizes, steps=st.integers(1, 50))
def test_steps_are_exact_and_full_where_the_rest_is_dropped(n, batch, steps):
    plan = batch_plan(0, 1, 0, n, LocalSGD(batch_size=batch, steps=steps, drop_last=True))
    assert plan.shape == (steps, min(batch, n))  # who has less than a batch keeps that
    assert (plan >= 0).all()


@checks
@given(n=sizes, batch=sizes, drop=st.booleans())
def test_what_a_plan_holds_is_known_beforehand(n, batch, drop):
    local = LocalSGD(batch_size=batch, drop_last=drop)
    plan = batch_plan(0, 1, 0, n, local)
    assert len(plan) == local.steps_per_epoch(np.array([n]))[0]
    assert (plan >= 0).sum() == local.examples_per_epoch(np.array([n]))[0]


def test_a_plan_depends_on_seed_round_and_client_and_not_on_the_optimiser():
    local = LocalSGD(batch_size=8, epochs=2)
    plans = {
        (seed, round_, client): batch_plan(seed, round_, client, 20, local).tobytes()
        for seed in range(3)
        for round_ in range(1, 4)
        for client in range(3)
    }
    assert len(set(plans.values())) == len(plans)
    other = LocalSGD(batch_size=8, epochs=2, lr=9.0, momentum=0.5, weight_decay=1.0, clip_norm=1.0)
    assert all(batch_plan(*key, 20, other).tobytes() == plan for key, plan in plans.items())


def test_every_epoch_has_an_order_of_its_own():
    plan = batch_plan(0, 1, 0, 20, LocalSGD(batch_size=20, epochs=5))
    assert len(set(map(tuple, plan.tolist()))) == 5


def test_the_first_place_of_an_epoch_is_uniform_over_the_examples():
    draws, n = 4000, 5
    first = [batch_plan(0, t, 0, n, LocalSGD(batch_size=2))[0, 0] for t in range(draws)]
    assert (abs(np.bincount(first, minlength=n) - draws / n) < 4.5 * np.sqrt(draws * 0.2 * 0.8)).all()


@pytest.mark.parametrize(
    "local",
    [
        LocalSGD(batch_size=4),
        LocalSGD(batch_size=4, epochs=3),
        LocalSGD(batch_size=4, steps=5),
        LocalSGD(batch_size=50, epochs=2),
        LocalSGD(batch_size=4, drop_last=True),
        LocalSGD(batch_size=4, epochs=3, drop_last=True),
        LocalSGD(batch_size=4, steps=5, drop_last=True),
    ],
)
@pytest.mark.parametrize("sizes", [(12, 12, 12), (13, 1, 8, 4)])
def test_the_plans_of_several_clients_are_those_of_each(local, sizes):
    parts = [100 * client + np.arange(size)[::-1] for client, size in enumerate(sizes)]
    table = batch_plans(3, 7, np.arange(len(sizes)) + 5, parts, local)
    for client, (part, rows) in enumerate(zip(parts, table, strict=True)):
        plan = batch_plan(3, 7, client + 5, len(part), local)
        expected = np.full(rows.shape, -1)
        expected[: plan.shape[0], : plan.shape[1]] = np.where(plan >= 0, part[plan], -1)
        assert np.array_equal(rows, expected)

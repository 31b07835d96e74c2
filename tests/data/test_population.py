"""Who takes part: what is excluded never trains, and numbers are exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.splits import draw_population

COUNTS = np.array([[5, 0, 0], [0, 5, 0], [5, 0, 1], [2, 2, 0], [0, 0, 9]])
tables = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 3))
)


@settings(deadline=None, derandomize=True)
@given(counts=tables, data=st.data())
def test_participants_and_unseen_are_all_clients_and_nothing_excluded_takes_part(counts, data):
    n, c = counts.shape
    clients = data.draw(st.lists(st.integers(0, n - 1), max_size=4))
    labels = data.draw(st.lists(st.integers(0, c - 1), max_size=2))
    barred = set(clients) | {k for k in range(n) if counts[k, labels].any()}
    options = {"exclude_clients": clients, "exclude_labels": labels}
    number = data.draw(st.one_of(st.none(), st.integers(1, n)))
    if len(barred) == n or (number is not None and number > n - len(barred)):
        with pytest.raises(ConfigError):
            draw_population(counts, generator(0, "population"), participants=number, **options)
        return
    population = draw_population(counts, generator(0, "population"), participants=number, **options)
    both = np.concatenate([population.participants, population.unseen])
    assert sorted(both.tolist()) == list(range(n))
    for ids in (population.participants, population.unseen):
        assert ids.tolist() == sorted(ids.tolist())
    assert not barred & set(population.participants.tolist())
    assert len(population.participants) == (n - len(barred) if number is None else number)


def test_every_eligible_client_is_equally_likely_to_take_part():
    counts, draws = np.ones((6, 2), np.int64), 4000
    rng, hits = generator(0, "population"), np.zeros(6)
    for _ in range(draws):
        hits[draw_population(counts, rng, participants=2, exclude_clients=[3]).participants] += 1
    assert hits[3] == 0
    assert (abs(hits[[0, 1, 2, 4, 5]] - draws * 2 / 5) < 4.5 * np.sqrt(draws * 0.4 * 0.6)).all()


def test_a_list_of_ids_is_taken_as_it_is():
    population = draw_population(COUNTS, generator(0, "population"), participants=[3, 0])
    assert (population.participants.tolist(), population.unseen.tolist()) == ([0, 3], [1, 2, 4])


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"participants": 0}, r"population\.participants must be from 1 to 5, .*got 0"),
        ({"participants": 6}, r"from 1 to 5, the number of clients that are not excluded; got 6"),
        ({"participants": 4, "exclude_labels": [1]}, r"from 1 to 3, .*got 4"),
        ({"participants": [0, 5]}, r"population\.participants must contain clients from 0 to 4; got 5"),
        ({"participants": [0, 1], "exclude_labels": [1]}, r"must not contain excluded clients; got 1"),
        ({"participants": []}, r"population must have at least one participant"),
        ({"exclude_clients": [-1]}, r"population\.exclude_clients must contain clients from 0 to 4; got -1"),
        ({"exclude_labels": [3]}, r"population\.exclude_labels must contain classes from 0 to 2; got 3"),
        ({"exclude_labels": [0, 1, 2]}, r"population must have at least one participant"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(options, rule):
    with pytest.raises(ConfigError, match=rule):
        draw_population(COUNTS, generator(0, "population"), **options)


def test_a_share_is_of_those_that_are_not_excluded_and_at_least_one() -> None:
    for share, clients, many in ((0.5, [3], 2), (0.01, [], 1), (0.99, [], 5)):
        drawn = draw_population(COUNTS, generator(0, "population"), participants=share, exclude_clients=clients)
        assert len(drawn.participants) == many
        same = draw_population(COUNTS, generator(0, "population"), participants=many, exclude_clients=clients)
        assert drawn.participants.tolist() == same.participants.tolist()

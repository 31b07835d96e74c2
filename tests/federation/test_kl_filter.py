"""Who passes the filter on label divergence, and what happens if too few do."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.divergence import label_divergences
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.selection.labels import KLFilter
from fedreach.federation.types import ServerView

# design/golden.json, "kl": divergences KL(p || p_i) with smoothing 1 are .2053, .2106, .6646, .1480 for 20, 20, 30, 30
# examples; reversed and without smoothing .2790, .2511, .6349, .1443
COUNTS = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]])


def make_view(counts=COUNTS, available=None, round_=1):
    counts = np.asarray(counts)
    sizes = np.maximum(counts, 0).sum(axis=1).astype(np.int64)
    view = ServerView.of(np.arange(len(counts)) * 2 + 5, sizes, available=available)
    for array in (view.ids, counts, sizes):
        array.setflags(write=False)
    return replace(view, label_counts=counts, round=round_)


def chosen(policy, view, k=4, seed=0):
    """Return the positions of those chosen, and the remark."""
    selection = policy.select({}, view, k, generator(seed, "select"))
    return view.rows(np.sort(selection.ids)).tolist(), selection.remark


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ({"threshold": 0.15}, [3]),
        ({"threshold": 0.21}, [0, 3]),
        ({"threshold": 0.3}, [0, 1, 3]),
        ({"threshold": 0.7}, [0, 1, 2, 3]),
        ({"threshold": 0.7, "smoothing": 0}, [1, 3]),  # the others lack a class: inf
        ({"threshold": 0.26, "smoothing": 0, "direction": "local_to_global"}, [1, 3]),
        ({"threshold": 0.28, "smoothing": 0, "direction": "local_to_global"}, [0, 1, 3]),
    ],
)
def test_those_within_the_threshold_are_chosen_and_no_others(options, positions):
    said = "" if len(positions) == 4 else f"{len(positions)} of 4 clients within {options['threshold']:g} nats"
    assert chosen(KLFilter(**options), make_view()) == (positions, said)


def test_k_of_those_admitted_are_drawn_each_equally_often():
    policy, view = KLFilter(0.3), make_view()
    count = np.zeros(4)
    for seed in range(600):
        positions, _ = chosen(policy, view, k=2, seed=seed)
        assert len(positions) == 2
        count[positions] += 1
    # Each of the three admitted is in 2/3 of the cohorts, give or take the binomial standard deviation.
    assert (abs(count[[0, 1, 3]] - 400) < 4.5 * np.sqrt(600 * 2 / 9)).all()
    assert count[2] == 0


def test_distances_are_from_all_participants_and_only_available_ones_are_chosen():
    view = make_view(available=np.array([True, True, True, False]))
    # As above, although the pool without client 3 is another.
    assert chosen(KLFilter(0.3), view, k=3) == ([0, 1], "2 of 3 clients within 0.3 nats")


def test_where_nobody_passes_the_nearest_is_let_in_and_the_row_says_so():
    assert chosen(KLFilter(0.1), make_view()) == ([3], "0 of 4 clients within 0.1 nats; admitted 1, up to 0.148")


@pytest.mark.parametrize(
    ("least", "positions", "admitted"), [(30, [3], 1), (31, [0, 3], 2), (50, [0, 3], 2), (51, [0, 1, 3], 3)]
)
def test_clients_are_let_in_by_increasing_divergence_until_they_hold_enough(least, positions, admitted):
    policy = KLFilter(0.15, min_examples=least)
    got, remark = chosen(policy, make_view())
    assert got == positions
    # One alone passes, and holds 30 examples.
    more = "" if least == 30 else rf"; admitted {admitted}, up to 0\.\d+"
    assert re.fullmatch(f"1 of 4 clients within 0.15 nats{more}", remark)


def test_where_all_together_hold_too_little_all_are_let_in():
    positions, remark = chosen(KLFilter(0.1, min_examples=1000), make_view())
    assert positions == [0, 1, 2, 3]
    assert remark.endswith("with 100 of 1000 examples")


def test_equal_divergences_go_to_the_lower_id():
    counts = np.array([[7, 2, 1], [1, 7, 2], [1, 2, 7], [2, 7, 1]]) * 3
    counts = np.vstack([counts, counts[:, ::-1]])
    # The pool reads the same with its classes turned around; 1, 3, 5 and 7 are one histogram or its mirror image.
    assert chosen(KLFilter(0.0), make_view(counts))[0] == [1]
    assert chosen(KLFilter(0.0, min_examples=45), make_view(counts))[0] == [1, 3]


def test_renaming_the_clients_renames_the_choice():
    rng = generator(0, "counts")
    counts, order = rng.integers(0, 30, (9, 4)), rng.permutation(9)
    for threshold, least in [(0.1, 0), (0.3, 0), (0.1, 200), (0.0, 0)]:
        policy = KLFilter(threshold, min_examples=least)
        before, _ = chosen(policy, make_view(counts), k=9)
        after, _ = chosen(policy, make_view(counts[order]), k=9)
        assert sorted(order[after]) == before


def test_noised_counts_below_zero_count_as_zero():
    noised = COUNTS + np.array([0.0, 0.0, -0.3])
    view = make_view(noised)
    assert chosen(KLFilter(0.7, smoothing=0), view)[0] == [1, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": -0.1}, r"KLFilter\.threshold must be not negative; got -0\.1"),
        ({"threshold": float("nan")}, r"KLFilter\.threshold must be not negative; got nan"),
        ({"smoothing": -1}, r"KLFilter\.smoothing must be not negative; got -1"),
        ({"min_examples": -1}, r"KLFilter\.min_examples must be not negative; got -1"),
        ({"direction": "global_to_locl"}, r"'global_to_local' or 'local_to_global'; got 'global_to_locl'\. Did you"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        KLFilter(**options)


def test_the_last_digits_of_a_divergence_decide_no_tie():
    counts = np.array([np.roll([3, 1, 6, 19, 27, 24], shift) for shift in range(6)])  # the pool is uniform
    divergences = label_divergences(counts, smoothing=1.0)
    assert divergences.argmin() == 2  # by rounding only
    np.testing.assert_allclose(divergences, divergences[0], rtol=1e-12)
    assert chosen(KLFilter(0.0, min_examples=80), make_view(counts))[0] == [0]

"""What the server holds itself, and that nobody else holds it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import check_server_data, draw_for_server, from_arrays
from fedreach.data.federated import federate

NUM_CLIENTS, EACH = 10, 6


def federated(seed=0, **options):
    """Ten clients with six samples each, whose features are the sample's number; one of six is held out."""
    x = np.arange(NUM_CLIENTS * EACH, dtype=np.float32)[:, None]
    dataset = from_arrays(x, np.arange(len(x)) % 3, num_classes=3)
    owner = np.arange(len(x)) // EACH
    return federate(dataset, Partition.from_owner(owner, NUM_CLIENTS, kind="natural"), seed=seed, **options)


# ------------------------------------------------------------------------------------------------- drawn


@settings(deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(lambda m: max(m) > 1), data=st.data())
def test_as_many_as_asked_are_drawn_and_every_client_keeps_an_example(sizes, data):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    spare = sum(max(m - 1, 0) for m in sizes)
    examples = data.draw(st.integers(1, spare))
    taken = draw_for_server(owner, examples, generator(data.draw(st.integers(0, 99)), "server-data"))
    assert taken.sum() == examples
    left = np.bincount(owner[~taken], minlength=len(sizes))
    assert (left[np.array(sizes) > 0] >= 1).all()
    with pytest.raises(ConfigError, match=rf"must be at most {spare}, .*; got {spare + 1}\."):
        draw_for_server(owner, spare + 1, generator(0, "server-data"))


def test_every_example_is_equally_likely_to_be_drawn_whoever_holds_it():
    # 3 of 300: a client of 2 rarely stands to lose both, so that its examples are as likely as those of large ones.
    owner, rng, draws = np.repeat(np.arange(3), [2, 98, 200]), generator(0, "server-data"), 6000
    hits = sum(draw_for_server(owner, 3, rng).astype(np.int64) for _ in range(draws))
    deviation = np.sqrt(draws * 0.01 * 0.99)
    assert (abs(hits - draws * 0.01) < 4.5 * deviation).all()
    by_client = np.bincount(owner, weights=hits)
    assert (abs(by_client - draws * 0.01 * np.array([2, 98, 200])) < 4.5 * np.sqrt(draws * 3 * 0.25)).all()


def test_what_the_server_takes_is_nobody_elses_any_more():
    data = federated(participants=4, server_examples=20)
    assert data.server is not None
    taken = data.server.x[:, 0].astype(int)
    assert len(set(taken)) == len(data.server.y) == 20
    assert data.server.y.tolist() == data.dataset.train_y[taken].tolist()
    held = [*data.train.order, *data.held_out.order]
    assert sorted([*held, *taken]) == list(range(60))
    assert data.held_out.order.tolist() == federated(participants=4).held_out.order.tolist()
    assert data.taken_by_server().tolist() == np.bincount(taken // EACH, minlength=NUM_CLIENTS).tolist()
    assert (np.bincount(data.train.owner()) == data.train.sizes).all()
    for client in range(NUM_CLIENTS):  # still their own, in the order that they had
        assert set(data.train[client]) <= set(data.partition[client])
        before = federated(participants=4).train[client]
        assert data.train[client].tolist() == [sample for sample in before if sample not in taken]


def test_unseen_clients_give_as_well_and_one_that_has_a_single_example_keeps_it():
    data = federated(participants=[0, 1], server_examples=40)  # of 50 training examples; all but one of each client's
    assert data.train.sizes.tolist() == [1] * NUM_CLIENTS
    givers = data.server.x[:, 0].astype(int) // EACH
    assert np.bincount(givers).tolist() == [4] * NUM_CLIENTS
    with pytest.raises(ConfigError, match=r"server_data\.examples must be at most 40, because each of the 10 clients"):
        federated(server_examples=41)


def test_the_server_has_right_labels_among_clients_with_wrong_ones():
    data = federated(server_examples=20, noise={"kind": "to_one_class", "rate": 1.0, "target": 0})
    assert set(data.label_counts().argmax(axis=1)) == {0}
    assert sorted(np.unique(data.server.y)) == [0, 1, 2]
    assert data.server.y.tolist() == (data.server.x[:, 0].astype(int) % 3).tolist()
    assert data.noise["num_selected"] == 30  # of the 30 examples that clients still train on


def test_the_draw_has_a_stream_of_its_own():
    base, noisy = (federated(server_examples=9, noise=n) for n in (None, {"kind": "symmetric", "rate": 0.5}))
    for other in (noisy, federated(server_examples=9, participants=3)):
        assert other.server.x.tolist() == base.server.x.tolist()
    assert federated(seed=1, server_examples=9).server.x.tolist() != base.server.x.tolist()
    few = federated(server_examples=4)
    assert set(few.server.x[:, 0]) <= set(base.server.x[:, 0])  # more data for the server include the fewer
    assert few.population.participants.tolist() == base.population.participants.tolist()


# ------------------------------------------------------------------------------------------------- given


def test_data_of_the_servers_own_leave_clients_as_they_are():
    plain, own = federated(participants=3), federated(participants=3, server_data=(np.ones((2, 1)), [2, 1]))
    assert own.server.x.tolist() == [[1.0], [1.0]]
    assert own.server.x.dtype == np.float32  # as that of the data set
    assert own.server.y.tolist() == [2, 1]
    assert own.train.order.tolist() == plain.train.order.tolist()
    assert own.population.participants.tolist() == plain.population.participants.tolist()
    assert own.taken_by_server().tolist() == [0] * NUM_CLIENTS


def test_a_file_is_as_good_as_arrays(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.ones((2, 1), np.float32), y=[2, 1])
    own = federated(server_data=tmp_path / "mine.npz")
    assert own.digest() == federated(server_data=(np.ones((2, 1)), [2, 1])).digest()
    np.savez(tmp_path / "whole.npz", x=np.ones((2, 1)), y=[2, 1], client=["a", "b"])
    with pytest.raises(DataError, match=r"whole\.npz: must contain only x and y\. Remove client"):
        federated(server_data=str(tmp_path / "whole.npz"))
    with pytest.raises(DataError, match=r"nothere\.npz"):
        federated(server_data=tmp_path / "nothere.npz")


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (
            np.ones((2, 3)),
            [0, 1],
            r"server_data must have the form of arrays, \(1,\) .*; got \(3,\)",
        ),
        (np.ones((2, 1)), [0, 3], "'server_data': y must be 0 to 2; got 3"),
        (np.ones((2, 1)), [0], r"y must be one label per example, shape \(2,\); got shape \(1,\)"),
        (np.ones((2, 1)), [0.5, 1.0], "y must be integers"),
        (np.full((2, 1), np.nan), [0, 1], "x must be finite"),
        (np.ones((0, 1)), [], "server_data must have at least one example; got none"),
    ],
)
def test_data_that_are_not_like_the_clients_are_refused(x, y, said):
    with pytest.raises(DataError, match=said):
        federated(server_data=(x, y))


def test_tokens_and_images_are_checked_as_what_the_data_set_holds():
    images = from_arrays(np.zeros((4, 1, 2, 2), np.uint8), [0, 1, 0, 1])
    assert check_server_data(images, (np.ones((1, 2, 2), np.uint8), [1])).x.shape == (1, 1, 2, 2)
    with pytest.raises(DataError, match="x must be uint8"):
        check_server_data(images, (np.ones((1, 1, 2, 2)), [1]))
    tokens = from_arrays(np.zeros((4, 3), np.uint8), [0, 1, 0, 1], kind="tokens")
    with pytest.raises(DataError, match=r"\(3,\) uint8 .*; got \(3,\) int64"):
        check_server_data(tokens, (np.zeros((1, 3), np.int64), [1]))


def test_both_at_once_and_none_at_all_are_refused():
    with pytest.raises(ConfigError, match="server_examples and server_data must not be given together"):
        federated(server_examples=3, server_data=(np.ones((2, 1)), [0, 1]))
    for none in (0, -3, 2.5, "all"):
        with pytest.raises(ConfigError, match=rf"server_data\.examples must be .*; got {none!r}"):
            federated(server_examples=none)


# ------------------------------------------------------------------------------------------------- its name


def test_the_digest_covers_what_the_server_holds():
    given = [federated(server_data=(np.ones((2, 1)), y)) for y in ([0, 1], [1, 0])]
    others = [federated(server_examples=5), federated(server_examples=6), federated()]
    digests = [data.digest() for data in (*given, *others)]
    assert len(set(digests)) == 5
    assert federated(server_examples=5).digest() == digests[2]


def test_the_digest_of_a_federation_without_server_data_is_what_it_always_was():
    # Computed with the revision in which each natural client got a held-out stream of its own.
    assert federated(participants=4).digest() == ("dee9403f9a6d8bec94c22ce74f04875fef60d7c8ee278d9685766d1a7f430ff5")

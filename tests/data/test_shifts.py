"""Shifts of unseen clients: what each does, and what stays as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import federate
from fedreach.data.shifts import (
    SHIFTS,
    Blur,
    Brightness,
    Composed,
    Contrast,
    Examples,
    InputNoise,
    InputScale,
    Occlusion,
    OneClass,
    PermutedLabels,
    Rotation,
    Translation,
    shift_unseen,
)
from fedreach.data.stored import from_folder
from fedreach.federation.adaptation.safeguard import Values, intensity
from fedreach.runs.describe import federation_record

STRENGTHS = {
    "brightness": 0.3,
    "contrast": 0.5,
    "noise": 0.2,
    "blur": 1.0,
    "rotation": 30.0,
    "translation": 1.5,
    "occlusion": 0.3,
    "permuted_labels": 1.0,
    "one_class": 1.0,
}
PLACED = ("blur", "rotation", "translation", "occlusion")
CLASSES, CLIENTS = 4, 6


def images(n=CLIENTS * 20, channels=3, height=6, width=9, low=60, high=180):
    rng = generator(0, "images")
    x = rng.integers(low, high, (n, channels, height, width), dtype=np.uint8)
    return from_arrays(x, rng.integers(CLASSES, size=n), x[:5], np.zeros(5, np.int64), num_classes=CLASSES)


def table(n=CLIENTS * 20, columns=5):
    rng = generator(0, "table")
    x = (rng.standard_normal((n, columns)) * np.arange(1, columns + 1) + 7).astype(np.float32)
    x[5] = 1e-12  # lost in the mean of its column
    return from_arrays(x, rng.integers(CLASSES, size=n), num_classes=CLASSES, name="a table")


def tokens(n=CLIENTS * 20):
    rng = generator(0, "tokens")
    x = rng.integers(0, 50, (n, 8))
    return from_arrays(x, rng.integers(CLASSES, size=n), kind="tokens", num_classes=CLASSES, name="words")


def federation(dataset, **more):
    owner = np.arange(len(dataset.train_y)) % CLIENTS
    partition = Partition.from_owner(owner, CLIENTS, "natural")
    return federate(dataset, partition, participants=[0, 2], held_out=0.3, **more)


CASES = [pytest.param(name, images(), id=f"{name}, images") for name in STRENGTHS]
CASES += [pytest.param(name, table(), id=f"{name}, a table") for name in STRENGTHS if name not in PLACED]


def one_client(dataset, m=30):
    return Examples(dataset.train_x[:m], dataset.train_y[:m], np.arange(m))


def shifted(shift, dataset, m=30, seed=0):
    return shift.shifted(one_client(dataset, m), InputScale.of(dataset), generator(seed, "shift"))


def holdings(data, client):
    index = np.concatenate([data.train[client], data.held_out[client]])
    return data.dataset.train_x[index].tobytes(), data.dataset.train_y[index].tobytes(), index.tobytes()


@pytest.mark.parametrize(("name", "dataset"), CASES)
def test_strength_0_changes_no_bit(name, dataset):
    data = federation(dataset)
    after = shift_unseen(data, SHIFTS[name](0.0))
    assert [holdings(after, c) for c in range(CLIENTS)] == [holdings(data, c) for c in range(CLIENTS)]
    assert after.dataset.train_x.dtype == dataset.train_x.dtype
    assert after.dataset.train_x is dataset.train_x  # nothing was copied either


@pytest.mark.parametrize(("name", "dataset"), CASES)
def test_every_unseen_client_changes_in_both_parts_and_nobody_else_does(name, dataset):
    before_x, before_y = dataset.train_x.tobytes(), dataset.train_y.tobytes()
    data = federation(dataset, noise={"kind": "symmetric", "rate": 0.2}, server_examples=10)
    after = shift_unseen(data, SHIFTS[name](STRENGTHS[name]))
    for client in range(CLIENTS):
        unseen = client in data.population.unseen
        assert (holdings(after, client) != holdings(data, client)) == unseen, client
        for old, new in ((data.train, after.train), (data.held_out, after.held_out)):
            same = np.array_equal(old[client], new[client])
            same = same and np.array_equal(dataset.train_x[old[client]], after.dataset.train_x[old[client]])
            same = same and np.array_equal(dataset.train_y[old[client]], after.dataset.train_y[old[client]])
            assert same != unseen, client
    for client in data.population.participants:  # with the labels that label noise made wrong
        index = data.train[client]
        assert after.labels[index].tolist() == data.labels[index].tolist()
    assert (dataset.train_x.tobytes(), dataset.train_y.tobytes()) == (before_x, before_y)
    assert after.dataset.test_x is dataset.test_x
    assert after.server is data.server
    assert after.taken_by_server().tolist() == data.taken_by_server().tolist()
    assert after.digest() != data.digest()


def test_who_is_shifted_and_how_follows_from_the_seed_and_from_nobody_else():
    data = federation(images())
    some, all_ = (shift_unseen(data, InputNoise(0.2), share=share, seed=3) for share in (0.5, 1.0))
    assert len(some.shift.clients) == 2
    assert set(some.shift.clients) < set(all_.shift.clients) == set(data.population.unseen)
    for client in data.population.unseen:  # a client's noise does not depend on who else is shifted
        alike = all_ if client in some.shift.clients else data
        assert holdings(some, client) == holdings(alike, client)
    assert shift_unseen(data, InputNoise(0.2), share=0.5, seed=3).digest() == some.digest()
    others = [shift_unseen(data, InputNoise(0.2), share=0.5, seed=seed) for seed in range(8)]
    assert len({tuple(other.shift.clients) for other in others}) > 1
    assert len({holdings(shift_unseen(data, InputNoise(0.2), seed=seed), 1) for seed in range(3)}) == 3
    assert shift_unseen(data, InputNoise(0.2), share=0.0).shift.clients.tolist() == []


def test_clients_do_not_share_their_noise():
    data = federation(images())
    x = shift_unseen(data, InputNoise(0.05)).dataset.train_x.astype(np.int64)
    moved = [(x - data.dataset.train_x)[data.train[c]].ravel()[:500] for c in data.population.unseen]
    assert abs(np.corrcoef(moved) - np.eye(len(moved))).max() < 0.25


@pytest.mark.parametrize(("shift", "slope"), [(Brightness(0.2), 1.0), (Contrast(0.4), 0.6), (Contrast(-0.1), 1.1)])
def test_the_guard_undoes_brightness_and_contrast_where_nothing_is_clipped(shift, slope):
    grey = images(channels=1)
    x, after = grey.train_x[:30].astype(np.float64), shifted(shift, grey).x.astype(np.float64)
    found, offset = np.polyfit(x.ravel(), after.ravel(), 1)
    assert found == pytest.approx(slope, abs=0.005)
    assert abs(after - found * x - offset).max() < 0.6  # grey levels are whole
    state = {"guard_value_mean": np.array([[0.4, 0.5]]), "guard_value_variance": np.array([[0.04, 0.09]])}
    prior = np.array([0.3, 0.7])
    repaired = [intensity(state, Values.of(values / 255), prior).of(values / 255) for values in (x, after)]
    assert np.sqrt(np.mean((repaired[0] - repaired[1]) ** 2)) < 0.01  # of 0.28, the deviation that both have


def test_images_are_clipped_and_tables_are_not():
    assert shifted(Brightness(0.5), images(high=255)).x.max() == 255
    d = table()
    moved = shifted(Brightness(0.5), d).x - d.train_x[:30]
    np.testing.assert_allclose(moved, np.broadcast_to(0.5 * d.train_x.std(axis=0), moved.shape), rtol=1e-4)
    mean = d.train_x.mean(axis=0)
    halved = mean + 0.5 * (d.train_x[:30] - mean)
    np.testing.assert_allclose(shifted(Contrast(0.5), d).x, halved, rtol=1e-5)


def test_noise_has_the_deviation_that_was_asked_for():
    d, grey = table(n=3000), images(n=300)
    moved = shifted(InputNoise(0.3), d, m=3000).x - d.train_x
    np.testing.assert_allclose(moved.std(axis=0), 0.3 * d.train_x.std(axis=0), rtol=0.06)
    pixels = shifted(InputNoise(0.05), grey, m=300).x.astype(np.float64) - grey.train_x
    assert pixels.std() == pytest.approx(0.05 * 255, rel=0.02)


def test_a_quarter_turn_moves_pixels_and_makes_none():
    square = images(height=7, width=7)
    x = square.train_x[:30]
    assert np.array_equal(shifted(Rotation(90), square).x, np.rot90(x, axes=(2, 3)))
    assert np.array_equal(shifted(Rotation(-90), square).x, np.rot90(x, -1, axes=(2, 3)))
    upright = images()  # 6 by 9
    assert np.array_equal(shifted(Rotation(180), upright).x, upright.train_x[:30, :, ::-1, ::-1])


def test_an_eighth_of_a_turn_interpolates_linearly():
    x = np.zeros((1, 1, 3, 3), np.uint8)
    x[0, 0, 1, 2] = 200  # right of the middle
    after = shifted(Rotation(45), from_arrays(x, [0]), m=1).x[0, 0]
    along = 2**-0.5  # what is to the right and above comes from (0.71, 0.71) and (0.71, -0.71), from the middle
    assert after[1, 2] == after[0, 1] == round(200 * along * (1 - along))
    assert not after[2].any()


def test_translation_moves_right_and_down_and_black_comes_in():
    d = images()
    x, after = d.train_x[:30], shifted(Translation(2), d).x
    assert np.array_equal(after[:, :, 2:, 2:], x[:, :, :-2, :-2])
    assert not after[:, :, :2].any()
    assert not after[:, :, :, :2].any()
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 0), (1, 0)))
    four = padded[:, :, :-1, :-1] + padded[:, :, 1:, :-1] + padded[:, :, :-1, 1:] + padded[:, :, 1:, 1:]
    assert abs(shifted(Translation(0.5), d).x - four / 4).max() <= 0.5  # the mean of four neighbours
    assert np.array_equal(shifted(Translation(-2), d).x[:, :, :-2, :-2], x[:, :, 2:, 2:])
    assert not shifted(Translation(-20), d).x.any()
    assert not shifted(Translation(20.5), d).x.any()


@pytest.mark.parametrize("shift", [Blur(1.0), Rotation(20), Translation(1.3)], ids=repr)
def test_channels_and_images_do_not_mix(shift):
    d = images()
    whole = shifted(shift, d).x
    alone = from_arrays(d.train_x[7:8, 1:2], [0], num_classes=CLASSES)
    assert np.array_equal(whole[7:8, 1:2], shifted(shift, alone, m=1).x)


def test_blur_keeps_the_light_and_takes_the_detail():
    x = np.zeros((1, 1, 21, 21), np.uint8)
    x[0, 0, 10, 10] = 255
    after = shifted(Blur(1.0), from_arrays(x, [0]), m=1).x[0, 0].astype(np.float64)
    assert after.sum() == pytest.approx(255, rel=0.05)  # but for rounding to grey levels
    assert after[10, 10] == pytest.approx(255 / (2 * np.pi), abs=2)  # the normal density at its middle
    level = np.full((1, 1, 8, 8), 77, np.uint8)
    assert (shifted(Blur(2.0), from_arrays(level, [0]), m=1).x == 77).all()  # also at the border


def test_occlusion_hides_one_rectangle_of_each_image_and_nothing_else():
    d = replace(images(low=200, high=250), mean=(0.1, 0.2, 0.3))
    after = shifted(Occlusion(0.25), d).x
    hidden = (after == np.rint(255 * np.array(d.mean))[:, None, None]).all(axis=1)
    assert (hidden.sum(axis=(1, 2)) == 3 * 4).all()  # half of 6 by half of 9, rounded
    assert (hidden.any(axis=2).sum(axis=1) == 3).all()
    places = {tuple(np.argwhere(each)[0]) for each in hidden}
    assert len(places) > 5
    assert {0, 3} <= {row for row, _ in places}  # at either border, too
    assert np.array_equal(np.where(hidden[:, None], 0, after), np.where(hidden[:, None], 0, d.train_x[:30]))
    assert (shifted(Occlusion(1.0), d).x[:, 0] == 26).all()


@pytest.mark.parametrize(("strength", "others"), [(1.0, 4), (0.5, 2), (0.1, 2), (0.0, 0)])
def test_so_many_classes_swap_names_and_each_name_means_one_class(strength, others):
    d = images(n=400)
    for seed in range(5):
        after = shifted(PermutedLabels(strength), d, m=400, seed=seed).y
        names = {(old, new) for old, new in zip(d.train_y.tolist(), after.tolist(), strict=True)}
        assert sorted(old for old, _ in names) == sorted(new for _, new in names) == list(range(CLASSES))
        assert sum(old != new for old, new in names) == others
    tables = {tuple(shifted(PermutedLabels(), d, m=400, seed=seed).y.tolist()) for seed in range(8)}
    assert len(tables) > 2  # clients do not agree


def test_one_class_keeps_all_of_the_most_frequent_and_a_share_of_the_others():
    data = federation(images())
    counts = data.train.label_counts(data.dataset.train_y, CLASSES)
    counts += data.held_out.label_counts(data.dataset.train_y, CLASSES)
    for strength in (1.0, 0.5):
        after = shift_unseen(data, OneClass(strength))
        y = after.dataset.train_y
        left = after.train.label_counts(y, CLASSES) + after.held_out.label_counts(y, CLASSES)
        for client in data.population.unseen:
            most = int(counts[client].argmax())
            others = counts[client].sum() - counts[client, most]
            assert left[client, most] == counts[client, most]
            assert left[client].sum() == counts[client, most] + others - round(strength * others)
        # What a report says is what clients hold, and nobody takes the server for the one who dropped examples.
        assert np.array_equal(federation_record(after).label_counts, left)
        assert after.taken_by_server().tolist() == [0] * CLIENTS
        assert after.shift.record["dropped"] == counts.sum() - left.sum()


def test_composed_shifts_follow_one_another():
    d = images(low=100, high=120)
    dark_then_halved = shifted(Composed((Brightness(-0.2), Contrast(0.5))), d).x
    halved_then_dark = shifted(Composed((Contrast(0.5), Brightness(-0.2))), d).x
    dark = replace(d, train_x=shifted(Brightness(-0.2), d).x)
    assert np.array_equal(dark_then_halved, shifted(Contrast(0.5), dark).x)
    assert not np.array_equal(dark_then_halved, halved_then_dark)
    both = shift_unseen(federation(d), Composed((PermutedLabels(), OneClass())))
    left = both.train.label_counts(both.dataset.train_y, CLASSES)
    assert ((left > 0).sum(axis=1)[both.population.unseen] <= 1).all()
    with pytest.raises(ConfigError, match="at least one shift"):
        Composed(())
    with pytest.raises(ConfigError, match=r"must contain only shifts, such as Brightness\(0.3\); got 'blur'"):
        Composed(("blur",))


@pytest.mark.parametrize("name", PLACED)
def test_a_table_has_no_places(name):
    with pytest.raises(DataError, match=r"needs images; a table contains features.*Use brightness"):
        shift_unseen(federation(table()), SHIFTS[name](STRENGTHS[name]))


@pytest.mark.parametrize("shift", [Brightness(0.1), Contrast(0.1), InputNoise(0.1)], ids=repr)
def test_words_have_no_brightness_but_labels(shift):
    with pytest.raises(DataError, match=r"needs numeric inputs; words contains tokens\. Use permuted_labels"):
        shift_unseen(federation(tokens()), shift)
    data = federation(tokens())
    assert shift_unseen(data, PermutedLabels()).digest() != data.digest()


def test_what_makes_no_sense_is_refused_in_words():
    data = federation(images())
    for shift, bad in ((Brightness, 1.5), (Contrast, 1.0), (Blur, -1.0), (Rotation, float("nan")), (Occlusion, 2.0)):
        with pytest.raises(ConfigError, match=rf"{shift.__name__}\.strength must be"):
            shift(bad)
    with pytest.raises(ConfigError, match=r"shift\.share"):
        shift_unseen(data, Blur(1.0), share=1.5)
    everybody = federate(data.dataset, data.partition)
    with pytest.raises(ConfigError, match="all clients participate"):
        shift_unseen(everybody, Blur(1.0))


@dataclass(frozen=True)
class Returns(fr.Shift):
    """A shift of one's own that returns what a function makes of the client's examples."""

    make: object

    def shifted(self, examples, scale, rng):
        return self.make(examples)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda e: e.x, "must return Examples; got ndarray"),
        (lambda e: e.only(slice(0)), "at least one example of the client"),
        (lambda e: replace(e, index=e.index - e.index), "each once"),
        (lambda e: replace(e, index=e.index + 1), "example of the client"),
        (lambda e: e.seen_as(e.x.astype(np.float32)), "inputs of shape and type"),
        (lambda e: e.seen_as(e.x[:, :1]), "inputs of shape and type"),
        (lambda e: replace(e, y=e.y + CLASSES), "labels from 0 to 3"),
    ],
)
def test_a_wrong_shift_of_ones_own_is_caught(make, rule):
    with pytest.raises(ComponentError, match=rule):
        shift_unseen(federation(images()), Returns(make))


def test_a_data_set_on_disk_stays_there_and_is_not_written_to(tmp_path):
    d = images()
    np.save(tmp_path / "x.npy", d.train_x)
    np.save(tmp_path / "y.npy", d.train_y)
    data = federation(from_folder(tmp_path))
    after = shift_unseen(data, Brightness(0.3))
    assert isinstance(after.dataset.train_x, np.memmap)
    assert after.dataset.train_x.mode == "c"  # a copy in memory has none
    held = shift_unseen(federation(replace(d, test_x=d.test_x[:0])), Brightness(0.3))
    assert np.array_equal(after.dataset.train_x, held.dataset.train_x)
    assert np.array_equal(np.load(tmp_path / "x.npy"), d.train_x)

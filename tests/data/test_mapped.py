"""A folder of arrays is the data set that its arrays are, and stays on disk."""

import json
import shutil

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import federate
from fedreach.data.partition import iid
from fedreach.data.sets import load
from fedreach.data.stored import from_folder, index_folder
from fedreach.experiment.components import federation
from fedreach.experiment.schema import Experiment
from fedreach.runs.simulation import simulate

N = 40
LABELS = np.arange(N) % 4
SAMPLES = {
    "image": generator(0, "images").integers(0, 256, (N, 3, 4, 4), dtype=np.uint8),
    "features": generator(0, "features").standard_normal((N, 6)).astype(np.float32),
    "tokens": generator(0, "tokens").integers(0, 50, (N, 5)),
}


def written(folder, x=SAMPLES["features"], **more):
    folder.mkdir(exist_ok=True)
    for name, array in {"x": x, "y": LABELS, **more}.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def on_disk(array):
    """Say whether an array is the mapped file itself, whatever view of it."""
    while array is not None and not isinstance(array, np.memmap):
        array = array.base
    return array is not None


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_folder_is_the_same_data_set_as_its_arrays(kind, indexed, tmp_path):
    x, more = SAMPLES[kind], {"client": LABELS.astype(str), "x_test": SAMPLES[kind][:8], "y_test": LABELS[:8]}
    folder = written(tmp_path / "mine", x, **more)
    same = from_arrays(x, LABELS, x[:8], LABELS[:8], owners=more["client"], kind=kind)
    if indexed:
        index_folder(folder, kind=kind)
    opened = from_folder(folder, kind=kind)
    for name in ("sha256", "kind", "num_classes", "mean", "std", "owner_names"):
        assert getattr(opened, name) == getattr(same, name)
    for name in ("train_x", "train_y", "test_x", "test_y", "owners"):
        np.testing.assert_array_equal(getattr(opened, name), getattr(same, name))
    assert on_disk(opened.train_x)
    assert on_disk(opened.test_x)


def test_an_indexed_folder_opens_without_its_samples_being_read(tmp_path):
    """What was put there later, where nobody looks when it is opened, is seen when it is used."""
    folder = written(tmp_path / "mine", np.zeros((1000, 50), np.float32), y=np.zeros(1000, int))
    index_folder(folder)
    behind = np.load(folder / "x.npy", mmap_mode="r+")
    behind[3] = np.nan  # not one of the 64 that are compared, which are 0, 15, 31, ...
    behind.flush()
    opened = from_folder(folder)
    assert np.isnan(opened.train_x[3]).all()
    with pytest.raises(
        DataError, match="train_x must be finite as float32; got 1 examples that are not, the first at index 3"
    ):
        index_folder(folder)


def test_training_reads_samples_from_the_file_and_never_writes_to_it(tmp_path):
    folder = written(tmp_path / "mine", SAMPLES["image"])
    index_folder(folder)
    before = (folder / "x.npy").read_bytes()
    dataset = load(str(folder / "x.npy"))
    data = federate(dataset, iid(dataset.train_y, 4, generator(0, "partition")), held_out=0.2)
    parts = federation(Experiment.model_validate({"method": {"cohort_size": 2}}), 0, tmp_path)
    simulation = simulate(data, "linear", parts, rounds=2)
    assert np.shares_memory(simulation.engine.trainer.samples["train"].x.numpy(), dataset.train_x)
    assert len(simulation.step(simulation.start()).result.cohort) == 2
    assert (folder / "x.npy").read_bytes() == before


def test_the_folder_may_be_moved(tmp_path):
    index_folder(written(tmp_path / "mine"))
    shutil.move(tmp_path / "mine", tmp_path / "yours")
    assert from_folder(tmp_path / "yours").name == "yours"


# ------------------------------------------------------------------------------------------------ what is refused


def no_y(folder):
    (folder / "y.npy").unlink()


def unknown(folder):
    np.save(folder / "clients.npy", LABELS)


def cut_off(folder):
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-3])


def empty(folder):
    (folder / "x.npy").write_bytes(b"")


def objects(folder):
    np.save(folder / "y.npy", np.array([{}] * N), allow_pickle=True)


def float64(folder):
    np.save(folder / "x.npy", SAMPLES["features"].astype(np.float64))


def fortran(folder):
    np.save(folder / "x.npy", np.asfortranarray(SAMPLES["features"]))


def big_endian(folder):
    np.save(folder / "x.npy", SAMPLES["features"].astype(">f4"))


def short(folder):
    np.save(folder / "y.npy", LABELS[:-1])


def not_finite(folder):
    np.save(folder / "x.npy", SAMPLES["features"] * np.float32(np.inf))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_y, "mine: array 'y' is missing. Known: 'x', 'y', 'client', 'x_test', 'y_test'."),
        (unknown, "mine: unknown array 'clients'. Did you mean 'client'?"),
        (cut_off, "x.npy: must be a complete .npy file without Python objects; got: "),
        (empty, "x.npy: must be a complete .npy file without Python objects; got: "),
        (objects, "y.npy: must be a complete .npy file without Python objects; got: "),
        (float64, "x.npy: must be float32, uint8 or int64 in C order to be mapped; got float64. Convert it."),
        (fortran, "x.npy: must be float32, uint8 or int64 in C order to be mapped; got float32, in Fortran order."),
        (big_endian, "x.npy: must be float32, uint8 or int64 in C order to be mapped; got >f4."),
        (short, "data set 'mine': train_y must be one label per example, shape (40,); got shape (39,)"),
        (not_finite, "data set 'mine': train_x must be finite as float32; got 40 examples that are not"),
    ],
)
@pytest.mark.parametrize("opening", [from_folder, index_folder])
def test_what_is_wrong_with_a_folder_is_said(damage, said, opening, tmp_path):
    folder = written(tmp_path / "mine")
    damage(folder)
    with pytest.raises(DataError) as refused:
        opening(folder)
    assert said in str(refused.value)
    assert not (folder / "dataset.json").exists()


def longer(folder):
    written(folder, np.ones((N + 1, 6), np.float32), y=np.zeros(N + 1, int))


def another(folder):
    np.save(folder / "x.npy", SAMPLES["features"] + np.float32(1))


def other_labels(folder):
    np.save(folder / "y.npy", LABELS[::-1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (longer, "x.npy: was changed after indexing"),
        (another, "x.npy: was changed"),
        (other_labels, "y.npy: was changed"),
    ],
)
def test_a_folder_that_was_changed_after_it_was_indexed_is_refused(change, said, tmp_path):
    folder = written(tmp_path / "mine")
    index_folder(folder)
    change(folder)
    with pytest.raises(DataError, match=said):
        from_folder(folder)
    index_folder(folder)
    from_folder(folder)


def test_a_file_that_came_or_went_after_it_was_indexed_is_named(tmp_path):
    folder = written(tmp_path / "mine", client=LABELS)
    index_folder(folder)
    (folder / "client.npy").unlink()
    with pytest.raises(DataError, match=r"client\.npy: was changed after indexing"):
        from_folder(folder)


@pytest.mark.parametrize("note", ["", "{}", "[]", "{"])
def test_a_note_that_cannot_be_read_is_not_passed_over(note, tmp_path):
    folder = written(tmp_path / "mine")
    (folder / "dataset.json").write_text(note)
    with pytest.raises(DataError, match=r"dataset\.json: must be an index of the folder; got: .*\. Run index_folder"):
        from_folder(folder)


def test_options_that_contradict_the_index_are_refused(tmp_path):
    folder = written(tmp_path / "mine")
    index_folder(folder, num_classes=7)
    assert from_folder(folder).num_classes == from_folder(folder, num_classes=7, kind="features").num_classes == 7
    with pytest.raises(DataError, match="num_classes must be 7, as in the index; got 4"):
        from_folder(folder, num_classes=4)


def test_loading_names_the_folder_by_its_samples(tmp_path):
    folder = written(tmp_path / "mine", num := SAMPLES["tokens"])
    assert load(str(folder / "x.npy"), kind="tokens").train_x.shape == num.shape
    with pytest.raises(ConfigError, match=r"must be the x\.npy of a folder of arrays; got 'y\.npy'"):
        load(str(folder / "y.npy"))
    with pytest.raises(ConfigError, match="Unknown option 'clases'"):
        load(str(folder / "x.npy"), clases=3)
    with pytest.raises(DataError, match=r"must be a folder with x\.npy and y\.npy; folder not found"):
        load(str(tmp_path / "nowhere" / "x.npy"))


def test_the_note_is_json_that_says_what_was_found(tmp_path):
    made = index_folder(written(tmp_path / "mine", SAMPLES["image"]))
    note = json.loads((tmp_path / "mine" / "dataset.json").read_text())
    assert (note["sha256"], note["kind"], note["num_classes"]) == (made.sha256, "image", 4)
    assert note["mean"] == list(made.mean)
    assert note["arrays"]["train_x"]["shape"] == [N, 3, 4, 4]

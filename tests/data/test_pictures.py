"""Pictures and tensors become the same arrays at every door, or are refused in words."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedreach._util.errors import DataError
from fedreach._util.streams import generator
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.images import as_shown, stack_inputs

Image = pytest.importorskip("PIL.Image")

OWNERS = ["a", "b", "c"] * 4
LABELS = [0, 1] * 6
PIXELS = generator(0, "pictures").integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)


def pictures(mode: str) -> list[Image.Image]:
    """Return twelve pictures of a mode."""
    if mode in ("I;16", "I", "F"):
        types = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
        return [Image.fromarray(each[..., 0].astype(types[mode])) for each in PIXELS]
    plain = [Image.fromarray(each) for each in PIXELS]
    return [each.quantize(8).convert(mode) if mode in ("P", "PA") else each.convert(mode) for each in plain]


class Pairs:
    """What `datasets` has, as far as it is asked for."""

    def __init__(self, inputs, labels):
        self.held = {"image": inputs, "label": labels, "who": OWNERS}
        self.column_names = list(self.held)

    def __len__(self):
        return len(OWNERS)

    def __getitem__(self, key):
        return self.held[key] if isinstance(key, str) else {name: each[key] for name, each in self.held.items()}


def by_client(values):
    return {who: [each for each, owner in zip(values, OWNERS, strict=True) if owner == who] for who in "abc"}


DOORS: dict[str, Callable] = {
    "from_torch": lambda x, y, **said: FederatedData.from_torch(list(zip(x, y, strict=True)), clients=OWNERS, **said),
    "from_huggingface": lambda x, y, **said: FederatedData.from_huggingface(Pairs(x, y), client="who", **said),
    "from_clients": lambda x, y, **said: FederatedData.from_clients(
        {who: (own, by_client(y)[who]) for who, own in by_client(x).items()}, **said
    ),
    "from_clients, Datasets": lambda x, y, **said: FederatedData.from_clients(
        by_client(list(zip(x, y, strict=True))), **said
    ),
}
EVERY_DOOR = pytest.mark.parametrize("door", DOORS)


def seen(data: FederatedData) -> list[bytes]:
    """Return the samples, whatever their order."""
    return sorted(each.tobytes() for each in data.dataset.train_x)


def wanted(shown: list[Image.Image]) -> list[bytes]:
    arrays = [np.asarray(each) for each in shown]
    return sorted(
        np.ascontiguousarray(np.moveaxis(each, -1, 0) if each.ndim == 3 else each).tobytes() for each in arrays
    )


@EVERY_DOOR
@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        *(("L", "L"), ("1", "L"), ("LA", "L"), ("La", "L")),
        *(("RGB", "RGB"), ("P", "RGB"), ("PA", "RGB"), ("RGBA", "RGB"), ("RGBa", "RGB")),
        *(("CMYK", "RGB"), ("YCbCr", "RGB"), ("HSV", "RGB")),
    ],
)
def test_a_picture_is_what_it_looks_like(door, mode, shown):
    given = pictures(mode)
    data = DOORS[door](given, LABELS)
    through = {"PA": "RGBA", "La": "LA", "RGBa": "RGBA"}.get(mode, mode)
    assert data.dataset.kind == "image"
    assert seen(data) == wanted([each.convert(through).convert(shown) for each in given])


@EVERY_DOOR
@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_what_is_transparent_is_refused(door, mode):
    given = pictures(mode)
    if mode == "P":
        given[7].info["transparency"] = given[7].getpixel((0, 0))
    else:
        given[7].putalpha(128)
    with pytest.raises(DataError, match=rf"must not have transparent pixels; got mode {mode}.*Image.alpha_composite"):
        DOORS[door](given, LABELS)


@EVERY_DOOR
@pytest.mark.parametrize("mode", ["I;16", "I", "F", "LAB"])
def test_numbers_without_a_scale_are_refused_unless_they_are_features(door, mode):
    with pytest.raises(DataError, match=rf"got mode {mode}, which has no standard scale\. Pass arrays of floats"):
        DOORS[door](pictures(mode), LABELS)
    if mode != "LAB":
        data = DOORS[door](pictures(mode), LABELS, kind="features")
        assert data.dataset.train_x.max() == PIXELS[..., 0].max()


@EVERY_DOOR
@pytest.mark.parametrize(("one", "other"), [("RGB", "L"), ("P", "1"), ("L", "CMYK")])
def test_gray_among_colors_is_refused(door, one, other):
    given = [*pictures(one)[:6], *pictures(other)[6:]]
    with pytest.raises(DataError, match=r"must have the same size and mode.*image.convert\('RGB'\)"):
        DOORS[door](given, LABELS)


@EVERY_DOOR
def test_colors_of_several_modes_are_one_data_set(door):
    given = [*pictures("RGB")[:4], *pictures("P")[4:9], *pictures("CMYK")[9:]]
    data = DOORS[door](given, LABELS)
    assert seen(data) == wanted([each.convert("RGB") for each in given])


@EVERY_DOOR
def test_pictures_of_other_sizes_are_refused(door):
    given = pictures("RGB")
    given[9] = given[9].resize((6, 6))
    with pytest.raises(DataError, match=r"the first has RGB \(4, 5\), and example \d+ has RGB \(6, 6\)\. Convert them"):
        DOORS[door](given, LABELS)


@EVERY_DOOR
def test_a_picture_in_color_is_no_mask(door):
    with pytest.raises(DataError, match=r"must be an image of mode L, P, I or 1 whose pixels are classes; got RGB"):
        DOORS[door](pictures("RGB"), pictures("RGB"))


@EVERY_DOOR
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32])
def test_tensors_with_gradients_and_narrow_floats_are_taken(door, dtype):
    exact = generator(0, "tensors").integers(0, 16, (12, 3)).astype(np.float32)
    tensors = [torch.tensor(each).to(dtype).requires_grad_(dtype != torch.float8_e4m3fn) for each in exact]
    labels = [torch.tensor(float(label), requires_grad=True) for label in LABELS]
    data = DOORS[door](tensors, labels)
    assert seen(data) == sorted(each.tobytes() for each in exact)
    assert data.dataset.num_classes == 0


def test_a_list_of_pictures_is_an_array():
    data = from_arrays(pictures("P"), LABELS, pictures("P"), LABELS)
    assert data.train_x.shape == data.test_x.shape == (12, 3, 5, 4)


@pytest.mark.parametrize("as_format", [None, "numpy", "torch"])
def test_a_palette_of_hugging_face_is_no_gray(as_format):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    held = {"image": pictures("P"), "label": LABELS}
    ds = datasets.Dataset.from_dict(held, features=features).add_column("who", OWNERS).with_format(as_format)
    data = FederatedData.from_huggingface(ds, client="who")
    assert seen(data) == wanted([each.convert("RGB") for each in pictures("P")])
    raw = ds.with_format(None).cast_column("image", datasets.Image(decode=False))
    with pytest.raises(DataError, match=r"got a dictionary. Decode images with ds.cast_column"):
        FederatedData.from_huggingface(raw, client="who")


@pytest.mark.parametrize("label", [None, {"boxes": []}])
def test_a_sample_without_a_label_is_named(label):
    with pytest.raises(DataError, match="the label of example 5 must be a class or a number"):
        DOORS["from_torch"](pictures("L"), [label if number == 5 else 1 for number in range(12)])


def test_sparse_tensors_are_read():
    array = stack_inputs([torch.eye(3).to_sparse()], 1, "toy")
    np.testing.assert_array_equal(array[0], np.eye(3))


def test_a_picture_without_changes_is_not_copied_into_another_mode():
    for mode in ("L", "RGB"):
        assert as_shown(pictures(mode)[0], "it").tobytes() == pictures(mode)[0].tobytes()

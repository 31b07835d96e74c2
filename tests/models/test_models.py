"""The models have the sizes of their papers, refuse data they cannot take, and begin as the seed says."""

import pytest
import torch
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.engines.models.flat import flatten
from fedreach.engines.models.networks import MODELS, build


def size_of(name, shape, classes, **options):
    return sum(p.numel() for p in build(name, shape, classes, seed=0, options=options).parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "expected"),
    [
        ("linear", (1, 28, 28), 10, {}, 7850),  # 784 * 10 + 10
        ("mlp", (1, 28, 28), 10, {"hidden": [200, 200]}, 199_210),  # "2NN", McMahan et al. 2017, section 3
        ("mlp", (1, 28, 28), 10, {}, 785 * 200 + 201 * 100 + 101 * 10),
        ("mlp", (4,), 3, {"hidden": []}, 15),
        ("lenet", (3, 32, 32), 10, {}, 62_006),  # the usual LeNet for CIFAR
        ("cnn", (3, 32, 32), 10, {}, 64 * 76 + 64 * 1601 + 384 * 1601 + 192 * 385 + 10 * 193),
        ("cnn", (3, 32, 32), 100, {}, 797_962 + 90 * 193),
        ("resnet20", (3, 32, 32), 10, {}, 269_722),  # He et al. 2016, table 6: 0.27M
        ("resnet20", (3, 32, 32), 10, {"norm": "batch"}, 269_722),
        # Embedding 80 * 8; each layer four gates with weights of input and state and, in torch, two biases.
        ("lstm", (80,), 80, {"hidden": 256}, 640 + 1024 * (8 + 256 + 2) + 1024 * (256 + 256 + 2) + 80 * 257),
        ("lstm", (80,), 80, {}, 640 + 400 * (8 + 100 + 2) + 400 * (100 + 100 + 2) + 80 * 101),
    ],
)
def test_parameters_are_as_many_as_the_paper_says(name, shape, classes, options, expected):
    assert size_of(name, shape, classes, **options) == expected


SMALL = {
    "linear": ((2, 3), {}),
    "mlp": ((2, 3), {"hidden": [4]}),
    "lenet": ((1, 16, 20), {}),
    "cnn": ((1, 16, 20), {}),
    "resnet20": ((2, 7, 9), {"width": 2}),
    "lstm": ((6,), {"hidden": 4}),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_maps_a_batch_to_one_logit_per_class(name):
    shape, options = SMALL[name]
    module = build(name, shape, 5, seed=0, options=options)
    x = torch.zeros(3, *shape, dtype=torch.int64 if name == "lstm" else torch.float32)
    assert module(x).shape == (3, 5)


@pytest.mark.parametrize("name", MODELS)
def test_the_first_numbers_depend_on_the_seed_only_and_torchs_generator_is_put_back(name):
    shape, options = SMALL[name]
    vectors = []
    for disturbance, seed in ((1, 0), (2, 0), (3, 1)):
        torch.manual_seed(disturbance)
        before = torch.random.get_rng_state()
        vectors.append(flatten(build(name, shape, 5, seed=seed, options=options)))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_the_shortcuts_of_resnet_pass_the_image_on(norm):
    # With zero convolutions in every block, only the shortcuts are left: subsampled twice, and channel padding of
    # width / 2 and width on either side puts the stem's two channels in the middle of the eight.
    module = build("resnet20", (1, 8, 8), 3, seed=0, options={"width": 2, "norm": norm}).eval()
    for block in list(module)[3:12]:
        for layer in (block.first, block.second):
            nn.init.zeros_(layer.weight)
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    stem = module[:3](x)
    features = module[3:12](stem)
    assert features.shape == (2, 8, 2, 2)
    assert torch.equal(features[:, 3:5], stem[..., ::4, ::4])
    assert not features[:, [0, 1, 2, 5, 6, 7]].any()


def test_lstm_predicts_from_the_whole_window_in_its_order():
    module = build("lstm", (4,), 5, seed=0, options={"hidden": 4})
    windows = torch.tensor([[1, 2, 3, 4], [2, 2, 3, 4], [1, 2, 3, 2], [1, 3, 2, 4]])
    outputs = module(windows)
    assert len({tuple(row.tolist()) for row in outputs}) == 4  # first, last and order of the middle all matter


@pytest.mark.parametrize(
    ("name", "shape", "options", "rule"),
    [
        ("lenet", (64,), {}, r"'lenet' must be images .* got \(64,\)\. Use 'linear' or 'mlp'"),
        ("lenet", (1, 8, 8), {}, r"at least 16 x 16; got \(1, 8, 8\)"),
        ("cnn", (3, 32, 15), {}, r"'cnn' must be images .* got \(3, 32, 15\)"),
        ("resnet20", (64,), {}, r"'resnet20' must be images .* got \(64,\)"),
        ("resnet20", (3, 8, 8), {"norm": "layer"}, r"resnet20\.norm must be 'group' or 'batch'; got 'layer'"),
        ("resnet20", (3, 8, 8), {"width": 3}, r"resnet20\.width must be .* even for norm 'group'; got 3"),
        ("lstm", (1, 28, 28), {}, r"'lstm' must be windows of tokens .* got \(1, 28, 28\)"),
        ("mpl", (4,), {}, r"got 'mpl'\. Did you mean 'mlp'\?"),
        ("mlp", (4,), {"hiden": [3]}, r"'mlp' has no option 'hiden'\. Did you mean 'hidden'\?"),
        ("mlp", (4,), {"num_classes": 3}, r"'mlp' has no option 'num_classes'"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_rule(name, shape, options, rule):
    with pytest.raises(ConfigError, match=rule):
        build(name, shape, 10, seed=0, options=options)


class Mine(nn.Module):
    def __init__(self, num_classes: int, width: int):
        super().__init__()
        self.layer = nn.Linear(width, num_classes)


def test_a_class_of_the_user_is_handed_what_it_asks_for():
    module = build(Mine, (4,), 3, seed=0, options={"width": 7})
    assert module.layer.weight.shape == (3, 7)


def test_a_model_of_the_user_that_cannot_be_built_says_why():
    with pytest.raises(ConfigError, match="'Mine' cannot be built: missing a required argument: 'width'"):
        build(Mine, (4,), 3, seed=0)
    with pytest.raises(ConfigError, match=r"must return a torch\.nn\.Module; got list"):
        build(lambda sample_shape: [*sample_shape], (4,), 3, seed=0)

"""Labels at every position and several inputs: FedAvg is that of a plain torch loop, to rounding."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.federated import FederatedData
from fedreach.data.several import IGNORED, next_token_labels
from fedreach.deploy.saved import load
from fedreach.engines.batches import batch_plan
from fedreach.engines.choice import build_engine
from fedreach.engines.models.flat import Layout
from fedreach.engines.protocols import Task
from fedreach.engines.trainer import shares_of_positions
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.metrics import Accuracy, BalancedAccuracy, Perplexity
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import LabelSmoothing
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples
from fedreach.runs.simulation import Simulation

WORDS, LENGTH, ROUNDS = 11, 6, 3
NAMES = ("a", "b", "c", "d", "e")
SIZES = (9, 7, 5, 6, 8)


class Causal(nn.Module):
    """A transformer that sees what came before, with classes last, as Hugging Face's."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, WORDS)

    def forward(self, x):
        before = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        seen = self.block(self.words(x) + self.places.weight, src_mask=before, is_causal=True)
        return self.last(seen)


class UNet(nn.Module):
    """Two levels with a bridge, and classes first, as torch's losses take them."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        first = torch.relu(self.down(x))
        deep = torch.relu(self.deep(F.max_pool2d(first, 2)))
        return self.out(torch.cat([first, self.up(deep)], 1))


class Two(nn.Module):
    """An image and a row of a table, in this order."""

    def __init__(self):
        super().__init__()
        self.look, self.read, self.last = nn.Conv2d(1, 2, 3), nn.Linear(3, 4), nn.Linear(12, 3)

    def forward(self, image, row):
        return self.last(torch.cat([torch.relu(self.look(image)).flatten(1), torch.relu(self.read(row))], 1))


class Masked(nn.Module):
    """As BERT: words, and which of them are there; by keyword alone."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, 8), nn.Linear(8, 3)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, *, input_ids, attention_mask):
        seen = self.block(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        there = attention_mask.unsqueeze(-1).float()
        return self.last((seen * there).sum(1) / there.sum(1))


def texts(rng, size):
    ids, there = rng.integers(0, WORDS, (size, LENGTH)), np.ones((size, LENGTH), np.int64)
    for row, end in zip(there, rng.integers(2, LENGTH + 1, size), strict=True):
        row[end:] = 0
    return ids, there


def next_tokens(rng, size):
    ids, there = texts(rng, size)
    return ids, next_token_labels(ids, there)


def pixels(rng, size):
    masks = rng.integers(0, 3, (size, 8, 4))
    masks[rng.random(masks.shape) < 0.4] = IGNORED
    masks[:, 0, 0] = 1
    masks[: size // 2, 1:] = IGNORED  # examples have unequally many labels
    return rng.normal(size=(size, 1, 8, 4)).astype(np.float32), masks


def image_and_row(rng, size):
    parts = rng.normal(size=(size, 1, 4, 4)).astype(np.float32), rng.normal(size=(size, 3)).astype(np.float32)
    return parts, rng.integers(0, 3, size)


def masked_texts(rng, size):
    ids, there = texts(rng, size)
    return {"input_ids": ids, "attention_mask": there}, rng.integers(0, 3, size)


CASES = {
    "next token": (Causal, next_tokens, {"kind": "tokens", "num_classes": WORDS}),
    "segmentation": (UNet, pixels, {"num_classes": 3}),
    "two inputs": (Two, image_and_row, {"num_classes": 3}),
    "attention mask": (Masked, masked_texts, {"num_classes": 3}),
}


def clients_of(make, sizes=SIZES):
    rng = generator(0, "positions")
    return {name: make(rng, size) for name, size in zip(NAMES, sizes, strict=True)}


def federation(**parts):
    local = LocalSGD(lr=0.3, epochs=2, batch_size=3)
    made = Federation(Full(), ByExamples(), FedAvg(), local, Average(), cohort_size=3, seed=5)
    return replace(made, **parts)


def simulated(data, module, **parts):
    made = federation(**parts)
    task = Task.of(module, data, made)
    return Simulation(made, data, build_engine("auto", task), rounds=ROUNDS)


def rows_of(inputs, index):
    """Return what a module is called with, as (positional, by keyword)."""
    if isinstance(inputs, dict):
        return (), {name: torch.from_numpy(part[index]) for name, part in inputs.items()}
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(torch.from_numpy(part[index]) for part in parts), {}


def classes_first(outputs, y):
    return outputs.movedim(-1, 1) if y.ndim == 2 else outputs  # texts have classes last


def fedavg_by_hand(data, module, clients, output=lambda returned: returned):
    """Train by `torch.nn.functional.cross_entropy` with `ignore_index`, and average by the number of examples."""
    local, seed = federation().local, federation().seed
    begins = dict(zip(NAMES, np.cumsum(SIZES) - SIZES, strict=True))
    for round_ in range(1, ROUNDS + 1):
        trained, weights, losses = [], [], []
        for client in data.population.participants.tolist():
            own, (inputs, labels) = copy.deepcopy(module).train(), clients[NAMES[client]]
            rows = data.train[client] - begins[NAMES[client]]
            optimizer, total, seen = torch.optim.SGD(own.parameters(), lr=local.lr), 0.0, 0
            for batch in batch_plan(seed, round_, client, len(rows), local):
                index = rows[batch[batch >= 0]]
                given, named = rows_of(inputs, index)
                y = torch.from_numpy(labels[index])
                optimizer.zero_grad()
                loss = F.cross_entropy(classes_first(output(own(*given, **named)), y), y, ignore_index=IGNORED)
                loss.backward()
                optimizer.step()
                counted = int((y != IGNORED).sum())
                total, seen = total + loss.item() * counted, seen + counted
            trained.append(own.state_dict())
            weights.append(len(rows))
            losses.append(total / seen)
        share = np.array(weights) / sum(weights)
        mean_loss = float(share @ losses)
        mean = {key: sum(w * state[key] for w, state in zip(share, trained, strict=True)) for key in trained[0]}
        module.load_state_dict(mean)
    return module, mean_loss


def scored_by_hand(data, module, clients, output=lambda returned: returned):
    """Return accuracy and loss of unseen clients: of each over its labeled positions, and the mean over clients."""
    found = []
    for client in data.population.unseen.tolist():
        inputs, labels = clients[NAMES[client]]
        given, named = rows_of(inputs, np.arange(len(labels)))
        y = torch.from_numpy(labels)
        with torch.no_grad():
            outputs = classes_first(output(module.eval()(*given, **named)), y)
        labeled = y != IGNORED
        right = (outputs.argmax(1) == y)[labeled].double().mean().item()
        found.append((right, F.cross_entropy(outputs, y, ignore_index=IGNORED).item()))
    return np.mean(found, axis=0)


def check_against_torch(module, clients, options, output=None):
    data = FederatedData.from_clients(clients, participants=["a", "b", "c"], **options)
    first, wrapped = copy.deepcopy(module), copy.deepcopy(module)
    if output is not None:
        wrapped.register_forward_hook(lambda _, given, returned: output(returned))
    simulation = simulated(data, wrapped)
    state = simulation.start()
    for _ in range(ROUNDS):
        done = simulation.step(state)
        state = done.state
    by_hand, loss = fedavg_by_hand(data, first, clients, output or (lambda returned: returned))
    layout = Layout.of(by_hand)
    theirs = layout.views(torch.from_numpy(state.models[0]))
    for name, tensor in by_hand.state_dict().items():
        if name in theirs:
            torch.testing.assert_close(theirs[name], tensor, atol=1e-5, rtol=1e-5)
    assert done.result.train_loss == pytest.approx(loss, abs=1e-5)
    columns, _ = Evaluator(simulation.engine, data, metrics=[Accuracy()]).evaluate(state.models, ROUNDS)
    right, loss = scored_by_hand(data, by_hand, clients, output or (lambda returned: returned))
    assert columns["unseen_accuracy"] == pytest.approx(right, abs=1e-6)
    assert columns["unseen_loss"] == pytest.approx(loss, abs=1e-5)
    return data, simulation, state


@pytest.mark.parametrize("case", CASES)
def test_training_and_scores_are_those_of_a_plain_torch_loop(case):
    model, make, options = CASES[case]
    torch.manual_seed(3)
    check_against_torch(model(), clients_of(make), options)


@pytest.mark.slow
def test_a_small_gpt2_of_hugging_face_learns_as_by_hand():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": WORDS, "use_cache": False}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drops))
    clients = clients_of(next_tokens)
    check_against_torch(model, clients, CASES["next token"][2], lambda returned: returned.logits)


@pytest.mark.slow
def test_a_small_bert_of_hugging_face_gets_its_attention_mask():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "num_labels": 3}
    drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    torch.manual_seed(3)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **drops))
    clients = clients_of(masked_texts)
    check_against_torch(model, clients, CASES["attention mask"][2], lambda returned: returned.logits)


def test_masked_positions_change_nothing():
    """The inputs and labels of masked positions are others, and no bit of the model or of its scores is."""
    torch.manual_seed(3)
    module, clients = PerPixel(), clients_of(pixels)
    others = {name: (np.where((y == IGNORED)[:, None], 100 * x, x), y) for name, (x, y) in clients.items()}
    found = []
    for each in (clients, others):
        data = FederatedData.from_clients(each, participants=["a", "b", "c"], num_classes=3)
        simulation = simulated(data, copy.deepcopy(module))
        state = simulation.step(simulation.start()).state
        metrics = [BalancedAccuracy(), Perplexity()]
        columns, _ = Evaluator(simulation.engine, data, metrics=metrics).evaluate(state.models, 1)
        found.append((state.models, columns))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


class PerPixel(nn.Module):
    """Looks at each pixel by itself."""

    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(1, 3, 1)

    def forward(self, x):
        return self.only(x)


@pytest.fixture
def trained():
    torch.manual_seed(3)
    data = FederatedData.from_clients(clients_of(pixels), participants=["a", "b", "c"], num_classes=3)
    simulation = simulated(data, UNet())
    return data, simulation, simulation.step(simulation.start()).state.models


def test_metrics_are_over_labeled_positions(trained):
    data, simulation, models = trained
    metrics = [BalancedAccuracy(), Perplexity()]
    columns, lines = Evaluator(simulation.engine, data, metrics=metrics).evaluate(models, 1)
    balanced, perplexities = [], []
    for client in data.population.unseen.tolist():
        index = np.sort(np.concatenate([data.train[client], data.held_out[client]]))
        y = data.dataset.train_y[index]
        logits = simulation.engine.logits(models[0], "true", index)
        assert logits.shape == (*y.shape, 3)
        labels, scores = y[y != IGNORED], logits[y != IGNORED]
        balanced.append(np.mean([(scores[labels == k].argmax(1) == k).mean() for k in np.unique(labels)]))
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        perplexities.append(np.exp(-log_p[np.arange(len(labels)), labels].mean()))
    assert columns["unseen_balanced_accuracy"] == pytest.approx(np.mean(balanced), abs=1e-6)
    assert columns["unseen_perplexity"] == pytest.approx(np.mean(perplexities), rel=1e-5)
    assert [line["examples"] for line in lines if line["population"] == "unseen"] == [[6, 8]]


def test_a_probe_is_over_labeled_positions(trained):
    data, simulation, models = trained
    found = simulation.engine.training_loss(models[0], np.array([0, 1]))
    smoothed = build_engine("sequential", replace(simulation.engine.task, loss=LabelSmoothing(0.1)))
    others = smoothed.training_loss(models[0], np.array([0, 1]))
    for client, loss, other in zip((0, 1), found, others, strict=True):
        index = data.train[client]
        y = torch.from_numpy(data.dataset.train_y[index])
        outputs = torch.from_numpy(simulation.engine.logits(models[0], "train", index)).movedim(-1, 1)
        assert loss == pytest.approx(F.cross_entropy(outputs, y, ignore_index=IGNORED).item(), abs=1e-6)
        expected = F.cross_entropy(outputs, y, ignore_index=IGNORED, label_smoothing=0.1).item()
        assert other == pytest.approx(expected, abs=1e-6)


def test_shares_are_of_labeled_positions():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]], [[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]])
    labels = torch.tensor([[0, IGNORED, 1], [0, IGNORED, IGNORED]])
    right, loss = shares_of_positions(logits, labels)
    assert right.tolist() == [0.5, 1.0]
    sure = np.log1p(np.exp(-2.0))
    np.testing.assert_allclose(loss.numpy(), [sure + 1.0, sure], rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["native", "manual", "vmap"])
def test_other_engines_decline_in_words(case, name):
    model, make, options = CASES[case]
    data = FederatedData.from_clients(clients_of(make), participants=["a", "b"], **options)
    task = Task.of(model(), data, federation())
    with pytest.warns(UserWarning, match=f"engine sequential: {name} .*(labels at every position|several inputs)"):
        assert build_engine(name, task).name == "sequential"
    assert build_engine("auto", task).name == "sequential"


class Swapped(nn.Module):
    def __init__(self, positions, classes):
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, 4), nn.Linear(4, classes)
        self.positions = positions

    def forward(self, x):
        return self.last(self.words(x))[:, : self.positions]


@pytest.mark.parametrize(
    ("positions", "classes", "told", "message"),
    [
        (1, WORDS, WORDS, r"11 numbers per position, \(2, 6, 11\) or \(2, 11, 6\); got \(2, 1, 11\)"),
        (LENGTH, WORDS + 1, WORDS, r"got \(2, 6, 12\)\. .*Set num_classes"),
        (LENGTH, LENGTH, LENGTH, r"must be clear from the shape .*got \(m, 6, 6\).*num_classes = 7"),
    ],
)
def test_a_model_with_other_outputs_is_refused(positions, classes, told, message):
    data = FederatedData.from_clients(
        {name: (x, np.where(y < told, y, IGNORED)) for name, (x, y) in clients_of(whole_texts).items()},
        participants=["a", "b"],
        kind="tokens",
        num_classes=told,
    )
    with pytest.raises(ConfigError, match=message):
        simulated(data, Swapped(positions, classes))


def whole_texts(rng, size):
    ids = rng.integers(0, WORDS, (size, LENGTH))
    labels = next_token_labels(ids)
    labels[:, 0] = 0  # so that each text has a label below 6
    return ids, labels


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"selection": "kl_filter"}, "selection .* needs the label counts"),
        ({"weighting": "entropy"}, "weighting .* needs the label counts"),
        ({"weighting": "disagreement"}, "weighting .* measures one row of outputs per example"),
        ({"adaptation": "label_shift"}, "adaptation .* estimates the class of an example"),
        ({"loss": "logit_adjusted"}, "loss .* shifts outputs by label counts"),
        ({"loss": "moon"}, "loss .* reads one output per example"),
    ],
)
def test_parts_that_have_no_meaning_at_positions_are_refused_before_the_first_round(method, message, tmp_path):
    data = FederatedData.from_clients(clients_of(next_tokens), **CASES["next token"][2])
    with pytest.raises(ConfigError, match=message):
        fr.compare(data, {"one": method}, rounds=1, seeds=1, model=Causal, out=tmp_path / "run")
    assert not list(tmp_path.rglob("rounds.jsonl"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_loaded_and_predicts_what_it_was_scored_by(case, tmp_path):
    model, make, options = CASES[case]
    clients = clients_of(make)
    data = FederatedData.from_clients(clients, participants=["a", "b", "c"], **options)
    rows = [list(fr.run(data, model=model, rounds=2, seed=1, out=tmp_path / name)) for name in ("one", "two")]
    assert (tmp_path / "one/last.safetensors").read_bytes() == (tmp_path / "two/last.safetensors").read_bytes()
    loaded, (inputs, labels) = load(tmp_path / "one"), clients["e"]
    predicted = loaded.predict(inputs)
    assert predicted.shape == labels.shape
    assert loaded.predict_proba(inputs).shape == (*labels.shape, loaded.num_classes)
    scores = []
    for name in ("d", "e"):
        inputs, labels = clients[name]
        scores.append((loaded.predict(inputs) == labels)[labels != IGNORED].mean())
    assert rows[0][-1]["unseen_accuracy"] == pytest.approx(np.mean(scores), abs=1e-9)
    with pytest.raises(ConfigError, match="requires a model with one input and one label per example"):
        loaded.save(tmp_path / "model.pt2")

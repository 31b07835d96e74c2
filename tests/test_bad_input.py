"""Whatever a user gets wrong ends with one message: where, the rule, what arrived, what to do. Exit code 2 or 3."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from .conftest import TINY, Command, exact, rows

Refused = Callable[..., str]


# ------------------------------------------------------------------------------------------- the experiment file


@pytest.mark.parametrize(
    ("line", "insert", "message"),
    [
        (1, 'nmae = "x"', "tiny.toml:1: nmae: unknown key. Did you mean 'name'?"),
        (15, "[enigne]", "enigne: unknown key. Did you mean 'engine'?"),
        (18, "batchsize = 3", "tiny.toml:18: local.batchsize: unknown key. Did you mean 'batch_size'?"),
        (7, "alhpa = 3.0", "tiny.toml:7: partition.alhpa: partition 'dirichlet_by_class' has no such option. Did you"),
        (15, "hiden = [3]", "tiny.toml:15: model.hiden: model 'linear' has no such option."),
        (27, 'wieghting = "equal"', "tiny.toml:27: methods.uniform.wieghting: unknown key. Did you mean 'weighting'?"),
        (27, "local.epoch = 2", "tiny.toml:27: methods.uniform.local.epoch: unknown key. Did you mean 'epochs'?"),
        (
            27,
            'selection = { name = "power_of_choice", candidate = 4 }',
            "tiny.toml:27: methods.uniform.selection.candidate: selection 'power_of_choice' has no such option. "
            "Did you mean 'candidates'?",
        ),
        (27, 'solver = "fedproks"', "tiny.toml:27: methods.uniform.solver.name: there is no solver 'fedproks'."),
    ],
)
def test_a_misspelt_key_is_answered_with_file_line_and_the_nearest_name(
    refused: Refused, home: Path, line: int, insert: str, message: str
) -> None:
    lines = TINY.splitlines()
    (home / "tiny.toml").write_text("\n".join([*lines[: line - 1], insert, *lines[line - 1 :]]), encoding="utf-8")
    said = refused(2, "run", "tiny.toml")
    assert message in said
    assert said.startswith("1 mistake in tiny.toml:")
    assert not (home / "runs").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("local.rate=-0.1", "local.rate: must be greater than 0; got -0.1 (float)."),
        ("local.rate=fast", "local.rate: must be a number; got 'fast' (str)."),
        ("local.rate=nan", "local.rate: must be "),
        ("rounds='4'", "rounds: must be an integer; got '4' (str)."),
        ("rounds=0", "rounds: must be greater than or equal to 1; got 0 (int)."),
        ("seeds=[]", "seeds: must be a list of at least 1; got [] (list)."),
        ("seeds=[3,3]", "seeds: must not repeat a seed; got [3, 3]."),
        ("local=3", "local: must be a table; got 3 (int)."),
        ("model=3", "model: must be a name, or a table with a `name`; got 3 (int)."),
        ("methods.uniform=3", "methods.uniform: must be a table; got 3 (int)."),
        ("population.participants=all", "population.participants: must be an integer or a list; got 'all' (str)."),
        ("population.participants=13", "must be at most the 12 clients of the partition; got 13."),
        ("method.cohort=7", "method.cohort: must be at most the 6 participants; got 7. Lower it or let more take"),
        ("methods.entropy.cohort=7", "methods.entropy.cohort: must be at most the 6 participants; got 7."),
        ("engine.name=stackd", "must be 'auto', 'native', 'chain', 'sequential', 'stacked' or 'compiled'; got"),
        ("partition.alpha=-1.0", "alpha of dirichlet_by_class must be a number from 1e-100 to 1e+100; got -1.0."),
        ("partition.name=dirichlet", "there is no partition 'dirichlet'. Did you mean 'dirichlet_by_class'?"),
        ("data=digts", "there is no data 'digts'. Did you mean 'digits'?"),
        ("model.name=lineer", "there is no model 'lineer'. Did you mean 'linear'?"),
        ("method.selection=unifrom", "there is no selection 'unifrom'. Did you mean 'uniform'?"),
        (
            "method.selection={candidates=3}",
            "method.selection.name: must be given; `fedreach list` shows what there is.",
        ),
        ("method.weighting=entropie", "there is no weighting 'entropie'. Did you mean 'entropy'?"),
        ("method.solver={name='fedprox',mu=-1.0}", "FedProx.mu must be not negative; got -1.0."),
        ("population.participation=bernoulli", "participation.act_prob: participation 'bernoulli' needs this option."),
        ("population.participation={name='bernoulli',act_prob=2.0}", "Bernoulli.act_prob must be in (0, 1]; got 2.0."),
        ("baseline=unifrom", "baseline: must name a method; got 'unifrom'. Did you mean 'uniform'?"),
        ("methods.a/b.cohort=2", "methods.a/b: a method's name becomes a folder"),
        ("population.held_out=1.0", "population.held_out: must be less than 1; got 1.0 (float)."),
    ],
)
def test_a_wrong_value_is_refused_before_data_are_read(refused: Refused, home: Path, option: str, message: str) -> None:
    said = refused(2, "compare", "tiny.toml", "--set", option)
    assert message in said
    assert not (home / "runs").exists()


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(refused: Refused, home: Path) -> None:
    text = TINY.replace("rounds = 4", 'rounds = "4"').replace("seeds = [0, 1]", "seeds = [0, 0]")
    text = text.replace("alpha = 0.5", "alhpa = 0.5").replace("cohort = 3", "cohort = 9\nfoo = 1")
    (home / "tiny.toml").write_text(text.replace("rate = 0.1", "rate = -0.1"), encoding="utf-8")
    said = refused(2, "compare", "tiny.toml", "--set", "engine.threads=0").splitlines()
    assert said[0] == "8 mistakes in tiny.toml:"
    keys = [line.split(": ")[1] if ".toml" in line else line.split(":")[0].strip() for line in said[1:]]
    assert keys == [
        "rounds",
        "seeds",
        "partition.alpha",
        "partition.alhpa",
        "local.rate",
        "method.cohort",
        "method.foo",
        "--set engine.threads",
    ]


@pytest.mark.parametrize("option", ["local.rate", "=3", "local..rate=3", ".=1"])
def test_a_malformed_override_is_refused(refused: Refused, option: str) -> None:
    assert f"--set must be of the form a.b=c, such as local.rate=0.05; got {option!r}." in refused(
        2, "run", "tiny.toml", "--set", option
    )


def test_a_file_that_cannot_be_read_as_an_experiment_is_refused(refused: Refused, home: Path) -> None:
    assert "There is no file nope.toml. `fedreach init` writes" in refused(2, "run", "nope.toml")
    assert ". is a folder. Name the TOML file in it." in refused(2, "run", ".")
    (home / "latin.toml").write_bytes('name = "Zoë"'.encode("latin-1"))
    assert "latin.toml is not a text in UTF-8: " in refused(2, "run", "latin.toml")
    (home / "broken.toml").write_text("name = \n", encoding="utf-8")
    assert "broken.toml is not valid TOML: Invalid value (at line 1, column 8)." in refused(2, "run", "broken.toml")
    (home / "list.json").write_text("[1]", encoding="utf-8")
    assert "list.json must hold a table of options" in refused(2, "run", "list.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(refused: Refused, home: Path) -> None:
    (home / "tiny.toml").chmod(0)
    assert "tiny.toml cannot be read: Permission denied. Make it readable." in refused(2, "run", "tiny.toml")


def test_a_misspelt_word_of_the_command_is_answered_with_the_nearest(fedreach: Command, refused: Refused) -> None:
    unknown = fedreach("comparee")
    assert unknown.exit_code == 2
    assert "There is no command 'comparee'. Did you mean 'compare'?" in unknown.stderr
    assert refused(2, "list", "selektion") == "There is no kind 'selektion'. Did you mean 'selection'?"
    assert refused(2, "run", "tiny.toml", "--method", "unifrom") == (
        "There is no method 'unifrom' in this experiment. Did you mean 'uniform'?"
    )
    assert "formats must be among svg, png, pdf; got 'gif'" in refused(2, "partition", "tiny.toml", "--plot", "a.gif")
    assert "formats must be among svg, png, pdf; got 'svgg'" in refused(2, "compare", "tiny.toml", "--formats", "svgg")


def test_a_device_that_is_not_there_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "this torch sees no CUDA device. Use 'cpu'." in refused(2, "run", "tiny.toml", "--set", "engine.device=cuda")
    assert "this torch sees no CUDA device" in refused(2, "compare", "tiny.toml", "--device", "cuda:1")
    assert "must be a torch device such as" in refused(2, "run", "tiny.toml", "--set", "engine.device=tpuu")


# ------------------------------------------------------------------------------------------------------ the data


def save(path: Path, labels: list[int], **arrays: np.ndarray) -> None:
    x = np.linspace(-1, 1, 4 * len(labels), dtype=np.float32).reshape(-1, 4)
    np.savez(path, **{"x": x, "y": np.array(labels), **arrays})


def test_clients_without_data_are_listed_and_the_user_chooses(refused: Refused, fedreach: Command, home: Path) -> None:
    save(home / "few.npz", [0, 1] * 20)
    few = ["run", "tiny.toml", "--set", "data.name=few.npz", "--set", "partition.min_size=0"]
    few += ["--set", "partition.clients=30"]
    said = refused(3, *few, "--out", "a")
    assert "of 30 clients hold fewer than 1 samples: clients " in said
    assert "'drop' or 'merge'" in said
    assert "partition.empty = 'error'" in said
    for remedy in ("drop", "merge"):
        assert fedreach(*few, "--set", f"partition.empty={remedy}", "--out", remedy).exit_code == 0
        record = json.loads((home / remedy / "federation.json").read_text())
        assert min(record["sizes"]) >= 1
        assert sum(record["sizes"]) == 40
    # The smallest size of a partition cannot be kept by any draw, and that is said instead of tried for ever.
    more = refused(3, "run", "tiny.toml", "--set", "data=few.npz", "--set", "partition.clients=30", "--out", "b")
    assert "30 clients with at least min_size = 2 samples need 60 samples; there are 40." in more


def test_a_missing_class_is_told_before_round_1(fedreach: Command, home: Path) -> None:
    save(home / "gap.npz", [0, 2] * 60)
    result = fedreach("run", "tiny.toml", "--set", "data=gap.npz")
    assert result.exit_code == 0
    assert "note: no training sample is of class 1 (of 0 to 2)." in result.stderr.partition("round 2/4")[0]


def test_arrays_that_cannot_be_data_are_refused(refused: Refused, home: Path) -> None:
    save(home / "nan.npz", [0, 1] * 60, x=np.full((120, 4), np.nan, np.float32))
    assert "train_x must be finite" in refused(3, "run", "tiny.toml", "--set", "data=nan.npz")
    save(home / "short.npz", [0, 1] * 60, y=np.zeros(5, np.int64))
    assert "short" in refused(3, "run", "tiny.toml", "--set", "data=short.npz")
    assert "nothere.npz" in refused(3, "run", "tiny.toml", "--set", "data=nothere.npz")
    assert "partition.name is 'natural', but digits has no natural clients." in refused(
        2, "run", "tiny.toml", "--set", "partition={name='natural'}"
    )


def test_a_population_that_cannot_be_is_refused(refused: Refused) -> None:
    some = "population.exclude_labels"
    assert "the 0 clients that are not excluded" in refused(
        2, "run", "tiny.toml", "--set", f"{some}=[0,1,2,3,4,5,6,7,8,9]"
    )
    assert f"{some} must name classes from 0 to 9; got 12." in refused(2, "run", "tiny.toml", "--set", f"{some}=[12]")
    assert "population.participants must name clients from 0 to 11; got 99." in refused(
        2, "run", "tiny.toml", "--set", "population.participants=[0,1,99]"
    )


@pytest.fixture
def mnist(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with idx files in MNIST's format; small, so not the published ones."""
    raw = home / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", 300), ("t10k", 60)):
        pixels, labels = rng.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n, dtype=np.uint8) % 10
        header = b"\0\0\x08\x03" + np.array(pixels.shape, ">u4").tobytes()
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
        header = b"\0\0\x08\x01" + np.array(labels.shape, ">u4").tobytes()
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))
    monkeypatch.setenv("FEDREACH_DATA", str(home / "data"))
    return raw


def test_a_damaged_data_file_is_named(refused: Refused, mnist: Path) -> None:
    read = ("run", "tiny.toml", "--set", "data={name='mnist',download=false}")
    images = mnist / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[: len(whole) // 2])
    assert f"{images}: cannot be read" in refused(3, *read)
    images.write_bytes(whole[:5000] + bytes([whole[5000] ^ 0x10]) + whole[5001:])
    assert f"{images}: " in refused(3, *read)
    images.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    assert "header says [300, 28, 28], that is 235216 bytes; the file has 235215" in refused(3, *read)
    images.write_bytes(whole)
    assert "is well formed but is not the published file" in refused(3, *read)
    images.unlink()
    assert "train-images-idx3-ubyte" in refused(3, *read)


def test_an_altered_copy_of_the_real_file_is_refused(
    refused: Refused, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Path(__file__).parents[1].parent / "shared" / "data"
    source = Path(os.environ.get("FEDREACH_DATA", beside)) / "MNIST" / "raw"
    if not source.is_dir():
        pytest.skip(f"the real MNIST is not in {source}; set FEDREACH_DATA")
    raw = home / "data" / "MNIST" / "raw"
    shutil.copytree(source, raw, copy_function=shutil.copyfile)
    monkeypatch.setenv("FEDREACH_DATA", str(home / "data"))
    labels = raw / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(labels.read_bytes()))
    content[100] = (content[100] + 1) % 10  # one wrong label in an otherwise perfect file
    labels.chmod(0o644)
    labels.write_bytes(gzip.compress(bytes(content)))
    said = refused(3, "partition", "tiny.toml", "--set", "data={name='mnist',download=false}")
    assert f"{labels}: is well formed but is not the published file" in said


# ----------------------------------------------------------------------------------------------- the run folder


@pytest.fixture
def done(fedreach: Command, home: Path) -> Path:
    """A finished run."""
    assert fedreach("run", "tiny.toml", "--out", "done", "-q").exit_code == 0
    return home / "done"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "finished", "message"),
    [
        ("run.json", lambda b: b.replace(b'"format": 2', b'"format": 7'), True, "is of format 7, and this version"),
        ("run.json", lambda b: b[:50], True, "run.json cannot be read"),
        ("result.json", lambda b: b"{", True, "result.json cannot be read"),
        ("rounds.jsonl", lambda b: b[:1000], True, "holds 1000 bytes, but"),
        ("rounds.jsonl", lambda b: b"", True, "holds 0 bytes, but"),
        ("clients.jsonl", lambda b: b[:-1], True, "Rows are missing; put the file back"),
        ("rounds.jsonl", lambda b: b[:1000], False, "holds 1000 bytes, but"),
        ("checkpoint.safetensors", lambda b: b[:100], False, "It is not skipped, as that would silently start over"),
        ("checkpoint.safetensors", lambda b: b[:-5] + bytes([b[-5] ^ 64]) + b[-4:], False, "was altered after it was"),
        (
            "checkpoint.safetensors",
            lambda b: b.replace(b'\\"round\\": 4', b'\\"round\\": 2'),
            False,
            "was altered after",
        ),
        ("checkpoint.safetensors", lambda b: b.replace(b'format\\": 2', b'format\\": 7'), False, "is of format 7"),
    ],
)
def test_a_damaged_run_folder_is_refused_and_left_alone(
    refused: Refused,
    fedreach: Command,
    done: Path,
    name: str,
    change: Callable[[bytes], bytes],
    finished: bool,
    message: str,
) -> None:
    whole = exact(done)
    before = (done / name).read_bytes()
    damage(done / name, change)
    assert (done / name).read_bytes() != before
    if not finished:
        (done / "result.json").unlink()
    left = contents(done)
    assert message in refused(3, "run", "tiny.toml", "--out", "done")
    assert contents(done) == left
    (done / name).write_bytes(before)  # the remedy that most of the messages name
    assert fedreach("run", "tiny.toml", "--out", "done").exit_code == 0
    assert exact(done) == whole


def test_rounds_without_their_checkpoint_are_not_started_over(refused: Refused, done: Path) -> None:
    (done / "checkpoint.safetensors").unlink()
    (done / "result.json").unlink()
    left = contents(done)
    assert "holds rounds, but checkpoint.safetensors is missing." in refused(3, "run", "tiny.toml", "--out", "done")
    assert contents(done) == left


def test_a_folder_of_another_experiment_is_left_alone(refused: Refused, done: Path) -> None:
    left = contents(done)
    said = refused(3, "run", "tiny.toml", "--out", "done", "--set", "rounds=5", "--set", "local.rate=0.2")
    assert "config.local.rate: 0.1 there, 0.2 now; config.rounds: 4 there, 5 now." in said
    assert "Choose another folder with --out, or move this one away." in said
    assert "seed: 0 there, 1 now" in refused(3, "run", "tiny.toml", "--out", "done", "--seed", "1")
    assert contents(done) == left


def test_what_changes_no_number_may_differ(fedreach: Command, done: Path) -> None:
    left = exact(done)
    again = fedreach("run", "tiny.toml", "--out", "done", "--set", "name=other", "--set", "run.checkpoint_seconds=9.0")
    assert again.exit_code == 0
    assert exact(done) == left


def test_a_comparison_of_another_experiment_is_left_alone(refused: Refused, fedreach: Command, home: Path) -> None:
    assert fedreach("compare", "tiny.toml", "--out", "c", "--formats", "none", "-q").exit_code == 0
    before = (home / "c" / "comparison.json").read_bytes()
    said = refused(3, "compare", "tiny.toml", "--out", "c", "--set", "rounds=5")
    assert "holds another experiment. config.rounds: 4 there, 5 now." in said
    assert (home / "c" / "comparison.json").read_bytes() == before


def test_a_file_in_the_place_of_the_folder_is_named(refused: Refused, home: Path) -> None:
    message = "a file stands where a folder is needed. Choose another folder with --out."
    assert message in refused(3, "run", "tiny.toml", "--out", "tiny.toml")
    assert message in refused(3, "run", "tiny.toml", "--out", "tiny.toml/deeper")
    assert message in refused(3, "compare", "tiny.toml", "--out", "tiny.toml")
    assert (home / "tiny.toml").read_text() == TINY


def test_to_insist_on_going_on_needs_a_checkpoint(refused: Refused, fedreach: Command, done: Path) -> None:
    said = refused(2, "run", "tiny.toml", "--resume", "--out", "new")
    assert said == "--resume: there is no checkpoint in new. Without --resume the run starts anew."
    assert fedreach("run", "tiny.toml", "--resume", "--out", "done").exit_code == 0


# ----------------------------------------------------------------------------------------------- the user's code

POLICIES = """\
def strangers(view, k, rng):
    return view.ids[:k] + 100

def positions(view, k, rng):
    return [v / 2 for v in range(k)]

def nothing(view, k, rng):
    return None

def twice(view, k, rng):
    return [view.ids[0]] * k

def everybody(view, k, rng):
    return view.ids

def raises(view, k, rng):
    if view.loss[0] > 0 or k:
        return {}["key"]

def leaves(view, k, rng):
    raise SystemExit(0)

def one_argument(view):
    return view.ids

class Incomplete:
    def select(self, state, view, k, rng):
        return view.ids[:k]

class Unmakeable:
    def __init__(self):
        raise OSError("no such machine")

number = 3

def negative(reports):
    return [-1.0 for _ in reports.ids]

def too_few(reports):
    return [1.0]
"""


@pytest.mark.parametrize(
    ("part", "name", "code", "message"),
    [
        ("selection", "strangers", 1, "strangers.select must return participants only; client 1"),
        ("selection", "positions", 1, "positions.select must return a list of client ids"),
        ("selection", "nothing", 1, "nothing.select must return a list of client ids"),
        ("selection", "twice", 1, "twice.select must not return a client twice"),
        ("selection", "everybody", 1, "everybody.select must return at most the 3 clients it was asked for; got 6."),
        ("selection", "raises", 1, "my.py, line 18, in raises: KeyError: 'key'."),
        ("selection", "leaves", 1, "my.py, line 21, in leaves: SystemExit: 0."),
        ("selection", "one_argument", 2, "must take the arguments (view, k, rng); it takes (view)."),
        ("selection", "Incomplete", 2, "SelectionPolicy; init, probe, observe missing. Inherit from"),
        ("selection", "Unmakeable", 2, "cannot be made: OSError: no such machine."),
        ("selection", "number", 2, "must be a class or a function; got int."),
        ("selection", "strangres", 2, "my.py has no 'strangres'. Did you mean 'strangers'?"),
        ("weighting", "negative", 1, "negative must return numbers that are not negative"),
        ("weighting", "too_few", 1, "must return one weight for each of the 3 reports; got shape (1,)."),
        ("model", "raises", 2, "model"),
    ],
)
def test_a_mistake_in_the_users_code_is_placed(
    refused: Refused, home: Path, part: str, name: str, code: int, message: str
) -> None:
    (home / "my.py").write_text(POLICIES, encoding="utf-8")
    key = part if part == "model" else f"method.{part}"
    assert message in refused(code, "run", "tiny.toml", "--set", f"{key}=my.py:{name}", "--out", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        ("import nothere", "cannot be imported: ModuleNotFoundError: No module named 'nothere'."),
        ("def f(:", "cannot be imported: SyntaxError: invalid syntax"),
        ("open('nothere.txt')", "cannot be imported: FileNotFoundError"),
        ("exit(0)", "cannot be imported: SystemExit: 0."),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero."),
    ],
)
def test_a_file_that_cannot_be_imported_is_placed(
    refused: Refused, home: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (home / "my.py").write_text(content, encoding="utf-8")
    said = refused(2, "run", "tiny.toml", "--set", "method.selection=my.py:f")
    assert said.startswith("1 mistake in tiny.toml:\n  --set method.selection.name: 'my.py:f'")
    assert message in said


def test_a_function_that_returns_no_data_set_is_refused(refused: Refused, home: Path) -> None:
    (home / "my.py").write_text("def data(size=3): return size\ndef fails(): raise ValueError('gone')")
    assert "'my.py:data' must return a Dataset; got int." in refused(2, "run", "tiny.toml", "--set", "data=my.py:data")
    assert refused(1, "run", "tiny.toml", "--set", "data=my.py:fails") == "my.py, line 2, in fails: ValueError: gone."
    assert "my.py, line 2, in fails: ValueError" in refused(1, "partition", "tiny.toml", "--set", "data=my.py:fails")


# -------------------------------------------------------------------------------------------------- diverging runs


@pytest.fixture
def diverging() -> list[str]:
    return ["run", "tiny.toml", "--set", "model=mlp", "--set", "local.rate=1e6", "--out", "x"]


def test_a_client_whose_training_diverges_is_named_with_round_and_cause(
    refused: Refused, home: Path, diverging: list[str]
) -> None:
    said = refused(1, *diverging)
    assert said.startswith("Client ")
    assert "failed in round 1: its update is not finite" in said
    assert "Lower local.rate or set local.clip_norm; or go on without failing clients" in said
    result = json.loads((home / "x" / "result.json").read_text())
    assert (result["status"], result["error"]) == ("failed", said)
    assert refused(1, *diverging).startswith("Client ")  # again, not "finished"


def test_failing_clients_can_be_left_out_and_the_rows_say_so(fedreach: Command, home: Path) -> None:
    # The user's weighting is an honest one; at this rate some clients of the MLP diverge and others do not.
    options = ["--set", "model=mlp", "--set", "local.rate=100.0", "--set", "run.on_failure=drop", "--set", "rounds=6"]
    result = fedreach("run", "tiny.toml", *options, "--out", "x")
    assert result.exit_code == 0
    table = rows(home / "x")
    lost = [client for row in table for client in row["lost"]]
    assert lost
    assert any(row["cohort"] for row in table)
    assert all(not set(row["lost"]) & set(row["cohort"]) for row in table)
    for client in set(lost):
        assert result.stderr.count(f"client {client} does not count: its update is not finite") == 1


def test_a_run_in_which_nobody_ever_counted_has_failed(refused: Refused, diverging: list[str]) -> None:
    said = refused(1, *diverging, "--set", "run.on_failure=drop")
    assert "No client's update counted in any of the 4 rounds: all 12 were lost or not finite" in said
    assert "No client's update counted" in refused(1, *diverging, "--set", "run.on_failure=drop")


def test_a_run_that_fails_does_not_stop_the_others(fedreach: Command, home: Path) -> None:
    broken = ["--set", "model=mlp", "--set", "methods.entropy.local.rate=1e6"]
    result = fedreach("compare", "tiny.toml", "--out", "c", "--formats", "none", *broken)
    assert result.exit_code == 1
    assert "failed: entropy, seed 0: Client " in result.stderr
    assert "2 of 4 runs failed. The others are kept; the same command tries again." in result.stderr
    states = {
        str(path.parent.relative_to(home / "c" / "runs")): json.loads(path.read_text())["status"]
        for path in (home / "c").glob("runs/*/*/result.json")
    }
    assert states == {
        "uniform/seed-0": "finished",
        "uniform/seed-1": "finished",
        "entropy/seed-0": "failed",
        "entropy/seed-1": "failed",
    }
    assert "uniform" in result.stdout


def test_a_model_that_diverges_although_no_client_does_is_told(refused: Refused, fedreach: Command, home: Path) -> None:
    """Updates stay finite, and the server's rate of 1e38 takes the parameters beyond float32."""
    options = ["--set", "method.server={name='average',rate=1e39}", "--set", "evaluation.every=1", "--out", "x"]
    said = refused(1, "run", "tiny.toml", *options)
    assert re.match(r"The model diverged: \w+ is not finite after round 1\. Lower local\.rate or set", said)
    options[-1] = "y"
    result = fedreach("run", "tiny.toml", *options, "--set", "run.on_failure=drop")
    assert result.exit_code == 0
    table = rows(home / "y")
    assert table[0]["test_loss"] is not None
    assert table[1]["test_loss"] is None  # not finite has no other word in JSON
    assert len(table[1]["cohort"]) == 3
    assert all(len(row["lost"]) == 3 for row in table[2:])

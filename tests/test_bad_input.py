"""Whatever a user gets wrong ends with one message: where, the rule, what arrived, what to do. Exit code 2 or 3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import TINY, Command, Refused

# -------------------------------------------------------------------------------------------------- the experiment file


@pytest.mark.parametrize(
    ("line", "insert", "message"),
    [
        (1, 'nmae = "x"', "nmae: unknown key. Did you mean 'name'?"),
        (15, "[enigne]", "enigne: unknown key. Did you mean 'engine'?"),
        (18, "batchsize = 3", "local.batchsize: unknown key. Did you mean 'batch_size'?"),
        (7, "alhpa = 3.0", "partition.alhpa: partition 'dirichlet_by_class' has no such option. Did you"),
        (15, "hiden = [3]", "model.hiden: model 'linear' has no such option."),
        (27, 'wieghting = "equal"', "methods.uniform.wieghting: unknown key. Did you mean 'weighting'?"),
        (27, "local.epoch = 2", "methods.uniform.local.epoch: unknown key. Did you mean 'epochs'?"),
        (
            27,
            'selection = { name = "power_of_choice", candidate = 4 }',
            "methods.uniform.selection.candidate: selection 'power_of_choice' has no such option. "
            "Did you mean 'candidates'?",
        ),
        (27, 'solver = "fedproks"', "methods.uniform.solver.name: unknown solver 'fedproks'."),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest_name(
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
        ("local.lr=-0.1", "local.lr: must be positive; got -0.1."),
        ("local.lr=fast", "local.lr: must be a valid number; got 'fast'."),
        ("local.lr=nan", "local.lr: must be "),
        ("rounds='4'", "rounds: must be a valid integer; got '4'."),
        ("rounds=0", "rounds: must be greater than or equal to 1; got 0."),
        ("seeds=[]", "seeds: must have at least 1 item; got []."),
        ("seeds=[3,3]", "seeds: must not repeat a seed; got [3, 3]."),
        ("local=3", "local: must be a table; got 3."),
        ("model=3", "model: must be a name, or a table with a `name`; got 3."),
        ("methods.uniform=3", "methods.uniform: must be a table; got 3."),
        (
            "population.participants=some",
            "population.participants: must be a valid integer or be a valid number or be a valid list or be 'all'; ",
        ),
        ("population.participants=13", "must be at most the 12 clients of the partition; got 13."),
        (
            "method.cohort_size=7",
            "method.cohort_size: must be at most the 6 participants; got 7. Lower it, or let more clients",
        ),
        ("methods.entropy.cohort_size=7", "methods.entropy.cohort_size: must be at most the 6 participants; got 7."),
        ("engine.name=stackd", "must be 'auto', 'native', 'manual', 'sequential' or 'vmap'; got"),
        ("partition.alpha=-1.0", "alpha of dirichlet_by_class must be a number from 1e-100 to 1e+100; got -1.0."),
        ("partition.name=dirichlet", "unknown partition 'dirichlet'. Did you mean 'dirichlet_by_class'?"),
        ("data=digts", "unknown data 'digts'. Did you mean 'digits'?"),
        ("model.name=lineer", "unknown model 'lineer'. Did you mean 'linear'?"),
        ("method.selection=unifrom", "unknown selection 'unifrom'. Did you mean 'uniform'?"),
        (
            "method.selection={candidates=3}",
            "method.selection.name: must be set. Run `fedreach list` for names.",
        ),
        ("method.weighting=entropie", "unknown weighting 'entropie'. Did you mean 'entropy'?"),
        ("method.solver={name='fedprox',mu=-1.0}", "FedProx.mu must be not negative; got -1.0."),
        ("population.participation=bernoulli", "participation.act_prob: participation 'bernoulli' needs this option."),
        ("population.participation={name='bernoulli',act_prob=2.0}", "Bernoulli.act_prob must be in (0, 1]; got 2.0."),
        ("baseline=unifrom", "baseline: must name a method; got 'unifrom'. Did you mean 'uniform'?"),
        *(
            (f"name={name}", "name: must be a valid name of a folder: no slash")
            for name in ("../../x", "con", ".hidden", "x" * 101, "x.", "a:b", '"a "', "what?")
        ),
        (f"methods.{'x' * 101}.cohort_size=2", "a method's name is also the name of a folder"),
        ("methods.a/b.cohort_size=2", "methods.a/b: a method's name is also the name of a folder"),
        ("methods.Uniform.cohort_size=2", "has the same folder as 'uniform' on systems that ignore case."),
        ("population.held_out=1.0", "population.held_out: must be less than 1; got 1.0."),
    ],
)
def test_a_wrong_value_is_refused_before_data_are_read(refused: Refused, home: Path, option: str, message: str) -> None:
    said = refused(2, "compare", "tiny.toml", "--set", option)
    assert message in said
    assert not (home / "runs").exists()


def test_all_mistakes_of_a_kind_are_told_at_once(refused: Refused, home: Path) -> None:
    text = TINY.replace("rounds = 4", 'rounds = "4"').replace("alpha = 0.5", "alhpa = 0.5")
    text = text.replace("cohort_size = 3", "cohort_size = 9\nfoo = 1").replace("seeds = [0, 1]", "seeds = [0, 0]")
    (home / "tiny.toml").write_text(text.replace("lr = 0.1", "lr = -0.1"), encoding="utf-8")
    told = refused(2, "compare", "tiny.toml", "--set", "engine.threads=0").splitlines()
    assert told[0] == "6 mistakes in tiny.toml:"
    keys = [line.split(": ")[0].strip() for line in told[1:]]
    assert sorted(keys[:5]) == ["local.lr", "method.foo", "partition.alhpa", "partition.alpha", "rounds"]
    assert keys[5] == "--set engine.threads"
    (home / "tiny.toml").write_text(TINY.replace("seeds = [0, 1]", "seeds = [0, 0]"), encoding="utf-8")
    told = refused(2, "compare", "tiny.toml", "--set", "method.cohort_size=9").splitlines()
    assert [line.split(": ")[0].strip() for line in told] == [
        "2 mistakes in tiny.toml:",
        "seeds",
        "--set method.cohort_size",
    ]


@pytest.mark.parametrize("option", ["local.lr", "=3", "local..rate=3", ".=1"])
def test_a_malformed_override_is_refused(refused: Refused, option: str) -> None:
    assert f"--set must be of the form a.b=c, such as local.lr=0.05; got {option!r}." in refused(
        2, "run", "tiny.toml", "--set", option
    )


def test_a_file_that_cannot_be_read_as_an_experiment_is_refused(refused: Refused, home: Path) -> None:
    assert "nope.toml cannot be read: No such file or directory. Name a TOML file" in refused(2, "run", "nope.toml")
    assert ". cannot be read: Is a directory." in refused(2, "run", ".")
    (home / "latin.toml").write_bytes('name = "Zoë"'.encode("latin-1"))
    assert "latin.toml is not valid TOML: 'utf-8' codec can't decode" in refused(2, "run", "latin.toml")
    (home / "broken.toml").write_text("name = \n", encoding="utf-8")
    assert "broken.toml is not valid TOML: Invalid value (at line 1, column 8)." in refused(2, "run", "broken.toml")
    (home / "list.json").write_text("[1]", encoding="utf-8")
    assert "list.json must contain a table of options" in refused(2, "run", "list.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(refused: Refused, home: Path) -> None:
    (home / "tiny.toml").chmod(0)
    assert "tiny.toml cannot be read: Permission denied." in refused(2, "run", "tiny.toml")


def test_a_misspelt_word_of_the_command_is_answered_with_the_nearest(fedreach: Command, refused: Refused) -> None:
    unknown = fedreach("comparee")
    assert unknown.exit_code == 2
    assert "Unknown command 'comparee'. Did you mean 'compare'?" in unknown.stderr
    assert refused(2, "list", "selektion") == "Unknown component type 'selektion'. Did you mean 'selection'?"
    assert refused(2, "run", "tiny.toml", "--method", "unifrom") == (
        "Unknown method 'unifrom' in this experiment. Did you mean 'uniform'?"
    )
    assert "formats must be among svg, png, pdf; got 'gif'" in refused(2, "partition", "tiny.toml", "--plot", "a.gif")
    assert "formats must be among svg, png, pdf; got 'svgg'" in refused(2, "compare", "tiny.toml", "--formats", "svgg")


@pytest.mark.parametrize("device", ["cuda:99", "tpuu", "meta"])
def test_a_device_that_is_not_there_is_refused(refused: Refused, device: str) -> None:
    assert f"engine.device must be a device that torch can use, such as 'cpu' or 'cuda:0'; got '{device}':" in (
        refused(2, "run", "tiny.toml", "--set", f"engine.device={device}")
    )
    assert "a device that torch can use" in refused(2, "compare", "tiny.toml", "--device", device)


# ------------------------------------------------------------------------------------------------------ the user's code

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

import fedreach as fr

class Incomplete(fr.Selection):
    def choose(self, state, view, k, rng):
        return view.ids[:k]

class Underived:
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
        ("selection", "everybody", 1, "everybody.select must return at most k = 3 clients; got 6."),
        ("selection", "raises", 1, "my.py, line 18, in raises: KeyError: 'key'."),
        ("selection", "leaves", 1, "my.py, line 21, in leaves: SystemExit: 0."),
        ("selection", "one_argument", 2, "must take the arguments (view, k, rng); got (view)."),
        ("selection", "Incomplete", 2, "abstract class Incomplete with abstract method select"),
        ("selection", "Underived", 2, "must be an instance of a subclass of fedreach.Selection; got Underived."),
        ("selection", "Unmakeable", 2, "cannot be created: OSError: no such machine."),
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
        (None, "file not found"),
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


METRICS = """
nameless = lambda y_true, scores: 0.0

def auroc(y_true, scores):
    return 0.0

def fails(y_true, scores):
    return 1 / 0

def alone(y_true):
    return 0.0
"""


@pytest.mark.parametrize(
    ("metrics", "code", "message"),
    [
        ('["mae"]', 2, "metric mae needs numbers as targets; the targets of digits are classes."),
        ('["r2"]', 2, "metric r2 needs numbers as targets; the targets of digits are classes."),
        ('["aurok"]', 2, "unknown metric 'aurok'. Did you mean 'auroc'? Name a custom component as 'FILE.py:NAME'."),
        ('["auroc", "my.py:auroc"]', 2, "--set evaluation.metrics: The name of a metric must be unique, "),
        ('["my.py:nameless"]', 2, "got '<lambda>'. Define the function with `def` to name it."),
        ('["my.py:alone"]', 2, "'my.py:alone' must take the arguments (y_true, scores); got (y_true)."),
        ('[{ name = "auroc", average = "micro" }]', 2, "metric 'auroc' has no such option."),
        ('["my.py:fails"]', 1, "my.py, line 8, in fails: ZeroDivisionError: division by zero."),
        ('["sklearn.metrics:log_loss"]', 1, "ValueError: y_true and y_prob contain different number of classes"),
    ],
)
def test_a_mistake_about_metrics_is_told(refused: Refused, home: Path, metrics: str, code: int, message: str) -> None:
    (home / "my.py").write_text(METRICS, encoding="utf-8")
    assert message in refused(code, "run", "tiny.toml", "--set", f"evaluation.metrics={metrics}", "--out", "x")

"""The command as its help describes it: every example runs, every --json parses, every file written is named."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.shell_completion import ShellComplete, get_completion_class
from safetensors.numpy import load_file

from fedreach import __version__
from fedreach._util.registry import COMPONENT_TYPES, table
from fedreach.cli import GROUPS, main

from ..conftest import TINY, Command, Refused, rows  # noqa: TID252 (tests are no package that has a name)

# ------------------------------------------------------------------------------------------ the examples of --help


def examples(command: str) -> list[str]:
    epilog = main.commands[command].epilog or ""
    return re.findall(r"^\s*(fedreach .*)$", epilog, re.MULTILINE)


@pytest.fixture
def furnished(home: Path, monkeypatch: pytest.MonkeyPatch, fedreach: Command) -> Path:
    """A folder in which all files that the examples name exist, each of them the tiny experiment."""
    small = TINY.replace("rounds = 4", "rounds = 2").replace("seeds = [0, 1]", "seeds = [0]")
    pilot = small.replace("seeds = [0]", f"seeds = {list(range(10))}")  # enough for --detect, as in the real one
    (home / "default.toml").write_text(pilot.replace('"tiny"', '"digits"'), encoding="utf-8")
    monkeypatch.setattr("fedreach.experiment.load.DEFAULT", home / "default.toml")
    for command in ("compare", "report", "extend"):  # what is drawn has tests of its own
        (formats,) = [p for p in main.commands[command].params if p.name == "formats"]
        monkeypatch.setattr(formats, "default", "none")
    (home / "my.toml").write_text(small, encoding="utf-8")
    lines = [f"{name},{40 + row},{row % 2}" for row, name in enumerate(["north", "south", "east"] * 8)]
    (home / "patients.csv").write_text("\n".join(["hospital,age,readmitted", *lines]), encoding="utf-8")
    (home / "examples").mkdir()
    (home / "examples" / "fashion_mnist.toml").write_text(small, encoding="utf-8")
    return home


def run_example(fedreach: Command, line: str) -> None:
    """Run an example as a shell would: the parts joined by && in turn, without what follows a pipe, > or #."""
    for part in re.split(r"&&", re.split(r"\s(?:\||>>|>|#)\s", line)[0]):
        words = shlex.split(part)
        assert words[0] == "fedreach"
        result = fedreach(*words[1:])
        assert result.exit_code == 0, (part, result.output, result.exception)
        assert result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "run",
        "partition",
        "disclose",
        "list",
        "init",
        pytest.param("compare", marks=pytest.mark.slow),
        pytest.param("extend", marks=pytest.mark.slow),
        "report",
        "export",
    ],
)
def test_every_example_of_the_help_runs(fedreach: Command, furnished: Path, command: str) -> None:
    found = examples(command)
    assert len(found) >= 2
    if command in ("report", "extend"):
        run_example(fedreach, "fedreach compare --seeds 1 --formats none --quiet")
        run_example(fedreach, "fedreach run my.toml --method uniform --out runs/a")
        run_example(fedreach, "fedreach run my.toml --method entropy --out runs/b")
    if command == "extend":
        run_example(fedreach, "fedreach run --out runs/digits-run-seed-0")
        run_example(fedreach, "fedreach compare my.toml --out runs/mine --formats none --quiet")
    if command == "init":  # what it writes is compared in a test of its own
        found = [line.partition("&&")[0] for line in found]
    for line in found:
        # The tiny experiment has one seed, and a pilot needs ten; and too few participants to decide anything.
        line = line.replace("--detect 2.0 --max-seeds 100", "--detect 20 --max-seeds 10 --seeds 10")
        trusted = """'method.adaptation={name="label_shift",strength=1.0}'"""
        run_example(fedreach, line.replace("method.adaptation=label_shift", trusted) if command == "export" else line)


def test_every_command_has_help_examples_and_json() -> None:
    assert set(main.commands) == {
        "run",
        "compare",
        "disclose",
        "doctor",
        "extend",
        "report",
        "export",
        "partition",
        "predict",
        "list",
        "init",
        "verify",
        "allocate",
    }
    for name, command in main.commands.items():
        assert command.help, name
        assert examples(name), name
        assert "--json" in {flag for p in command.params for flag in p.opts}, name
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, (name, parameter.name)


def test_help_starts_with_verbs_and_names_five_commands_first(fedreach: Command) -> None:
    first = fedreach("--help").stdout.partition("Start here:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in first.splitlines()] == ["compare", "run", "report", "list", "doctor"]
    listed = {command.name for commands in GROUPS.values() for command in commands}
    assert listed == set(main.commands)
    for command in main.commands.values():
        texts = [command.help, *(p.help for p in command.params if isinstance(p, click.Option))]
        assert all(re.match(r"[A-Z][a-z]+ ", text or "") for text in texts), texts


def test_the_command_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "fedreach", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fedreach, version {__version__}\n"


# -------------------------------------------------------------------------------------------------- run and its rows


def test_a_run_tells_what_it_does_and_every_file_it_wrote(fedreach: Command, home: Path) -> None:
    result = fedreach("run", "tiny.toml")
    folder = Path("runs/tiny-run-seed-0")
    lines = result.stderr.splitlines()
    assert lines[0] == "  Data      digits: 1,437 examples, 10 classes; partition dirichlet_by_class (alpha 0.5)"
    assert lines[1].endswith(" examples; 6 participate and hold out 20%, 6 never train")
    assert f"  Run       seed 0, 4 rounds, into {folder}" in lines
    progress = [line for line in lines if line.startswith("  Training")]
    assert [line.split()[2] for line in progress] == ["2/4:", "4/4:"]
    for line in progress:
        assert re.fullmatch(r"  Training  round \d/4: participants [\d.]+%, unseen [\d.]+%, \d+:\d\d left", line)
    assert "\x1b" not in result.output  # no colours and no bar in a log
    last = rows(folder)[-1]
    (outcome,) = (line for line in result.stdout.splitlines() if line.startswith("Round 4: "))
    assert f"participants {100 * last['participant_accuracy']:.1f}%" in outcome
    assert f"unseen clients {100 * last['unseen_accuracy']:.1f}%" in outcome
    assert len(result.stdout.splitlines()) <= 25
    assert result.stdout.endswith(f"\nRun     {folder}\nNext    fedreach report {folder}\n")
    verbose = fedreach("run", "tiny.toml", "--verbose").stdout
    assert all(f"        {path}\n" in verbose for path in folder.glob("[!.]*"))


def test_an_empty_file_is_an_experiment(fedreach: Command, home: Path) -> None:
    (home / "empty.toml").write_text("")
    result = fedreach("run", "empty.toml", "--set", "rounds=2", "--set", "evaluation.every=1", "--out", "x")
    assert result.exit_code == 0, result.output
    assert "Clients   50 with " in result.stderr


def test_quiet_says_only_the_outcome(fedreach: Command) -> None:
    result = fedreach("run", "tiny.toml", "--quiet")
    assert result.stderr == ""
    assert "\nRound 4: participants" in result.stdout


def test_json_of_a_run_is_its_last_row(fedreach: Command, home: Path) -> None:
    result = fedreach("run", "tiny.toml", "--json", "--method", "entropy", "--seed", 7)
    assert result.stderr == ""
    told = json.loads(result.stdout)
    assert told["folder"] == "runs/tiny-entropy-seed-7"
    assert told["status"] == "finished"
    assert told["last"] == rows(Path(told["folder"]))[-1]
    stored = json.loads(Path(told["folder"], "run.json").read_text())
    assert (stored["method"], stored["seed"]) == ("entropy", 7)
    assert stored["config"]["method"]["weighting"] == {"name": "entropy"}
    assert stored["environment"]["packages"]["torch"]


def test_rows_are_read_by_pandas_in_one_line(fedreach: Command, home: Path) -> None:
    pandas = pytest.importorskip("pandas")
    fedreach("run", "tiny.toml", "--out", "x")
    frame = pandas.read_json("x/rounds.jsonl", lines=True)
    assert frame["round"].tolist() == [0, 1, 2, 3, 4]
    assert frame["participant_accuracy"].notna().tolist() == [True, False, True, False, True]
    assert frame["cohort"].map(len).tolist() == [0, 3, 3, 3, 3]
    assert np.allclose(frame["weights"].map(sum)[1:], 1.0)
    size = (64 + 1) * 10 * 4  # a linear model of 64 pixels and 10 classes, in float32
    assert frame["bytes_down"].tolist() == [0] + [3 * size] * 4
    assert frame["bytes_up"].tolist() == [0] + [3 * (size + 2 * 4)] * 4
    assert frame["bytes_total"].tolist() == (frame["bytes_down"] + frame["bytes_up"]).cumsum().tolist()
    clients = pandas.read_json("x/clients.jsonl", lines=True)
    mean = clients.query("population == 'participants' and round == 4")["accuracy"].map(np.mean).item()
    assert mean == pytest.approx(frame["participant_accuracy"].iloc[-1], abs=1e-6)


def test_stored_models_are_whole_models(fedreach: Command, home: Path) -> None:
    fedreach("run", "tiny.toml", "--out", "x")
    shapes = {name: value.shape for name, value in load_file("x/last.safetensors").items()}
    assert sorted(shapes.values()) == [(10,), (10, 64)]
    assert load_file("x/best.safetensors").keys() == shapes.keys()


def test_a_stored_run_can_be_run_again_from_its_run_json(fedreach: Command, home: Path) -> None:
    fedreach("run", "tiny.toml", "--method", "entropy", "--out", "x")
    assert fedreach("run", "x/run.json", "--out", "y").exit_code == 0
    assert Path("x/rounds.jsonl").read_bytes() == Path("y/rounds.jsonl").read_bytes()


# ------------------------------------------------------------------------------------------------ compare and report


@pytest.mark.slow
def test_a_comparison_tells_each_run_the_time_left_and_the_page(fedreach: Command, home: Path) -> None:
    result = fedreach("compare", "tiny.toml", "--workers", 1, "--formats", "svg")
    assert result.exit_code == 0
    assert "  Runs      2 methods x 2 seeds x 4 rounds\n" in result.stderr
    steps = re.findall(r"^  Training  (\d)/4 runs, \d+:\d\d", result.stderr, re.MULTILINE)
    assert steps[-1] == "4"
    assert len(steps) <= 11
    assert len(result.stdout.splitlines()) <= 25
    assert "\x1b" not in result.output
    for method in ("uniform", "entropy"):
        assert re.search(rf"^{method} ", result.stdout, re.MULTILINE)  # a row of the table
    page = re.search(r"^Report  (\S+)", result.stdout, re.MULTILINE)
    assert page is not None
    assert Path(page[1]).stat().st_size > 1000

    machine = fedreach("compare", "tiny.toml", "--json", "--formats", "svg")
    assert machine.stderr == ""
    told = json.loads(machine.stdout)
    assert Path(told["page"]) == Path(page[1])
    written = {Path(path) for path in told["files"]}
    assert written == {path for path in Path("runs/tiny/report").rglob("*") if path.is_file()}
    (data,) = re.findall(r"^Data +(.*)/table\.{(.*)}$", result.stdout, re.MULTILINE)
    (figures,) = re.findall(r"^Figures +(.*) \((\d+) files\)$", result.stdout, re.MULTILINE)
    drawn = {path for path in written if path.parent == Path(figures[0])}
    assert len(drawn) == int(figures[1]) > 3
    tables = {Path(data[0], f"table.{ending}") for ending in data[1].split(",")}
    assert tables | drawn == written - {Path(page[1])}
    assert [method["method"] for method in told["methods"]] == ["uniform", "entropy"]
    last = [rows(Path("runs/tiny/runs/entropy", f"seed-{seed}"))[-1]["unseen_accuracy"] for seed in (0, 1)]
    (key,) = re.findall(r"jq '\.methods\[\]\.(\w+)'", main.commands["report"].epilog or "")
    assert key == "unseen_mean"  # what the example in the help asks for is there
    assert told["methods"][1][key] == pytest.approx(np.mean(last))
    loud, quiet = (fedreach("compare", "tiny.toml", "--formats", "none", *more) for more in ([], ["--quiet"]))
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout
    again = fedreach("report", "runs/tiny", "--formats", "none", "--json")
    assert json.loads(again.stdout)["methods"] == told["methods"]


# ----------------------------------------------------------------------------------------------------- partition


def test_a_saved_partition_is_the_same_federation(fedreach: Command, home: Path) -> None:
    drawn = fedreach("partition", "tiny.toml", "--seed", 5, "--save", "p.npz", "--plot", "p.svg")
    assert drawn.exit_code == 0
    assert "Saved   p.npz" in drawn.stdout
    assert "Figure  p.svg" in drawn.stdout
    assert Path("p.svg").read_text().lstrip().startswith("<?xml")
    text = TINY.replace("clients = 12\nalpha = 0.5", 'file = "p.npz"')
    (home / "saved.toml").write_text(text, encoding="utf-8")
    told = json.loads(fedreach("partition", "saved.toml", "--seed", 5, "--json").stdout)
    assert f"Federation {told['hash']}" in drawn.stdout
    assert fedreach("run", "saved.toml", "--seed", 5, "--out", "x", "-q").exit_code == 0
    assert json.loads(Path("x/federation.json").read_text())["hash"] == told["hash"]
    assert np.sum(told["label_counts"]) == sum(told["sizes"]) == 1437
    assert sorted(told["participants"] + told["unseen"]) == list(range(12))


def test_a_partition_of_other_data_is_refused(fedreach: Command, home: Path) -> None:
    fedreach("partition", "tiny.toml", "--save", "p.npz")
    np.savez("own.npz", x=np.eye(40, dtype=np.float32), y=np.arange(40) % 2)
    (home / "saved.toml").write_text(TINY.replace("clients = 12\nalpha = 0.5", 'file = "p.npz"'), encoding="utf-8")
    result = fedreach("partition", "saved.toml", "--set", "data=own.npz")
    assert result.exit_code == 3
    assert "It belongs to another data set." in result.stderr


# -------------------------------------------------------------------------------------------- list, init


def test_list_shows_every_kind_with_a_line_for_each_name(fedreach: Command) -> None:
    told = json.loads(fedreach("list", "--json").stdout)
    assert {entry["kind"] for entry in told} == set(COMPONENT_TYPES)
    short = fedreach("list").stdout.splitlines()
    assert len(short) <= 25
    assert [line.split()[0] for line in short[: len(COMPONENT_TYPES)]] == list(COMPONENT_TYPES)
    for kind in COMPONENT_TYPES:
        lines = fedreach("list", kind).stdout.splitlines()
        names = [entry["name"] for entry in told if entry["kind"] == kind]
        assert [line.split()[0] for line in lines[2:-2]] == names
        assert max(map(len, lines)) <= 120
    text = fedreach("list", "--verbose").stdout
    for entry in told:
        assert len(entry["summary"].split()) > 2, entry
        assert f"\n  {entry['name']}" in text
    assert json.loads(fedreach("list", "selection", "--json").stdout) == [e for e in told if e["kind"] == "selection"]


@pytest.mark.slow
def test_the_templates_run_as_they_are(fedreach: Command, home: Path) -> None:
    written = fedreach("init", "study", "--json")
    assert json.loads(written.stdout)["written"] == [
        f"study/{name}" for name in ("experiment.toml", "my_policy.py", "my_data.py")
    ]
    short = ["--set", "rounds=2", "--seeds", 1, "--formats", "none"]
    result = fedreach("compare", "study/experiment.toml", *short)
    assert result.exit_code == 0, result.output
    for method in ("uniform", "entropy", "fedprox", "my_selection", "my_weighting"):
        assert Path("runs/my-comparison/runs", method, "seed-0", "result.json").exists()
    own = fedreach("run", "study/experiment.toml", "--set", "data=study/my_data.py:two_moons", "--set", "rounds=2")
    assert own.exit_code == 0, own.output
    assert "two moons: 1,600 examples, 2 classes" in own.stderr
    smaller = ["--set", "data={name='study/my_data.py:two_moons',samples=1000}", "--set", "rounds=2", "--out", "small"]
    assert "two moons: 800 examples" in fedreach("run", "study/experiment.toml", *smaller).stderr


def test_init_overwrites_nothing(fedreach: Command, home: Path) -> None:
    (home / "my_policy.py").write_text("mine")
    result = fedreach("init")
    assert result.exit_code == 2
    assert "my_policy.py already exists and is not overwritten." in result.stderr
    assert not (home / "experiment.toml").exists()
    assert (home / "my_policy.py").read_text() == "mine"


def test_every_commented_line_of_the_template_is_true(fedreach: Command, home: Path) -> None:
    """What stands behind a # as an option must be accepted once the # is gone."""
    fedreach("init", "study")
    text = Path("study/experiment.toml").read_text()
    options = re.findall(r"^# (\[?\w+\]?(?: = .*)?)$", text, re.MULTILINE)
    assert len([line for line in options if "=" in line]) >= 6
    shift = r"\[shift\]|name = \"brightness\"|strength|share"
    others = r"exclude_labels|seed|clip_norm|patience|\[budget\]|megabytes"
    opened = re.sub(
        rf"^# (\[noise\]|name = \"symmetric\"|rate = 0.2|{shift}|{others})",
        r"\1",
        text,
        flags=re.M,
    )
    assert opened.count("#") < text.count("#") - 5
    (home / "study" / "opened.toml").write_text(opened)
    result = fedreach("partition", "study/opened.toml", "--set", "population.participants=5")
    assert result.exit_code == 0, result.output
    assert "training labels are wrong (symmetric)" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(home: Path, shell: str) -> None:
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    script = shell_class(main, {}, "fedreach", "_FEDREACH_COMPLETE").source()
    assert "_FEDREACH_COMPLETE" in script
    program = shutil.which(shell)
    if program is not None:
        (home / "script").write_text(script)
        subprocess.run([program, "-n", "script"], check=True)


def test_kinds_and_commands_are_completed() -> None:
    def complete(words: str, last: str) -> list[str]:
        found = ShellComplete(main, {}, "fedreach", "_FEDREACH_COMPLETE")
        return [item.value for item in found.get_completions(words.split()[:-1], last)]

    assert complete("com", "com") == ["compare"]
    assert complete("list sel", "sel") == ["selection"]
    assert complete("run --me", "--me") == ["--method"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run --set method.selection=uni", ["method.selection=uniform"]),
        ("run --set=method.solver=fedd", ["method.solver=feddyn"]),
        ("compare --set methods.mine.weighting.name=ent", ["methods.mine.weighting.name=entropy"]),
        ("run --set population.participation=alw", ["population.participation=always"]),
        ("run --set shift=bri", ["shift=brightness"]),
        ("run --set method.solver", [f"method.solver={name}" for name in table("solver")]),  # the only such key
        ("run --set method.s", ["method.selection", "method.solver", "method.server"]),
        ("run --set local.lr=0", []),
        ("run --set method.selektion=uni", []),
        ("verify mini", ["minimax"]),
        ("verify en", ["entropy_topk", "entropy"]),
        ("verify --kind weighting en", ["entropy"]),
        ("verify --as scaf", ["scaffold"]),
        ("verify --kind sel", ["selection"]),
        ("list weig", ["weighting"]),
    ],
)
def test_names_of_parts_are_completed(words: str, offered: list[str]) -> None:
    *before, last = words.split()
    found = ShellComplete(main, {}, "fedreach", "_FEDREACH_COMPLETE").get_completions(before, last)
    assert [item.value for item in found] == offered


def test_what_is_no_part_may_be_a_file() -> None:
    found = ShellComplete(main, {}, "fedreach", "_FEDREACH_COMPLETE").get_completions(["verify"], "my_pol")
    assert [(item.value, item.type) for item in found] == [("my_pol", "file")]


@pytest.mark.sampled(4)
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run --set method.selection = uni", ["uniform"]),  # bash parts words at =, and completes what follows
        ("run --set method.solver =", list(table("solver"))),
        ("run --set = method.solver = fedd", ["feddyn"]),
        ("run --set method.solver=fedd", ["method.solver=feddyn"]),  # unless COMP_WORDBREAKS says otherwise
        ("run --set rounds = 5 --set method.selection = uni", ["uniform"]),
        ("verify --kind = weig", ["weighting"]),
        ("run --set rounds = 5 --quie", ["--quiet"]),
        ("list sel", ["selection"]),
    ],
)
def test_bash_itself_completes_names(home: Path, words: str, offered: list[str]) -> None:
    (home / "bin").mkdir()
    program = home / "bin" / "fedreach"
    program.write_text(f"#!{sys.executable}\nfrom fedreach.cli import main\nmain()\n", encoding="utf-8")
    program.chmod(0o755)
    script = f"""
        eval "$(_FEDREACH_COMPLETE=bash_source fedreach)"
        COMP_WORDS=(fedreach {words}); COMP_CWORD=$(({len(words.split())}))
        _fedreach_completion fedreach
        printf '%s\n' "${{COMPREPLY[@]}}"
    """
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == offered, done.stderr


# --------------------------------------------------------------------------------- that targets are of two sorts


def test_what_to_do_with_numbers_is_said_where_a_user_looks(fedreach: Command, refused: Refused, home: Path) -> None:
    np.savez("mine.npz", x=np.eye(40, dtype=np.float32), y=np.linspace(0, 1, 40))
    iid = ("--set", "data=mine.npz", "--set", "partition={name='iid', clients=10}")
    for said in (fedreach("--help").stdout, refused(2, "run", "tiny.toml", *iid)):
        assert re.search(r"""loss\s+=\s+['"]mse['"]\s+or\s+['"]huber['"]""", said)


# -------------------------------------------------------------------------------------------------- the user's code

OWN = '''\
import numpy as np
from dataclasses import dataclass
import fedreach as fr


def rarest(view, k, rng, power=1.0):
    """Those with the fewest examples more often."""
    p = 1 / view.num_examples**power
    return rng.choice(view.ids, size=k, replace=False, p=p / p.sum())


def by_root(reports):
    return np.sqrt(reports.metrics["num_examples"])


@dataclass(frozen=True)
class InTurn(fr.Selection):
    step: int = 1

    def init(self, view):
        return {"next": np.array(0)}

    def select(self, state, view, k, rng):
        return fr.Cohort(view.ids[(int(state["next"]) + np.arange(k)) % len(view.ids)])

    def observe(self, state, reports):
        return {"next": state["next"] + self.step}


@dataclass(frozen=True)
class ByPower(fr.Weighting):
    power: float

    def weights(self, state, reports):
        raw = reports.metrics["num_examples"] ** self.power
        return raw / raw.sum(), state
'''


def own_experiment(home: Path, method: str) -> None:
    (home / "parts").mkdir()
    (home / "parts" / "own.py").write_text(OWN, encoding="utf-8")
    (home / "own.toml").write_text(TINY.partition("[method]")[0].replace("baseline", "# ") + method, encoding="utf-8")


def test_functions_of_a_user_are_used_from_a_file(fedreach: Command, home: Path) -> None:
    own_experiment(
        home,
        '[method]\ncohort_size = 3\nweighting = "parts/own.py:by_root"\n'
        'selection = { name = "parts/own.py:rarest", power = 50.0 }\n',
    )
    assert fedreach("run", "own.toml", "--out", "x").exit_code == 0
    record = json.loads(Path("x/federation.json").read_text())
    smallest = min(record["participants"], key=lambda client: record["sizes"][client])
    table = rows(Path("x"))[1:]
    assert all(smallest in row["cohort"] for row in table)  # at power 50, next to always
    for row in table:  # 80 % of a client's samples train, rounded
        root = np.sqrt([record["sizes"][client] * 0.8 for client in row["cohort"]])
        np.testing.assert_allclose(row["weights"], root / root.sum(), atol=0.01)
    assert set(json.loads(Path("x/run.json").read_text())["code"]) == {"parts/own.py:rarest", "parts/own.py:by_root"}


def test_classes_of_a_user_keep_state_and_are_checked(fedreach: Command, home: Path) -> None:
    own_experiment(
        home,
        '[method]\ncohort_size = 2\nweighting = { name = "parts/own.py:ByPower", power = 0.0 }\n'
        'selection = { name = "parts/own.py:InTurn", step = 2 }\n',
    )
    assert fedreach("run", "own.toml", "--out", "x").exit_code == 0
    ids = json.loads(Path("x/federation.json").read_text())["participants"]
    assert [row["cohort"] for row in rows(Path("x"))[1:]] == [ids[0:2], ids[2:4], ids[4:6], ids[0:2]]
    assert all(row["weights"] == [0.5, 0.5] for row in rows(Path("x"))[1:])
    wrong = fedreach("run", "own.toml", "--set", "method.selection.stepp=3", "--set", "method.weighting.power=x")
    assert wrong.exit_code == 2
    assert (
        "method.selection.stepp: selection 'parts/own.py:InTurn' has no such option. Did you mean 'step'?"
        in wrong.stderr
    )
    assert "method.weighting.power: must be a valid number; got 'x'." in wrong.stderr


def test_a_run_goes_on_only_with_the_same_code(fedreach: Command, home: Path) -> None:
    own_experiment(home, '[method]\ncohort_size = 3\nselection = "parts/own.py:rarest"\n')
    assert fedreach("run", "own.toml", "--out", "x").exit_code == 0
    with (home / "parts" / "own.py").open("a") as file:
        file.write("# a remark\n")
    assert fedreach("run", "own.toml", "--out", "x").exit_code == 0
    with (home / "parts" / "own.py").open("a") as file:
        file.write("changed = True\n")  # which the part does not refer to
    assert fedreach("run", "own.toml", "--out", "x").exit_code == 0
    with (home / "parts" / "own.py").open("a") as file:
        file.write("rarest.changed = True\n")
    changed = fedreach("run", "own.toml", "--out", "x")
    assert changed.exit_code == 3
    assert "since then, parts/own.py:rarest was changed" in changed.stderr

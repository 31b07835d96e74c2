"""`python -m papers variance`: a nested design of ordinary runs, which survives a kill, and what it prints of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from tests.conftest import Command, exact, rows, wait_until

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import load
from papers.variance.design import Design, chosen_methods, plan

ROOT = Path(__file__).parents[2]
SMALL = ["--draws", "2,2,2,2", "--set", "rounds=2", "--set", "evaluation.every=1", "--set", "engine.name=sequential"]

# ----------------------------------------------------------------------------------------------------- the design


def test_each_draw_has_a_seed_of_its_own_which_all_that_is_within_it_shares() -> None:
    design = Design((3, 2, 4, 2))
    places = list(design.places())
    assert len(places) == design.size == 48
    for level in range(4):
        seeds = {place[: level + 1]: design.seeds(place)[level] for place in places}
        assert all(design.seeds(place)[level] == seeds[place[: level + 1]] for place in places)
        assert len(set(seeds.values())) == len(seeds)


def test_a_larger_design_holds_the_runs_of_a_smaller_one() -> None:
    small, large = (
        {(place, *design.seeds(place)) for place in design.places()}
        for design in (Design((2, 2, 2, 2)), Design((3, 4, 2, 5)))
    )
    assert small < large


def test_the_largest_design_has_seeds_that_a_run_can_have() -> None:
    assert max(Design((100, 100, 100, 100)).seeds((99, 99, 99, 99))) == 99_999_999 < 2**32


@pytest.mark.parametrize("draws", [(1, 2, 2, 2), (2, 2, 2, 1), (101, 2, 2, 2), (2, 0, 2, 2)])
def test_what_is_drawn_once_or_too_often_is_refused(draws: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"from 2 to 100: of partitions, .* got " + ",".join(map(str, draws))):
        Design(draws)


def test_both_methods_of_a_place_share_all_seeds_whatever_the_experiment_pins() -> None:
    e = load(None, ["population.seed=9", "partition.seed=9", "model.seed=9"])
    jobs = plan(e, Design((2, 2, 2, 2)), ("uniform", "entropy"), Path("out"))
    assert len(jobs) == 32
    for one, other in zip(jobs[::2], jobs[1::2], strict=True):
        assert (one.method, other.method) == ("uniform", "entropy")
        assert one.seed == other.seed
        assert one.folder.name == other.folder.name
        for table in ("partition", "population", "model"):
            assert getattr(one.experiment, table) == getattr(other.experiment, table)
    last = jobs[-1].experiment
    assert (last.partition.seed, last.population.seed, last.model.seed) == (1, 101, 10101)
    assert jobs[-1].seed == 1010101
    assert jobs[-1].folder == Path("out/runs/entropy/1-1-1-1")
    assert last.partition.options == e.partition.options
    assert last.method.weighting.name == "entropy"  # type: ignore[attr-defined]


def test_a_partition_from_a_file_cannot_be_drawn() -> None:
    e = load(None).resolved("uniform")
    e = e.model_copy(update={"partition": e.partition.model_copy(update={"file": "p.npz"})})
    with pytest.raises(ConfigError, match=r"partition\.file holds one partition"):
        plan(e, Design((2, 2, 2, 2)), ("uniform",), Path("out"))


def test_the_methods_are_the_baseline_and_the_first_other_or_those_named() -> None:
    e = load(None)
    assert chosen_methods(e) == ("uniform", "equal")
    assert chosen_methods(load(None, ["baseline=entropy"])) == ("entropy", "uniform")
    assert chosen_methods(e, ("full", "entropy")) == ("full", "entropy")
    with pytest.raises(ConfigError, match=r"no method 'entropi'.* Did you mean 'entropy'"):
        chosen_methods(e, ("full", "entropi"))
    with pytest.raises(ConfigError, match="must differ; got 'full' twice"):
        chosen_methods(e, ("full", "full"))
    with pytest.raises(ConfigError, match="needs two methods"):
        chosen_methods(e.resolved("full"))


# ---------------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_a_killed_design_resumes_and_is_made_of_ordinary_runs(papers: Command, fedreach: Command, home: Path) -> None:
    command = ["variance", "tiny.toml", *SMALL, "--workers", "2", "--formats", "svg"]
    out = home / "runs" / "tiny-variance"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.Popen(
        [sys.executable, "-m", "papers", *command],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(list(out.glob("runs/*/*/result.json"))) > 3)
    killed.kill()
    killed.wait()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/result.json")}
    assert 3 < len(kept) < 32
    done = papers(*command)
    assert done.exit_code == 0, done.output
    assert re.search(r"^  Resumed +\d+/32 runs were already finished$", done.stderr, re.MULTILINE)
    assert re.search(r"^  Training +32/32 runs, ", done.stderr, re.MULTILINE)
    assert "uniform and entropy, 2 x 2 x 2 x 2 draws" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(list(out.glob("runs/*/*/result.json"))) == 32

    pins = ["partition.seed=1", "population.seed=100", "model.seed=10001", "rounds=2", "evaluation.every=1"]
    words = [word for pin in (*pins, "engine.name=sequential") for word in ("--set", pin)]
    fedreach("run", "tiny.toml", "--method", "entropy", "--seed", "1000101", *words, "--out", "alone", "-q")
    assert exact(home / "alone") == exact(out / "runs" / "entropy" / "1-0-1-1")

    _check_nesting(out)
    _check_words(papers, done.stdout, command, out)


def _check_nesting(out: Path) -> None:
    """What is drawn within a draw leaves what is around it as it is, and is drawn anew within another."""
    held, begun = {}, {}
    for method, place in product(("uniform", "entropy"), product(range(2), repeat=4)):
        path = out / "runs" / method / "-".join(map(str, place))
        record = json.loads((path / "federation.json").read_text())
        held[method, place] = (json.dumps(record["label_counts"]), tuple(record["participants"]), record["hash"])
        begun[method, place] = rows(path)[0]["unseen_loss"]
    places = [place for _, place in held]
    counts = {(place[:1], held[key][0]) for key, place in zip(held, places, strict=True)}
    clients = {(place[:2], held[key][2]) for key, place in zip(held, places, strict=True)}
    initial = {(place[:3], begun[key]) for key, place in zip(begun, places, strict=True)}
    assert [len(found) for found in (counts, clients, initial)] == [2, 4, 8]
    assert [len({value for _, value in found}) for found in (counts, clients, initial)] == [2, 4, 8]


def _check_words(papers: Command, text: str, command: list[str], out: Path) -> None:
    assert text.startswith("tiny: where the spread of entropy − uniform on unseen clients comes from")
    for row in ("partition", "participants", "initial model", "batches", "every seed draws everything anew"):
        assert re.search(rf"^ *{row} ", text, re.MULTILINE), row
    quiet = papers(*command, "--json")
    assert quiet.stderr == ""
    told = json.loads(quiet.stdout)
    assert {Path(path) for path in told["files"]} == {
        path.relative_to(out.parents[1]) for path in (out / "report").rglob("*.*")
    }
    last = rows(out / "runs" / "entropy" / "0-0-0-0")[-1], rows(out / "runs" / "uniform" / "0-0-0-0")[-1]
    assert told["draws"] == [2, 2, 2, 2]
    assert len(told["components"]) == 4
    assert told["components"][3]["difference"]["freedom"] == 8
    assert last[0]["unseen_accuracy"] != last[1]["unseen_accuracy"]
    for sentence in told["sentences"]:
        assert sentence.split(";")[0] in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--draws", "6,3,2"], "--draws must be four whole numbers such as 20,2,2,2; got '6,3,2'."),
        (["--draws", "6,3,2,x"], "four whole numbers"),
        (["--draws", "6,3,2,1"], "of batches within those; got 6,3,2,1"),
        (["--methods", "uniform", "entropi"], "Did you mean 'entropy'?"),
    ],
)
def test_a_design_that_cannot_be_is_refused(papers: Command, home: Path, arguments: list[str], said: str) -> None:
    refused = papers("variance", "tiny.toml", *arguments)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert not (home / "runs").exists()


@pytest.mark.slow
def test_all_runs_are_needed(papers: Command, home: Path) -> None:
    (home / "own.py").write_text("def fails(reports):\n    raise ValueError('on purpose')\n", encoding="utf-8")
    fails = ("--set", "methods.entropy.weighting=own.py:fails")
    done = papers("variance", "tiny.toml", *SMALL, *fails, "-q", "--formats", "none", "--workers", 1)
    assert done.exit_code == 1
    assert "16 of 32 runs failed, and all are needed." in done.stderr
    assert re.search("failed: 0-0-0-0, entropy, seed 0: .*on purpose", done.stderr)
    assert not (home / "runs" / "tiny-variance" / "report").exists()

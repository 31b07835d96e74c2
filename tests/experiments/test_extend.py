"""A run that is made longer is, byte for byte, one run of that length; where it cannot be, it is said why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TINY, Command, Refused, Start, exact, wait_until

from fedreach._util.errors import RunFolderError
from fedreach.experiment.compare import compare
from fedreach.experiment.extend import extend_comparison, extend_run
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.report.findings import find
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, Result, RoundRow

from .inline import Inline

ENGINE = "engine.name=sequential"
UPWARD = "method.server={name='average',lr=20.0}"  # so large that the first model has the least held-out loss


def slow(*values: Any) -> Any:
    """One of several cases, of which the others are quick."""
    return pytest.param(*values, marks=pytest.mark.slow)


def made(home: Path, out: str, rounds: int, *options: str, **more: Any) -> Path:
    """Run so many rounds."""
    experiment = load(home / "tiny.toml", [f"rounds={rounds}", ENGINE, *options]).resolved("uniform")
    run(experiment, seed=0, folder=home / out, base=home, method="uniform", **more)
    return home / out


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of a run but timing."""
    names = (path.name for path in folder.iterdir() if not path.name.startswith("."))
    return {name: (folder / name).read_bytes() for name in sorted(names) if name != "timing.jsonl"}


@pytest.mark.parametrize(
    ("short", "long", "options"),
    [
        (4, 8, []),
        (5, 7, ["evaluation.every=3", UPWARD]),
        (5, 6, ["evaluation.every=3", UPWARD, "evaluation.patience=2"]),
        slow(4, 6, ["method.adaptation=label_shift", "evaluation.metrics=['macro_f1']"]),
        slow(3, 5, ["method.selection=oort", "method.weighting=fedau", "evaluation.every=1", "method.server=yogi"]),
        slow(2, 4, ["local.schedule=exponential", "local.decay=0.9", "radio={}"]),
    ],
)
def test_a_longer_run_is_one_run_of_that_length(home: Path, short: int, long: int, options: list[str]) -> None:
    whole, begun = made(home, "whole", long, *options), made(home, "begun", short, *options)
    assert extend_run(begun, long, base=home).rounds == long
    assert files(begun) == files(whole)
    assert RunFolder(begun).timing(long)[-1].round == long


def test_the_last_rounds_evaluation_is_taken_back(home: Path) -> None:
    """Else the row of round 5 would hold one that no run of 7 rounds makes."""
    begun = made(home, "x", 5, "evaluation.every=3", UPWARD)
    assert [row.round for row in RunFolder(begun).records(RoundRow) if row.evaluated] == [0, 3, 5]
    extend_run(begun, 7, base=home)
    assert [row.round for row in RunFolder(begun).records(RoundRow) if row.evaluated] == [0, 3, 6, 7]


class Stops(Callback):
    """Interrupts a run after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, row: RoundRow, timing: Any, lost: Any) -> None:
        if row.round == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [6, 8])
def test_an_interrupted_extension_goes_on(home: Path, after: int) -> None:
    options = ["evaluation.every=3", UPWARD, "run.checkpoint_seconds=0.0"]
    whole, begun = made(home, "whole", 8, *options), made(home, "x", 5, *options)
    with pytest.raises(KeyboardInterrupt):
        extend_run(begun, 8, base=home, callbacks=[Stops(after)])
    extend_run(begun, 8, base=home)
    assert files(begun) == files(whole)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The next call to change a folder's record fails, once for each number in the list."""
    left: list[int] = []
    for name in ("remove", "write", "write_tensors", "append_lines"):
        real = getattr(RunFolder, name)

        def counted(self: RunFolder, *given: Any, real: Any = real, **more: Any) -> Any:
            if left:
                left[0] -= 1
                if left[0] == 0:
                    left.clear()
                    raise KeyboardInterrupt
            return real(self, *given, **more)

        monkeypatch.setattr(RunFolder, name, counted)
    return left


@pytest.mark.parametrize("moment", [pytest.param(n, marks=pytest.mark.slow) if n % 3 else n for n in range(1, 9)])
def test_wherever_it_is_cut_short_the_same_call_goes_on(home: Path, steps: list[int], moment: int) -> None:
    """Removing the result, rewriting the record, taking back the last evaluation: any may be the last that happens."""
    options = ["evaluation.every=3", UPWARD]
    whole, begun = made(home, "whole", 7, *options), made(home, "x", 5, *options)
    steps.append(moment)
    with pytest.raises(KeyboardInterrupt):
        extend_run(begun, 7, base=home)
    extend_run(begun, 7, base=home)
    assert files(begun) == files(whole)


@pytest.mark.slow
def test_an_extension_that_is_killed_goes_on(fedreach: Command, start: Start, home: Path) -> None:
    (home / "slow.py").write_text(
        "import time\ndef slow(view, k, rng):\n    time.sleep(0.03)\n    return rng.choice(view.ids, k, False)\n"
    )
    options = ["--set", "method.selection=slow.py:slow", "--set", "run.checkpoint_seconds=0.1", "-q"]
    for out, rounds in (("whole", 40), ("x", 10)):
        assert fedreach("run", "tiny.toml", *options, "--set", f"rounds={rounds}", "--out", out).exit_code == 0
    killed = start("extend", "x", "--rounds", "40", "-q", "--trust-code")
    wait_until(lambda: (home / "x" / "rounds.jsonl").read_bytes().count(b"\n") > 20)
    killed.kill()
    killed.wait()
    assert not (home / "x" / Result.FILE).exists()
    assert fedreach("extend", "x", "--rounds", "40").exit_code == 0
    assert exact(home / "x") == exact(home / "whole")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["local.schedule=cosine", "local.decay=0.1"], "local.schedule 'cosine' spreads its decay over all rounds"),
        (["method.selection=hics"], "the selection HiCS depends on the number of rounds"),
        (
            ["method.server={name='fine_tune',when='end'}", "server_data.examples=20"],
            "the server step FineTune depends on the number of rounds",
        ),
        (["budget.megabytes=0.03"], "a budget ended it after round "),
        (["evaluation.patience=1", "evaluation.every=1", UPWARD], "early stopping (evaluation.patience) ended it"),
        (["method.solver=scaffold"], "it deleted what clients store between rounds (memory.rows) when it finished"),
        (["method.aggregation=mifa"], "it deleted what clients store between rounds (sent.rows)"),
        (["evaluation.every=3"], "the additional evaluation in its last round found the best model"),
    ],
)
def test_what_depends_on_the_length_says_so_and_is_left_as_it_is(home: Path, options: list[str], reason: str) -> None:
    folder = made(home, "x", 5, *options)
    before = files(folder)
    with pytest.raises(RunFolderError) as error:
        extend_run(folder, 9, base=home)
    assert reason in str(error.value)
    assert "fedreach run" in str(error.value)
    assert files(folder) == before


LATE = """\
from fedreach import Cohort
import fedreach as fr

class Late(fr.Selection):
    {said}

    def select(self, state, view, k, rng):
        return Cohort(view.ids[:k], remark=f"of {{view.rounds}}")
"""


@pytest.mark.parametrize(("said", "told"), [("reads_length = True", "of 4"), ("pass", "of None")])
def test_a_policy_is_told_the_length_only_where_it_says_that_it_reads_it(home: Path, said: str, told: str) -> None:
    """Else nobody would know that it chooses others in a longer run."""
    (home / "late.py").write_text(LATE.format(said=said))
    folder = made(home, "x", 4, "method.selection=late.py:Late")
    assert [row.remark for row in RunFolder(folder).records(RoundRow)][1:] == [told] * 4
    if told == "of None":
        assert extend_run(folder, 6, base=home).rounds == 6
    else:
        with pytest.raises(RunFolderError, match="the selection Late depends on the number of rounds"):
            extend_run(folder, 6, base=home)


def test_a_run_is_not_made_shorter_and_what_has_its_length_is_left(
    refused: Refused, fedreach: Command, home: Path
) -> None:
    folder = made(home, "x", 4)
    before = files(folder)
    assert "--rounds must be at least 4, the number of rounds of x; got 3" in refused(3, "extend", "x", "--rounds", "3")
    done = fedreach("extend", "x", "--rounds", "4", "--json")
    assert done.exit_code == 0
    assert '"rounds": 4' in done.stdout
    assert files(folder) == before
    assert "run.json not found" in refused(3, "extend", "nowhere", "--rounds", "9")


def test_changed_code_is_no_run_to_go_on_with(home: Path) -> None:
    (home / "own.py").write_text("def first(view, k, rng):\n    return view.ids[:k]\n")
    folder = made(home, "x", 4, "method.selection=own.py:first")
    (home / "own.py").write_text("def first(view, k, rng):\n    return view.ids[-k:]\n")
    with pytest.raises(RunFolderError, match=r"own\.py:first was changed"):
        extend_run(folder, 6, base=home)


# ----------------------------------------------------------------------------------------------------- comparisons


def compared(home: Path, out: str, rounds: int, *options: str) -> Path:
    """Compare in this process."""
    experiment = load(home / "tiny.toml", [f"rounds={rounds}", ENGINE, *options])
    status = compare(experiment, out=home / out, base=home, executor=Inline())
    assert not status.failed
    return home / out


def all_files(out: Path) -> dict[str, dict[str, bytes]]:
    return {path.relative_to(out).as_posix(): files(path) for path in sorted(out.glob("runs/*/*"))}


def test_a_comparison_is_extended_run_by_run(home: Path) -> None:
    whole, begun = compared(home, "whole", 6), compared(home, "x", 4)
    status = extend_comparison(begun, 6, base=home, executor=Inline())
    assert len(status.finished) == 4
    assert all_files(begun) == all_files(whole)
    record = RunFolder(begun).required(ComparisonRecord)
    assert (record.config["rounds"], record.lengths) == (6, [4])
    told = find(analyse(read([begun]))).warnings
    assert any("The results after 4 rounds were known before the runs were extended" in each for each in told)
    assert extend_comparison(begun, 6, base=home, executor=Inline()).skipped == 4
    assert RunFolder(begun).required(ComparisonRecord).lengths == [4]


MEMORY = TINY.replace('weighting = "entropy"', 'solver = "scaffold"')


def test_what_cannot_go_on_is_made_anew_where_that_is_asked_for(home: Path) -> None:
    (home / "tiny.toml").write_text(MEMORY)
    whole, begun = compared(home, "whole", 6), compared(home, "x", 4)
    before = all_files(begun)
    with pytest.raises(RunFolderError, match=r"2 of 4 runs cannot be extended\.\n.*memory\.rows(.|\n)*Use --restart"):
        extend_comparison(begun, 6, base=home, executor=Inline())
    assert all_files(begun) == before
    extend_comparison(begun, 6, base=home, restart=True, executor=Inline())
    assert all_files(begun) == all_files(whole)
    assert sorted(path.name for path in (begun / "rerun").glob("entropy-1/seed-*")) == ["seed-0", "seed-1"]

"""Command lines: every command, options it has or has not, and paths to what is not what it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from hypothesis import strategies as st

from fedreach._util.errors import FedReachError
from fedreach.cli import main

from .campaign import Target, WrongError
from .damage import TEXTS, damaged
from .experiments import NAMES, RIGHT, as_toml, near, written
from .files import RIGHT_NPZ
from .tables import RIGHT_CLIENTS

PLACES = [
    "no-such",
    "empty",
    "folder",
    "garbage",
    "garbage.toml",
    "garbage.csv",
    "right.toml",
    "clients.csv",
    "x.npz",
    "folder/x.svg",
    "runs",
    "x.svg",
    "x.gif",
    "/dev/null",
    "garbage/x.npz",
    "run.json",
    "folder/run.json",
    ".",
    "",
]
WORDS = st.sampled_from(
    [*PLACES, *PLACES, *NAMES, "0", "1", "-1", "3", "1e999", "nan", "2e6", "10000000000", "900", "svg", "none"]
)
ALLOCATE = ["clients.csv", "--min-examples", "300", "--time-limit", "0.01"]
NO_TEXT = st.sampled_from(["\udcff", "a\udc80.svg"])  # as Python hands on bytes that are none
STARTS: dict[str, list[list[str]]] = {
    "partition": [["right.toml"], []],
    "allocate": [ALLOCATE, ALLOCATE, ["clients.csv"]],
    "list": [[], ["selection"]],
    "run": [["garbage.toml"], ["no-such"], ["right.toml", "--explain"], ["right.toml", "--method", "no-such"]],
    "compare": [
        ["garbage.toml"],
        ["--data", "garbage.csv"],
        ["right.toml", "--workers", "0"],
        ["right.toml", "--out", "garbage"],
    ],
    "report": [[], ["folder"], ["garbage"]],
    "extend": [["folder", "--rounds", "3"], ["garbage", "--rounds", "3"], ["folder"]],
    "export": [["adaptation"], ["folder"], ["folder", "adaptation"]],
    "predict": [["folder", "clients.csv"], ["garbage", "x.npz"], ["folder"]],
    "doctor": [["--out", "folder"], ["--out", "garbage"]],
    "verify": [["no-such"], ["--list"], ["garbage:x"]],
    "init": [[], ["folder/new"]],
    "disclose": [[], ["garbage.toml"]],
}
LONG = ("verify", "compare", "run")
"""Commands that would work for long with names that are right: none is added to theirs."""


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """Draw a command line, and what stands in the file of garbage."""
    name = draw(st.sampled_from(sorted(STARTS)))
    found = [name, *draw(st.sampled_from(STARTS[name]))]
    options = [option for param in main.commands[name].params for option in param.opts if option.startswith("-")]
    for _ in range(draw(st.integers(0, 3))):
        option = draw(st.sampled_from([*options, "--json", "--nonsense", "--set"]))
        path = draw(
            st.sampled_from([("rounds",), ("method", "cohort_size"), ("local", "lr"), ("partition", "clients")])
        )
        setting = f"{'.'.join(path)}={as_toml(draw(near(path)))}"
        value = draw(WORDS | TEXTS | NO_TEXT) if option != "--set" or draw(st.booleans()) else setting
        found += [option] if draw(st.booleans()) and option != "--set" else [option, value]
    if name not in LONG and draw(st.booleans()):
        found.insert(draw(st.integers(1, len(found))), draw(WORDS | TEXTS))
    if draw(st.integers(0, 9)) == 0:
        found[0] = draw(TEXTS)
    passed_on = [argument.replace("\0", "") for argument in found]  # no system hands on a NUL
    return passed_on, draw(damaged(written(RIGHT)) | damaged(RIGHT_CLIENTS) | st.binary(max_size=20))


def called(folder: Path, given: tuple[list[str], bytes]) -> None:
    arguments, garbage = given
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    for name in ("garbage", "garbage.toml", "garbage.csv", "run.json"):
        (folder / name).write_bytes(garbage)
    small = {
        key: value for key, value in RIGHT.items() if key not in ("methods", "baseline", "statistics", "radio", "shift")
    }
    (folder / "right.toml").write_bytes(written({**small, "engine": {"name": "sequential"}}))
    (folder / "clients.csv").write_bytes(RIGHT_CLIENTS)
    (folder / "x.npz").write_bytes(RIGHT_NPZ)
    result = CliRunner().invoke(main, arguments)
    must_be_told(arguments, result)


def must_be_told(arguments: list[str], result: Any) -> None:
    """Raise what a command raised; what it refused is raised as a refusal."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "Traceback" in result.output:
        raise WrongError(f"{arguments}: a traceback was printed")
    if result.exit_code != 0:
        if "rror" not in result.stderr and "rror" not in result.stdout and "Usage" not in result.stderr:
            raise WrongError(f"{arguments}: ended with {result.exit_code} and no word")
        raise FedReachError(result.output or "told")


TARGETS = [Target("command lines", lines(), called, 2)]
assert set(STARTS) == set(main.commands), click.__name__

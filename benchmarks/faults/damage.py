"""Run folders that somebody damaged: a byte, a cut, two files swapped, a line twice, values of other types.

A finished run, one under way and a comparison are damaged in one place each time, by a seed. Then the page is asked for
the numbers, Python for the study and for models, and the same command goes on. Each must give what it gives on the
undamaged folder, or refuse it by the name of a file.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from small import TOML, Counts, content, train

from fedreach._util.errors import FedReachError
from fedreach.api.comparison import Comparison
from fedreach.deploy.fitted_rule import read as read_rule
from fedreach.deploy.saved import load as load_model
from fedreach.experiment.compare import compare
from fedreach.experiment.load import load
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.report.records import as_document
from fedreach.runs.callbacks import Callback

Damage = Callable[[Path, random.Random], str]
VALUES = (None, True, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "x", [], {}, [[]], {"a": []}, "\u202e")


def flip(path: Path, draw: random.Random) -> str:
    """Flip a bit."""
    whole = bytearray(path.read_bytes())
    at = draw.randrange(len(whole))
    whole[at] ^= 1 << draw.randrange(8)
    path.write_bytes(whole)
    return f"byte {at}"


def cut(path: Path, draw: random.Random) -> str:
    """Take the end away, maybe at the end of a line."""
    whole = path.read_bytes()
    ends = [place.end() for place in re.finditer(b"\n", whole)][:-1]
    at = draw.choice(ends) if ends and draw.random() < 0.5 else draw.randrange(len(whole))
    path.write_bytes(whole[:at])
    return f"at {at}"


def twice(path: Path, draw: random.Random) -> str:
    """Have a line twice."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = draw.randrange(len(lines))
    path.write_bytes(b"".join([*lines[: at + 1], *lines[at:]]))
    return f"line {at + 1}"


def empty(path: Path, draw: random.Random) -> str:
    """Leave nothing."""
    path.write_bytes(b"")
    return ""


def remove(path: Path, draw: random.Random) -> str:
    """Take the file away."""
    path.unlink()
    return ""


def zeros(path: Path, draw: random.Random) -> str:
    """Put zeros in the place of a part, as a disk does."""
    whole = bytearray(path.read_bytes())
    begin = draw.randrange(len(whole))
    end = min(len(whole), begin + draw.choice((8, 64, 512)))
    whole[begin:end] = bytes(end - begin)
    path.write_bytes(whole)
    return f"{begin} to {end}"


def value(path: Path, draw: random.Random) -> str:
    """Put another value in the place of one in JSON; in other files, flip a bit."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None
        objects = lines if lines is not None else [json.loads(path.read_text())]
        key_path: list[Any] = []
        at = draw.choice(objects)
    except (ValueError, IndexError):
        return flip(path, draw)
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return flip(path, draw)
        key = draw.choice(keys)
        key_path.append(key)
        if isinstance(at[key], dict | list) and at[key] and draw.random() < 0.8:
            at = at[key]
            continue
        at[key] = draw.choice(VALUES)
        break
    texts = [json.dumps(each, indent=1 if lines is None else None) for each in objects]
    path.write_text("".join(f"{text}\n" for text in texts))
    return f"{key_path}"


def deep(path: Path, draw: random.Random) -> str:
    """Put something nested very deeply there."""
    path.write_text("[" * 10**5 + "\n")
    return ""


ALONE: tuple[Damage, ...] = (flip, flip, flip, cut, cut, twice, empty, remove, zeros, value, value, value, deep)


class StopAt(Callback):
    """Ends a run after a round, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.number = number

    def round(self, row: Any, timing: Any, lost: Any) -> None:
        """Stop."""
        if row.round == self.number:
            raise KeyboardInterrupt


def begun(folder: Path, seed: int = 0) -> None:
    """Run two of the three rounds, and leave a row behind that no checkpoint vouches for."""
    with suppress(KeyboardInterrupt):
        train(folder, StopAt(2), seed=seed)
    for name in ("rounds.jsonl", "clients.jsonl", "timing.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join([*lines, lines[-1].replace('"round": 2', '"round": 3')]))


def compared(folder: Path) -> None:
    """Compare two methods."""
    path = folder.parent / "two.toml"
    path.write_text(f"{TOML}[methods.a]\n[methods.b]\nadaptation = 'label_shift'\n", encoding="utf-8")
    status = compare(load(path), out=folder, base=path.parent, workers=1)
    if status.failed:
        raise FedReachError("; ".join(status.failed.values()))


def answers(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what can be asked of a folder."""
    runs = [folder] if (folder / "run.json").exists() else sorted(folder.glob("runs/*/seed-*"))

    def model(run: Path, which: Any) -> Any:
        return [tensor.detach().numpy().tobytes() for tensor in load_model(run, which).parameters()]

    def rule(run: Path) -> Any:
        found = read_rule(run)
        return found.name, found.round, {key: np.asarray(item).tobytes() for key, item in found.state.items()}

    asked: dict[str, Callable[[], Any]] = {"report": lambda: as_document(analyse(read([folder])))}
    for number, run in enumerate(runs):
        asked |= {
            f"{number} last": lambda run=run: model(run, "last"),
            f"{number} best": lambda run=run: model(run, "best"),
            f"{number} rule": lambda run=run: rule(run),
        }
    if folder.name.startswith("comparison"):
        asked["study"] = lambda: [study_rows(Comparison(folder), method) for method in ("a", "b")]
        asked["again"] = lambda: (compared(folder), _content(folder))[1]
    else:
        asked["again"] = lambda: (train(folder), _content(folder))[1]
    return asked


def _content(folder: Path) -> dict[str, Any]:
    """Return what stands in a folder and in its runs, by the paths of files."""
    found = {}
    for each in (folder, *folder.glob("runs/*/seed-*")):
        found |= {f"{(each / name).relative_to(folder)}": item for name, item in content(each).items()}
    return found


def study_rows(study: Comparison, method: str) -> Any:
    """Return what Python says of a method."""
    return f"{study[method].rounds()}", f"{study[method].clients()}"


def said(ask: Callable[[], Any], folder: Path) -> tuple[str, Any]:
    """Return what a question came to: an answer, a refusal by name, or something else."""
    try:
        return "answer", ask()
    except FedReachError as error:
        return ("told" if str(folder) in str(error) else "lost"), f"{error}"
    except Exception as error:  # a traceback
        return "lost", f"{type(error).__name__}: {error}"


KINDS = ("finished", "begun", "comparison")


def damage(times: int, seed: int = 0, kinds: Sequence[str] = KINDS) -> dict[str, Counts]:
    """Return what came of so many damagings of each kind of folder."""
    draw, counts = random.Random(seed), {}
    with tempfile.TemporaryDirectory() as home:
        made: dict[str, Callable[[Path], None]] = dict(zip(KINDS, (train, begun, compared), strict=True))
        other = Path(home) / "other" / "run"
        other.parent.mkdir()
        train(other, seed=1)
        for kind in kinds:
            counts[kind] = Counts()
            whole = Path(home) / kind / "whole"
            whole.parent.mkdir()
            made[kind](whole)
            for number in range(times):
                folder = whole.with_name(f"{kind}-{number}")
                shutil.copytree(whole, folder)
                expected = _expected(whole, kind)
                fault, damaged = _damaged(folder, other, draw)
                counts[kind].add(*_judged(folder, expected, damaged, f"{kind}: {fault}"))
                shutil.rmtree(folder)
    return counts


KNOWN: dict[Path, dict[str, tuple[str, Any]]] = {}


def _expected(whole: Path, kind: str) -> dict[str, tuple[str, Any]]:
    """Return what an undamaged folder answers."""
    if whole not in KNOWN:
        copy = whole.with_name(f"{kind}-same")
        shutil.copytree(whole, copy)
        KNOWN[whole] = {name: said(ask, copy) for name, ask in answers(copy).items()}
    return KNOWN[whole]


def _damaged(folder: Path, other: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Damage one file of a folder, or swap two, and return how, and which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = draw.choice([each for each in files if each.stat().st_size])
    name = f"{path.relative_to(folder)}"
    swapped = draw.random()
    if swapped < 0.1:
        second = draw.choice(files)
        one, two = path.read_bytes(), second.read_bytes()
        path.write_bytes(two)
        second.write_bytes(one)
        return f"{name} swapped with {second.relative_to(folder)}", [name, f"{second.relative_to(folder)}"]
    if swapped < 0.2 and (other / path.name).exists():
        shutil.copyfile(other / path.name, path)
        return f"{name} of another run", [name]
    how = draw.choice(ALONE)
    if how is remove and path.name == "result.json":  # that is a run which has not ended yet
        how = flip
    return f"{name}: {how.__name__} {how(path, draw)}", [name]


def _differ(one: Any, other: Any, damaged: Sequence[str]) -> bool:
    """Say whether two answers differ; of the files of an ended run in others than the damaged, which nobody reads."""
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_same(one.get(key)) != _same(other.get(key)) for key in one.keys() | other if key not in damaged)
    return _same(one) != _same(other)


def _same(answer: Any) -> str:
    return repr(answer)  # two nan are the same here


def _judged(folder: Path, expected: dict[str, tuple[str, Any]], damaged: Sequence[str], fault: str) -> tuple[str, str]:
    """Return the worst that came of a damage, and where."""
    begun = folder.name.startswith("begun")
    found = {name: said(ask, folder) for name, ask in answers(folder).items()}
    for name, (kind, answer) in found.items():
        before, wanted = expected.get(name, ("told", ""))
        if kind == "lost" and before != "lost":
            return "lost", f"{fault}; {name}: {answer}"
        if kind == "answer" and (before != "answer" or _differ(answer, wanted, () if begun else damaged)):
            return "wrong", f"{fault}; {name}"
    refused = any(kind == "told" and expected.get(name, ("told",))[0] != "told" for name, (kind, _) in found.items())
    return ("told" if refused else "survived"), fault


if __name__ == "__main__":
    print("| folder | injected | survived | told | lost | wrong |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, count in damage(400, random.SystemRandom().randrange(2**32)).items():
        print(f"| {kind} | {' | '.join(map(str, count.row()))} |", *count.found, sep="\n")

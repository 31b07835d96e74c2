"""From the built wheel in an empty folder to an adapted prediction on a CSV, by the commands of a page alone."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from pathlib import Path

import pytest

from .installed import ROOT
from .wheels import home_with_wheel

PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_from_the_wheel_to_an_adapted_prediction(tmp_path: Path) -> None:
    home, folder = home_with_wheel(tmp_path / "made"), tmp_path / "empty"
    (folder / "examples").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "patients.csv", folder / "examples")  # the table of who walks
    shutil.copy(ROOT / "examples" / "patients.csv", folder / "new_patients.csv")
    for name, text in re.findall(r"^```toml\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text, encoding="utf-8")
    written: list[bytes] = []
    lines = re.findall(r"^(?:\$ )?((?:fedreach|python) .*)$", PAGE, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        if "onnx" in line:  # an extra
            continue
        words = shlex.split(line)
        home.run([home.bin / words[0], *words[1:]], folder)
        if "--out" in words and words[-1].endswith(".csv"):
            written.append((folder / words[-1]).read_bytes())
            (folder / words[-1]).unlink()
    at_home, alone, of_weights = written
    assert at_home == alone == of_weights
    rows = list(csv.DictReader(at_home.decode().splitlines()))
    patients = list(csv.DictReader((folder / "new_patients.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["hospital"] for row in rows] == [row["hospital"] for row in patients]
    assert {row["prediction"] for row in rows} == {"no", "yes"}
    assert {row["decision"] for row in rows} <= {"adapted", "abstained"}
    right = sum(row["prediction"] == patient["readmitted"] for row, patient in zip(rows, patients, strict=True))
    assert right / len(rows) > 0.6

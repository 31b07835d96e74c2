"""The time left follows from what this command did, not from what it found done."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedreach.cli.reproduce import _rounds_progress


def test_decisions_of_an_earlier_command_make_this_one_no_faster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 0.0, 20.0, 21.0, 60.0])
    monkeypatch.setattr("fedreach.cli.reproduce.time", SimpleNamespace(monotonic=lambda: next(now)))
    say = _rounds_progress("csra/fig6", quiet=False)
    say(80, 100)  # before the first that is decided now
    say(85, 100)  # 5 in 20 seconds
    say(86, 100)  # too soon to be told
    say(100, 100)
    assert capsys.readouterr().err.splitlines() == [
        "csra/fig6: 85/100 rounds, 1:00 left",
        "csra/fig6: 100/100 rounds, 0:00 left",
    ]

"""Whatever is handed in ends in success or in one message: no traceback, no wrong thing, no machine brought down."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import load

from .campaign import SECONDS, Target, TooLongError, WrongError, campaign, limited, tried
from .experiments import RIGHT, written
from .targets import TARGETS, examples_of

QUICK, WHOLE = 60, 12_000  # examples in all


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Return a function that makes an empty folder, where the user then stands."""
    numbers = itertools.count()

    def made() -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        monkeypatch.chdir(folder)
        return folder

    return made


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_damaged_inputs_are_survived_or_told(target: Target, fresh: Callable[[], Path]) -> None:
    tried(target, examples_of(target, QUICK), fresh)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_ten_thousand_damaged_inputs_are_survived_or_told(target: Target, fresh: Callable[[], Path]) -> None:
    tried(target, examples_of(target, WHOLE), fresh)


def test_what_is_damaged_was_right_before(tmp_path: Path) -> None:
    """Else every example would be told for what is wrong with all of them."""
    (tmp_path / "right.toml").write_bytes(written(RIGHT))
    assert load(tmp_path / "right.toml").rounds == 2


def test_a_campaign_counts_how_examples_end(fresh: Callable[[], Path]) -> None:
    def run(folder: Path, how: str) -> None:
        assert not list(folder.iterdir())
        if how != "survived":
            raise {"told": ConfigError("no"), "lost": KeyError("x"), "wrong": WrongError("3 is not 4")}[how]

    found = [campaign([Target(how, st.just(how), run)], 5, fresh)[0] for how in ("survived", "told", "lost", "wrong")]
    for counts in found:
        assert counts.injected == getattr(counts, counts.target) > 0
        assert counts.survived + counts.told + counts.lost + counts.wrong == counts.injected
    assert "KeyError: 'x'" in found[2].first
    assert "3 is not 4" in found[3].first


def test_time_and_memory_of_an_example_are_limited() -> None:
    with pytest.raises(TooLongError), limited(seconds=0.05):
        time.sleep(SECONDS)
    with pytest.raises(MemoryError), limited(SECONDS, more_bytes=2**28):
        bytearray(2**29)

"""Where a user's cache lies."""

import sys
from pathlib import Path

import pytest

from fedreach._util.files import cache_folder


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs decides")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "home/.cache/fedreach"),
        ({"XDG_CACHE_HOME": "{}/own"}, "own/fedreach"),
        ({"XDG_CACHE_HOME": ""}, "home/.cache/fedreach"),
        ({"XDG_CACHE_HOME": "own"}, "home/.cache/fedreach"),  # relative: the specification ignores it
    ],
)
def test_it_lies_where_the_system_keeps_caches(
    environment: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert cache_folder() == tmp_path / expected

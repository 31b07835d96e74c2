"""Where a user's cache lies."""

import sys
from pathlib import Path

import pytest

from fedreach._util.files import cache_folder


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "home/.cache/fedreach"),
        ("linux", {"XDG_CACHE_HOME": "{}/own"}, "own/fedreach"),
        ("linux", {"XDG_CACHE_HOME": ""}, "home/.cache/fedreach"),
        ("linux", {"XDG_CACHE_HOME": "own"}, "home/.cache/fedreach"),  # relative: the specification ignores it
        ("darwin", {}, "home/Library/Caches/fedreach"),
        ("win32", {"LOCALAPPDATA": "{}/local"}, "local/fedreach/Cache"),
        ("win32", {}, "home/.cache/fedreach"),
    ],
)
def test_it_lies_where_the_system_keeps_caches(
    platform: str, environment: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert cache_folder() == tmp_path / expected

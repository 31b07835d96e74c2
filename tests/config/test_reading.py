"""What no TOML may hold is told of an experiment, wherever it comes from: depth, large numbers, no characters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import MOST_NESTED, check_plain, load

DEEP = 10**4
CHARACTER = "must not contain the character U+"
NUMBER = "a whole number must fit into 64 bits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * DEEP + "]" * DEEP, "is not valid TOML: it is nested too deeply."),
        ("[" + "a." * 200 + "b]\nx = 1", "nests tables and lists more than 50 levels deep"),
        ("rounds = " + "9" * 5000, "is not valid TOML: Exceeds the limit"),
        ("rounds = 0x" + "f" * 10**5, f"{NUMBER}, as in TOML; got 0xfff"),
        ("rounds = 9223372036854775808", f"{NUMBER}, as in TOML; got 0x8000000000000000."),
        ('name = "a\\u0000b"', f"{CHARACTER}0000; got 'a\\x00b'. Remove it."),
        ('name = "' + "x" * 10**5 + '"', "name: must be a valid name of a folder"),
        ('rounds = "' + "x" * 10**5 + '"', "rounds: must be a valid integer; got 'xxx"),
    ],
)
def test_a_file_that_asks_for_too_much_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "x.toml")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 10**5, "is not valid JSON: it is nested too deeply."),
        (json.dumps({"config": {"name": "\ud800"}}), f"{CHARACTER}D800"),
        (json.dumps({"config": {"[": []}}), "[: unknown key."),
        (json.dumps({"config": {"": 1, "int": 3, "a[0]": 1}}), "int: unknown key. Known"),
    ],
)
def test_a_stored_experiment_that_is_none_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "run.json")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("int=3", "--set int: unknown key."),  # as members of unions are called in pydantic's paths
        ("list[int]=3", "unknown key"),
        ("local.float=3", "--set local.float: unknown key."),
        ("population.participants={int=3}", "population.participants"),
        ("noise.rate=" + "[" * DEEP, "is not a TOML value: it is nested too deeply."),
        ("noise.rate=" + "[" * 100 + "]" * 100, "a value nests tables and lists more than 50 levels deep"),
        ("rounds=" + "9" * 5000, "is not a TOML value: Exceeds the limit"),
        ("a." * 200 + "b=1", "--set nests tables and lists more than 50 levels deep"),
        ("name=\udcff", f"{CHARACTER}DCFF"),
    ],
)
def test_a_setting_that_is_none_is_told(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, [override])
    assert message in str(refused.value)


def test_what_is_plain_is_taken() -> None:
    value: object = 2**63 - 1
    for _ in range(MOST_NESTED):
        value = [value]
    check_plain(value, "it")
    check_plain({"name": "Zoë 🦀", "low": -(2**63) + 1, "path": Path("x"), "none": None}, "it")
    with pytest.raises(ConfigError, match="it nests"):
        check_plain([value], "it")

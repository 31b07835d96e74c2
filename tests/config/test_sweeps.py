"""What [sweep] and [tune] may say, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import TINY

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import folders, load
from fedreach.experiment.schema import Grid
from fedreach.experiment.tune import candidates, cells


def swept(home: Path, text: str) -> Path:
    (home / "x.toml").write_text(f"{TINY}\n{text}\n", encoding="utf-8")
    return home / "x.toml"


def test_every_combination_is_what_set_makes_of_the_experiment(home: Path) -> None:
    plain = home / "tiny.toml"
    text = '[sweep]\n"local.lr" = [0.01, 1.0]\n"partition" = ["iid", { name = "shards", classes_per_client = 2 }]'
    text += '\n"method.selection.name" = ["full"]'
    found = cells(load(swept(home, text), ["name=tiny"]), home)
    wanted = [
        load(plain, [f"local.lr={rate}", f"partition={division}", "method.selection.name=full"])
        for rate in (0.01, 1.0)
        for division in ("iid", "{name='shards',classes_per_client=2}")
    ]
    assert [cell.experiment for cell in found] == wanted
    assert len({cell.setting["local.lr"] for cell in found}) == 2


def test_an_option_of_all_methods_is_said_once(home: Path) -> None:
    (one,) = cells(load(swept(home, '[sweep]\n"methods.*.local.epochs" = [3]')), home)
    assert {name: one.experiment.resolved(name).local.epochs for name in one.experiment.methods} == {
        "uniform": 3,
        "entropy": 3,
    }


def test_tables_in_tables_are_options_too(home: Path) -> None:
    """As TOML reads an option without quotes, and ``--set``."""
    e = load(swept(home, "[sweep]\nlocal.lr = [0.1, 0.2]"), ["tune.local.epochs=[1,2]"])
    assert e.sweep is not None
    assert e.tune is not None
    assert (e.sweep.settings(), e.tune.settings()[1]) == (
        [{"local.lr": 0.1}, {"local.lr": 0.2}],
        {"local.epochs": 2},
    )


def test_drawn_settings_stay_within_their_limits_and_follow_the_seed() -> None:
    ranges = {"a.b": {"min": 0.01, "max": 10.0, "log": True}, "c.d": {"min": 1, "max": 3}, "e.f": ["x", "y"]}
    drawn = Grid.model_validate({"samples": 400, **ranges}).settings()
    assert all(0.01 <= each["a.b"] <= 10.0 for each in drawn)
    low = sum(each["a.b"] < 10**-0.5 for each in drawn)  # half of the logarithms are below their middle
    assert abs(low - len(drawn) / 2) < 5 * (len(drawn) / 4) ** 0.5
    for number in (1, 2, 3):
        assert abs(sum(each["c.d"] == number for each in drawn) - len(drawn) / 3) < 5 * (2 * len(drawn) / 9) ** 0.5
    assert {each["e.f"] for each in drawn} == {"x", "y"}
    again, other = (Grid.model_validate({"samples": 5, "seed": seed, **ranges}).settings() for seed in (0, 1))
    assert again == drawn[:5]
    assert other != again


def test_only_settings_that_make_a_difference_to_a_method_are_candidates(home: Path) -> None:
    text = '[methods.own]\nlocal = { lr = 0.5 }\n[tune]\n"local.lr" = [0.1, 0.2, 0.3]'
    e = load(swept(home, text))
    assert [len(candidates(e, method, home)) for method in ("uniform", "entropy", "own")] == [3, 3, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[sweep]\n"local.lr" = [0.1, -1.0]', "sweep.local.lr: -1.0 is not valid: local.lr: "),
        ('[sweep]\n"local.epoch" = [1]', "Did you mean 'epochs'"),
        ('[sweep]\n"seeds" = [[0], [1]]', "seeds must be the same for all settings"),
        ('[sweep]\n"local.lr" = []', "sweep.local.lr: must have at least 1 item"),
        ("[sweep]", "must have an option"),
        ('[sweep]\n"local.lr" = { min = 0.1, max = 1.0 }', "Add samples = 20"),
        ('[sweep]\nsamples = 3\n"local.lr" = { min = 0.0, max = 1.0, log = true }', "must be above 0 where `log`"),
        ('[sweep]\n"local.epochs" = [1, 1]', "must not repeat a value"),
        (
            '[tune]\n"partition.alpha" = [0.1, 1.0]',
            "partition must be the same for all methods",
        ),
        ('[tune]\n"method.adaptation" = ["plain"]', "adaptation follows training"),
        ('[tune]\n"methods.uniform.adaptation.x" = [1]', "adaptation follows training"),
        ('[statistics]\ndetect_points = 2.0\n[sweep]\n"local.lr" = [0.1]', "Remove one of the two"),
        ('[tune]\nvalidation = 1.5\n"local.lr" = [0.1]', "tune.validation"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(home: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(swept(home, text), ["seeds=[0,1,2,3,4,5,6,7,8,9]"])
    assert said in str(error.value)


def test_settings_are_folders_of_their_own_whatever_they_hold() -> None:
    settings = [{"a": "../x"}, {"a": "..\\x"}, {"a": "x" * 300}, {"a": "x" * 301}, {"a": {"name": "y"}}]
    found = folders(settings, Path("cells"))
    assert len({*found}) == 5
    assert all(len(path.parts) == 2 and len(path.name) < 100 for path in found)

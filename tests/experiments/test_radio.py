"""The section `[radio]` and the key `allocation` of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment import components
from fedreach.experiment.components import users_code
from fedreach.experiment.load import load
from fedreach.federation.federation import Federation
from fedreach.wireless.radio import PaperRadio, Radio
from fedreach.wireless.rules import EqualShares, Greedy


def federation(*overrides: str, method: str | None = None) -> Federation:
    return components.federation(load(None, overrides).resolved(method), 0, Path())


def test_without_the_section_there_is_no_radio() -> None:
    assert federation().radio is None
    assert federation().allocation is None


def test_the_section_is_a_radio_with_changes() -> None:
    assert federation("radio={}").radio == Radio()
    assert federation("radio=paper").radio == PaperRadio()
    changed = federation("radio.bandwidth_hertz=1e6", "radio.power_dbm=[10, 20.5]").radio
    assert changed == Radio(bandwidth_hertz=1e6, power_dbm=(10, 20.5))
    assert federation("radio.name=paper", "radio.fading=none").radio == PaperRadio(fading="none")


def test_each_method_can_have_its_own_allocation() -> None:
    said = ["radio={}", "method.allocation=equal", "methods.entropy.allocation={name='greedy',unit=0.01}"]
    assert federation(*said, method="uniform").allocation == EqualShares()
    assert federation(*said, method="entropy").allocation == Greedy(unit=0.01)


def test_an_allocation_rule_of_ones_own_is_found_and_belongs_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from fedreach.wireless.rules import EqualShares\nclass Mine(EqualShares):\n    pass\n", encoding="utf-8"
    )
    (tmp_path / "study.toml").write_text('[radio]\n[method]\nallocation = "mine.py:Mine"\n', encoding="utf-8")
    e = load(tmp_path / "study.toml")
    assert type(components.federation(e, 0, tmp_path).allocation).__name__ == "Mine"
    assert users_code(e, tmp_path) == {"mine.py:Mine": tmp_path / "mine.py"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["radio.bandwidth_hertz=-1.0"], r"radio: Radio\.bandwidth_hertz must be positive; got -1\.0\.$"),
        (["radio.bandwith_hertz=1e6"], "radio 'gigahertz' has no such option. Did you mean 'bandwidth_hertz'"),
        (["radio.name=papr"], "unknown radio 'papr'. Did you mean 'paper'"),
        (["radio.max_hertz=[2.0, 5.0]"], r"The unit is hertz, for example \[2e9, 5e9\]\.$"),
        (["radio.power_dbm=23"], r"radio\.power_dbm: must be a list; got 23\.$"),
        (["radio={}", "method.allocation=gready"], "unknown allocation 'gready'. Did you mean 'greedy'"),
        (["radio={}", "method.allocation={name='greedy',unit=2.0}"], r"Greedy\.unit must be in \[1e-9, 1\]; got 2\.0"),
        (["methods.uniform.selection=best_channels"], r"BestChannels needs channels and devices.*`\[radio\]`"),
        (["methods.uniform.allocation=equal"], r"EqualShares needs channels and devices.*`\[radio\]`"),
        (["radio={}", "methods.full.selection={name='csra',search='genetics'}"], "search"),
    ],
)
def test_what_cannot_be_is_said_once_with_the_nearest_right_name(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load(None, overrides)
    assert str(error.value).startswith("1 mistake:")

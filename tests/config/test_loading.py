"""What a name's options may be is read from the signature of what it stands for."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from fedreach._util import registry
from fedreach._util.errors import ConfigError
from fedreach.experiment.load import DEFAULT, check, load
from fedreach.experiment.options import options_model
from fedreach.experiment.schema import Experiment


@dataclass(frozen=True)
class Part:
    power: float
    mode: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1,)
    anything: Any = None


def function(view, k, rng, patience: float = 1.0, *, name: str = "x"):  # type: ignore[no-untyped-def]
    return view


def open_ended(x, **options):  # type: ignore[no-untyped-def]
    return x


def test_options_of_a_class_are_its_fields() -> None:
    model = options_model(Part, ())
    assert model is not None
    assert model.model_validate({"power": 2.0, "sizes": [3, 4]}, strict=False).model_dump() == {
        "power": 2.0,
        "mode": "a",
        "sizes": (3, 4),
        "anything": None,
    }
    for wrong in ({}, {"power": "2"}, {"power": 1.0, "mode": "c"}, {"power": 1.0, "powr": 1.0}):
        with pytest.raises(pydantic.ValidationError):
            model.model_validate(wrong)


def test_options_of_a_function_are_its_arguments_after_those_it_is_called_with() -> None:
    given = registry.supplied_arguments("selection", "f.py:function", function)
    assert given == ("view", "k", "rng")
    model = options_model(function, given)
    assert model is not None
    assert list(model.model_fields) == ["patience", "name"]
    with pytest.raises(pydantic.ValidationError):
        model.model_validate({"patience": "long"})


def test_a_function_may_name_its_arguments_as_it_likes() -> None:
    assert registry.supplied_arguments("selection", "f.py:f", lambda v, many, r, extra=1: v) == ("v", "many", "r")
    assert registry.supplied_arguments("weighting", "f.py:f", lambda heard: heard) == ("heard",)
    with pytest.raises(ConfigError, match=r"must take the arguments \(view, k, rng\); got \(v, many\)\."):
        registry.supplied_arguments("selection", "f.py:f", lambda v, many: v)
    assert registry.supplied_arguments("selection", "f.py:f", lambda *arguments: arguments) == ()


def test_a_callable_that_takes_anything_is_not_checked() -> None:
    assert options_model(open_ended, ()) is None


def test_options_of_an_object_that_is_called_and_has_no_hash_are_checked() -> None:
    @dataclass(frozen=True)
    class Called:
        rates: list[float]

        def __call__(self, view: object, patience: float = 1.0) -> None: ...

    model = options_model(Called([0.1]), ("view",))
    assert model is not None
    assert list(model.model_fields) == ["patience"]


@pytest.mark.parametrize("kind", [kind for kind in registry.COMPONENT_TYPES if kind not in ("engine", "data")])
def test_every_built_in_thing_has_options_that_a_file_can_say(kind: str) -> None:
    for name, thing in registry.table(kind).items():
        model = options_model(thing, registry.supplied_arguments(kind, name, thing))
        assert model is not None, name
        for field, about in model.model_fields.items():
            assert about.annotation is not None, (name, field)
            plain = about.is_required() or isinstance(about.default, (int, float, str, bool, tuple, list, type(None)))
            part = type(about.default) in registry.table(kind).values()  # is said by its name
            assert plain or part, (name, field)


def test_overrides_are_read_as_toml_and_bare_words_as_strings() -> None:
    e = load(
        None,
        [
            "local.lr=0.5",
            "seeds=[7]",
            "method.selection=full",
            "method.server={name='average',momentum=0.9}",
            "name = 'a b'",
            "methods.uniform.local.epochs=3",
            "population.participation={name='bernoulli',act_prob=0.5}",
        ],
    )
    assert (e.local.lr, e.seeds, e.method.selection.name, e.name) == (0.5, [7], "full", "a b")
    assert e.population.participation.options == {"act_prob": 0.5}
    assert e.resolved("uniform").local.epochs == 3
    assert e.resolved("entropy").local.epochs == e.local.epochs


def test_an_option_can_be_set_on_something_that_the_file_only_names() -> None:
    e = load(
        None, ["methods.entropy_topk.selection.name=power_of_choice", "methods.entropy_topk.selection.candidates=9"]
    )
    assert e.methods["entropy_topk"].selection is not None
    assert e.methods["entropy_topk"].selection.options == {"candidates": 9}


@pytest.mark.parametrize(
    ("value", "names"),
    [("a", ["a"]), ("a, b", ["a", "b"]), ('"x, y",2019', ["x, y", "2019"]), ('["a[0]", "b"]', ["a[0]", "b"])],
)
def test_names_of_columns_are_listed_with_commas(value: str, names: list[str]) -> None:
    e = load(None, [f"data.columns.drop={value}", "data.columns.decimal=,", "data.name=t.csv", "data.client=c"][:3])
    assert e.data.options == {"columns": {"drop": names, "decimal": ","}}


def test_a_method_keeps_what_it_does_not_say() -> None:
    e = load(None)
    one = e.resolved("entropy")
    assert one.method.weighting.name == "entropy"
    assert one.method.selection == e.method.selection
    assert one.methods == {}
    assert one.resolved() == one
    stored = Experiment.model_validate(one.model_dump(mode="json"))  # as run.json and the workers have it
    assert stored == one


def test_the_templates_are_right_as_they_are() -> None:
    assert load(DEFAULT).methods
    assert load(Path(DEFAULT).with_name("experiment.toml")).methods


def test_the_template_shows_how_a_table_of_ones_own_is_read() -> None:
    lines = Path(DEFAULT).with_name("experiment.toml").read_text(encoding="utf-8").splitlines()
    shown = [line.removeprefix("# ") for line in lines if re.match(r"# (client|label|name = \"patients)", line)]
    (said,) = {word for line in lines if "patients.csv" in line for word in re.findall(r'says name = "(\w+)"', line)}
    data = tomllib.loads("\n".join(shown))
    experiment = Experiment.model_validate({"data": data, "partition": {"name": said}})
    assert experiment.data.options == {"client": "hospital", "label": "readmitted"}
    assert experiment.partition.name == "natural"


def test_everything_is_checked_although_something_is_wrong() -> None:
    fitting = {"population": {"participants": 3}, "method": {"cohort_size": 4}, "baseline": "a"}
    wrong = {"rounds": "x", "enigne": {}, "method": {"selection": "unifrom"}}
    _, problems = check({**fitting, **wrong}, Path())
    assert [".".join(map(str, p.path)) for p in problems] == ["rounds", "enigne", "method.selection.name"]
    _, problems = check(fitting, Path())  # what must fit together, once each is right alone
    assert [".".join(map(str, p.path)) for p in problems] == ["baseline", "method.cohort_size"]


def test_a_policy_that_ignores_the_cohort_may_have_any() -> None:
    load(None, ["method.cohort_size=49", "method.selection=full", "methods={a={}}", "baseline=a"])
    with pytest.raises(ConfigError, match=r"method\.cohort_size: must be at most the 20 participants; got 49\."):
        load(None, ["method.cohort_size=49", "methods={a={}}", "baseline=a"])


def test_a_budget_is_of_what_is_counted() -> None:
    assert load(None, ["budget.megabytes=3.5"]).limits == {"megabytes": 3.5}
    assert load(None, ["budget.seconds=9.0", "radio={}"]).limits == {"seconds": 9.0}
    with pytest.raises(ConfigError, match=r"budget\.joules: requires a \[radio\] section\. Add one\."):
        load(None, ["budget.joules=9.0"])
    with pytest.raises(ConfigError, match=r"budget\.megabytes: must be positive; got 0"):
        load(None, ["budget.megabytes=0.0"])


def test_a_refused_value_is_told_once_and_its_default_is_nobodys_mistake() -> None:
    raw = {
        "partition": {"clients": 12, "alpha": 0.3},
        "population": {"participants": 4},
        "method": {"cohort_size": "x"},
    }
    _, problems = check(raw, Path())
    assert [message for path, message in problems if path == ("method", "cohort_size")] == [
        "must be a valid integer or be a table; got 'x'."
    ]
    _, problems = check({**raw, "method": {}}, Path())  # here it is one: nobody said how many
    assert [path for path, _ in problems if path == ("method", "cohort_size")] == [("method", "cohort_size")]


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("local.optimizer={name='torch',optimizer='RMSProp'}", "local: TorchSteps.optimizer must be a class of torch"),
        ("augmentation={name='flip'}", "augmentation.name: unknown augmentation 'flip'"),
    ],
)
def test_what_all_methods_share_is_told_once_by_its_key_and_not_for_each_method(said: str, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, [said])
    assert str(error.value).startswith("1 mistake:\n  --set ")
    assert key in str(error.value)

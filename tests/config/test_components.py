"""Parts made of parts in an experiment file, and parts that are right alone but not together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from fedreach._util import registry
from fedreach._util.code import digest_of_code
from fedreach._util.errors import ConfigError
from fedreach.experiment.components import federation, identity, make
from fedreach.experiment.load import check, load
from fedreach.experiment.messages import format_problems
from fedreach.experiment.schema import Choice
from fedreach.federation.labels import Exact
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.server import Average, FedAdam, Safari
from fedreach.federation.types import ClientResults
from fedreach.federation.weighting import ByEntropy, ByExamples, Clip, Equal, FunctionWeighting, Product
from fedreach.runs.folder import RunFolder

Command = Callable[..., Result]
Refused = Callable[..., str]

OWN = '''\
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import fedreach as fr


def by_root(reports, power=0.5):
    """Give large clients a little more say."""
    return reports.metrics["num_examples"] ** power


by_root.needs = ("label_entropy",)


@dataclass(frozen=True)
class Reversed(fr.Weighting):
    """Turn what another weighting says upside down."""

    inner: Any
    by: tuple[float, ...] = (1.0,)

    def weights(self, state, reports):
        raw = 1 / self.inner.weights(state, reports)[0]
        return raw / raw.sum(), state


@dataclass(frozen=True)
class Gap(fr.Measurement):
    """A number of the client's own."""

    margin: float = 0.0
    name: ClassVar[str] = "gap"
    wants_before: ClassVar[bool] = False

    def measure(self, outputs, rng):
        return self.margin


@dataclass(frozen=True)
class ByGap(fr.Weighting):
    margin: float = 0.0

    @property
    def measures(self):
        return (Gap(self.margin),)

    def weights(self, state, reports):
        return np.full(len(reports.ids), 1 / len(reports.ids)), state


@dataclass(frozen=True)
class Widest(fr.Selection):
    """Needs a policy of its own with the same measurement."""

    margin: float = 0.0
    ignores_cohort: bool = False

    @property
    def measures(self):
        return (Gap(self.margin),)

    def select(self, state, view, k, rng):
        return fr.Cohort(view.ids[view.available] if self.ignores_cohort else view.ids[view.available][:k])


class Told:
    """Is not derived from `LabelStatistics`."""

    def release(self, counts, rng):
        return counts


class Unfinished(fr.LabelStatistics):
    """Does not release anything."""
'''


@pytest.fixture
def own(home: Path) -> Path:
    (home / "own.py").write_text(OWN, encoding="utf-8")
    return home


def said(raw: dict[str, object], base: Path = Path()) -> list[str]:
    """Return the mistakes in an experiment, each with its key."""
    _, problems = check(raw, base)
    return [line.strip() for line in format_problems(problems).splitlines()[1:] if line.strip()]


# ------------------------------------------------------------------------------------------------- built


def test_inner_and_parts_are_built_to_any_depth() -> None:
    choice = Choice.model_validate(
        {
            "name": "clip",
            "max": 0.5,
            "inner": {"name": "product", "parts": ["equal", {"name": "entropy", "temperature": 2.0}, "by_examples"]},
        }
    )
    made = make("weighting", choice, Path())
    assert made == Clip(Product((Equal(), ByEntropy(temperature=2.0), ByExamples())), max=0.5)


def test_a_server_step_wraps_another() -> None:
    e = load(None, ["method.server={name='safari',inner={name='adam',lr=0.5}}", "server_data.examples=10"])
    assert federation(e.resolved(), 3, Path()).server == Safari(FedAdam(lr=0.5))
    plain = load(None, ["method.server=safari", "server_data.examples=10"])
    assert federation(plain.resolved(), 3, Path()).server == Safari(Average())


def test_a_users_function_inside_is_wrapped_with_its_options_and_needs(own: Path) -> None:
    inside = {"name": "own.py:by_root", "power": 2.0}
    made = make("weighting", Choice.model_validate({"name": "product", "parts": [inside, "equal"]}), own)
    assert isinstance(made.parts[0], FunctionWeighting)
    assert [part.needs for part in made.with_inner()] == [(), ("label_entropy",), ()]
    reports = ClientResults(np.arange(2), np.zeros((2, 1), np.float32), {"num_examples": np.array([1.0, 3.0])})
    np.testing.assert_allclose(made.weights({}, reports)[0], [0.1, 0.9])


def test_a_users_class_takes_parts_and_lists_become_tuples(own: Path) -> None:
    said = {"name": "own.py:Reversed", "inner": "by_examples", "by": [1.0, 2.0]}
    assert check({"method": {"weighting": said}}, own)[1] == []
    made = make("weighting", Choice.model_validate(said), own)
    assert (made.inner, made.by) == (ByExamples(), (1.0, 2.0))
    hash(made)  # frozen all through
    reports = ClientResults(np.arange(2), np.zeros((2, 1), np.float32), {"num_examples": np.array([1.0, 3.0])})
    np.testing.assert_allclose(made.weights({}, reports)[0], [0.75, 0.25])


def test_label_statistics_are_a_part_of_the_method() -> None:
    e = load(None, ["methods.entropy.label_statistics=secure_aggregation"])
    assert federation(e.resolved("entropy"), 0, Path()).label_statistics == SecureAggregation()
    assert federation(e.resolved("uniform"), 0, Path()).label_statistics == Exact()


def test_set_reaches_into_nested_parts() -> None:
    table = "methods.entropy.weighting"
    nested = [f"{table}={{name='product',parts=['equal','entropy']}}", f"{table}.parts[1].temperature=3.0"]
    for options in (nested, [nested[0], nested[1].replace("[1]", ".1")]):
        weighting = load(None, options).methods["entropy"].weighting
        assert weighting is not None
        assert weighting.options["parts"] == ["equal", {"name": "entropy", "temperature": 3.0}]
    clip = load(None, [f"{table}={{name='clip',inner='entropy',max=0.5}}", f"{table}.inner.temperature=3.0"])
    assert clip.methods["entropy"].weighting.options["inner"] == {"name": "entropy", "temperature": 3.0}  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"'2' must name an element of the list by its number, 0 to 1\."):
        load(None, [nested[0], f"{table}.parts.2.temperature=3.0"])
    with pytest.raises(ConfigError, match=r"'first' must name an element of the list"):
        load(None, [nested[0], f"{table}.parts.first.temperature=3.0"])


# ------------------------------------------------------------------------------------------------- checked


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        ({"name": "product", "parts": ["entrpy"]}, "parts[0].name: unknown weighting 'entrpy'. Did you mean 'ent"),
        (
            {"name": "product", "parts": ["equal", {"name": "entropy", "temprature": 2.0}]},
            "parts[1].temprature: weighting 'entropy' has no such option. Did you mean 'temperature'?",
        ),
        (
            {"name": "product", "parts": ["equal", {"name": "entropy", "temperature": "hot"}]},
            "parts[1].temperature: must be a valid number; got 'hot'.",
        ),
        (
            {"name": "product", "parts": ["equal", {"name": "entropy", "temperature": -1.0}]},
            "parts[1]: ByEntropy.temperature must be",
        ),
        (
            {"name": "clip", "max": 0.5, "inner": {"name": "clip", "max": 0.5, "inner": {"name": "entropi"}}},
            "inner.inner.name: unknown weighting 'entropi'. Did you mean 'entropy'?",
        ),
        ({"name": "clip", "max": 0.5, "inner": 3}, "inner: must be a name, or a table with a `name`; got 3."),
        ({"name": "product", "parts": ["equal", {"max": 1}]}, "parts[1].name: must be set"),
        ({"name": "product", "parts": "equal"}, "parts: must be a list of names or tables with a `name`; got 'equal'."),
        ({"name": "clip", "max": 0.5}, "inner: weighting 'clip' needs this option."),
        ({"name": "equal", "inner": "equal"}, "inner: weighting 'equal' has no such option."),
    ],
)
def test_a_mistake_inside_is_told_with_the_full_path(weighting: dict[str, object], message: str) -> None:
    (line,) = said({"methods": {"x": {"weighting": weighting}}})
    assert line.startswith(f"methods.x.weighting.{message}")


def test_mistakes_inside_and_outside_are_told_at_once() -> None:
    parts = [{"name": "entropy", "temprature": 2.0}, "equl"]
    lines = said({"method": {"weighting": {"name": "product", "parts": parts, "exponent": [1.0]}}})
    assert {line.split(": ")[0] for line in lines} == {
        "method.weighting.exponent",
        "method.weighting.parts[0].temprature",
        "method.weighting.parts[1].name",
    }


def test_a_mistake_inside_is_told_with_the_file(refused: Refused, home: Path) -> None:
    text = (home / "tiny.toml").read_text("utf-8") + (
        '\n[methods.both.weighting]\nname = "product"\n\n[[methods.both.weighting.parts]]\nname = "equal"\n'
        '\n[[methods.both.weighting.parts]]\nname = "entropy"\ntemprature = 2.0\n'
    )
    (home / "tiny.toml").write_text(text, encoding="utf-8")
    told = refused(2, "compare", "tiny.toml")
    assert told.startswith(
        "1 mistake in tiny.toml:\n  methods.both.weighting.parts[1].temprature: weighting 'entropy' has"
    )
    (home / "tiny.toml").write_text(text.replace("temprature = 2.0", "temperature = -2.0"), encoding="utf-8")
    assert "\n  methods.both.weighting.parts[1]: ByEntropy" in refused(2, "compare", "tiny.toml")


def test_a_component_of_no_type_and_one_without_its_methods_are_refused(own: Path) -> None:
    (line,) = said({"method": {"label_statistics": "own.py:Told"}}, own)
    assert line == (
        "method.label_statistics: 'own.py:Told' must be an instance of a subclass of fedreach.LabelStatistics; got "
        "Told."
    )
    (line,) = said({"method": {"label_statistics": "own.py:Unfinished"}}, own)
    assert "'own.py:Unfinished' cannot be created: TypeError: Can't instantiate abstract class Unfinished" in line
    assert "release" in line
    (line,) = said({"method": {"weighting": {"name": "product", "parts": ["own.py:Told"]}}}, own)
    assert line.startswith("method.weighting.parts[0]: 'own.py:Told' must be an instance of")
    half = OWN + "\n\nclass HalfATrainer(fr.server.Average):\n    def trains(self, rng):\n        return True\n"
    (own / "half.py").write_text(half, encoding="utf-8")
    (line,) = said({"method": {"server": "half.py:HalfATrainer"}}, own)
    assert line.endswith("'half.py:HalfATrainer': HalfATrainer must define trains, learn; not defined: learn.")


@pytest.mark.parametrize("kind", ["selection", "weighting", "solver", "server", "label_statistics", "participation"])
def test_every_built_in_part_keeps_the_contract_that_users_parts_are_held_to(kind: str) -> None:
    inside: dict[str, object] = {"clip": {"inner": "equal", "max": 0.9}}
    inside |= {name: {"parts": ["equal"]} for name in ("product", "mix")}
    tried = 0
    for name in registry.table(kind):
        options = inside.get(name, {}) if kind == "weighting" else {}
        where = "population" if kind == "participation" else "method"
        lines = said({where: {kind: {"name": name, **options}}, "server_data": {"examples": 9}})  # type: ignore[dict-item]
        assert not [line for line in lines if "instance of a subclass" in line]
        tried += not lines
    assert tried


# ------------------------------------------------------------------------------------------------- together


def test_two_parts_that_measure_differently_under_one_name_are_told_with_the_method(own: Path) -> None:
    wide, by_gap = {"name": "own.py:Widest", "margin": 1.0}, {"name": "own.py:ByGap", "margin": 1.0}
    assert said({"methods": {"a": {"selection": wide, "weighting": by_gap}}}, own) == []
    (line,) = said({"methods": {"a": {"selection": wide, "weighting": "own.py:ByGap"}, "b": {}}}, own)
    assert line.startswith("methods.a: Two components measure 'gap' differently: Gap(margin=1.0) and Gap(margin=0.0)")


def test_a_part_that_looks_at_single_clients_is_refused_under_secure_aggregation() -> None:
    (line,) = said({"methods": {"a": {"label_statistics": "secure_aggregation", "selection": "entropy_topk"}, "b": {}}})
    assert line.startswith("methods.a: SecureAggregation shows the server only sums, but EntropyTopK reads labels")
    mixed = {"name": "mix", "parts": ["equal", "entropy"]}
    (line,) = said({"method": {"label_statistics": "secure_aggregation", "weighting": mixed}})
    assert line.startswith(
        "method: SecureAggregation shows the server only sums, so each client must know its own weight"
    )


def test_a_schedule_that_changes_nothing_is_told_with_the_file(refused: Refused) -> None:
    told = refused(2, "compare", "tiny.toml", "--set", "methods.entropy.local.schedule=cosine")
    assert "methods.entropy: LocalSGD.decay must be below 1" in told


def test_a_method_whose_parts_are_wrong_is_not_told_twice() -> None:
    lines = said({"methods": {"a": {"weighting": "entropi", "label_statistics": "secure_aggregation"}}})
    assert len(lines) == 1


def test_a_cohort_may_be_ignored_by_some_options_of_a_policy_and_not_by_others(own: Path) -> None:
    few = {"population": {"participants": 3}, "method": {"cohort_size": 4, "selection": {"name": "own.py:Widest"}}}
    (line,) = said(few, own)
    assert line.startswith("method.cohort_size: must be at most the 3 participants; got 4.")
    few["method"]["selection"]["ignores_cohort"] = True  # type: ignore[index]
    assert said(few, own) == []


# ------------------------------------------------------------------------------------------------- recorded, listed


def test_users_code_inside_belongs_to_the_identity_of_a_run(own: Path) -> None:
    weighting = {"name": "product", "parts": ["equal", {"name": "clip", "max": 0.9, "inner": "own.py:by_root"}]}
    (own / "x.toml").write_text(
        (own / "tiny.toml")
        .read_text("utf-8")
        .replace('weighting = "entropy"', f"weighting = {json.dumps(weighting).replace(': ', ' = ')}"),
        "utf-8",
    )
    e = load(own / "x.toml")
    digest = digest_of_code(own / "own.py", "by_root")
    assert identity(e.resolved("entropy"), 0, "entropy", own)["code"] == {"own.py:by_root": digest}
    assert identity(e.resolved("uniform"), 0, "uniform", own)["code"] == {}


def test_a_run_with_nested_parts_weighs_as_said_and_names_the_line_of_a_mistake(fedreach: Command, own: Path) -> None:
    option = "methods.entropy.weighting={name='own.py:Reversed',inner='own.py:by_root'}"
    result = fedreach("run", "tiny.toml", "--method", "entropy", "--set", option, "--out", "x")
    assert result.exit_code == 0, result.output
    sizes = json.loads(Path("x/federation.json").read_text())["sizes"]
    for row in RunFolder(Path("x")).rows("rounds.jsonl")[1:]:  # 80 % of a client's samples train, rounded
        raw = 1 / np.sqrt([sizes[client] * 0.8 for client in row["cohort"]])
        np.testing.assert_allclose(row["weights"], raw / raw.sum(), atol=0.01)
    stored = json.loads(Path("x/run.json").read_text())
    assert set(stored["code"]) == {"own.py:Reversed", "own.py:by_root"}
    (own / "wrong.py").write_text(OWN.replace("** power", "** power / None"), encoding="utf-8")
    option = option.replace("own.py:by_root", "wrong.py:by_root")
    failed = fedreach("run", "tiny.toml", "--method", "entropy", "--set", option, "--out", "y")
    line = 1 + OWN.splitlines().index('    return reports.metrics["num_examples"] ** power')
    assert failed.exit_code == 1
    assert f"wrong.py, line {line}, in by_root: TypeError" in failed.stderr


def test_list_says_a_default_part_by_its_name(fedreach: Command) -> None:
    text = fedreach("list", "server", "--verbose").stdout
    assert "safari (inner='average', client_probability=0.8, lr=0.1, batch_size=64)" in text
    told = {entry["name"]: entry for entry in json.loads(fedreach("list", "server", "--json").stdout)}
    assert told["safari"]["options"]["inner"] == "average"
    parts = {entry["name"]: entry for entry in json.loads(fedreach("list", "weighting", "--json").stdout)}
    assert parts["product"]["options"]["parts"] == "required"
    kinds = {entry["name"] for entry in json.loads(fedreach("list", "label_statistics", "--json").stdout)}
    assert {"exact", "secure_aggregation"} <= kinds

"""What components declare: by plain attributes, whose names and types are checked where a class is defined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.labels import Exact
from fedreach.federation.measurements import WLRC, Disagreement
from fedreach.federation.participation import Always, Bernoulli
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.losses import Rademacher
from fedreach.federation.selection.radio import CSRA
from fedreach.federation.selection.random import FunctionSelection, Uniform
from fedreach.federation.server import Average, FedDF, FineTune, Safari, ServerOnly
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold
from fedreach.federation.weighting import ByEntropy, ByExamples, Clip, FunctionWeighting, Mix, Product
from fedreach.testing.base import WatchedGenerator
from fedreach.wireless.rules import EqualShares

from .small import federation


def made(base: type, **attributes: object) -> object:
    """Return a part of a user's class with these attributes."""
    return type("Mine", (base,), attributes)()


def declared(component: fr.Selection) -> dict[str, object]:
    """Return what a component declares beyond the defaults of its type."""
    return {
        name: getattr(component, name)
        for name, default in component.attributes().items()
        if getattr(component, name) != default
    }


# ------------------------------------------------------------------------------------------------- misspelled


@pytest.mark.parametrize(
    ("base", "name", "value", "meant"),
    [
        (Uniform, "read_updates", True, "reads_updates"),
        (Uniform, "need", ("label_counts",), "needs"),
        (Uniform, "ignore_cohort", True, "ignores_cohort"),
        (Uniform, "need_radio", True, "needs_radio"),
        (Uniform, "cluster", lambda self, state: np.zeros(3), "clusters"),
        (ByExamples, "measure", (Disagreement(),), "measures"),
        (FedAvg, "is_affine", True, "affine"),
        (Scaffold, "send_note", False, "sends_note"),
        (Scaffold, "sends_states", False, "sends_state"),
        (Scaffold, "memory_type", "float16", "memory_dtype"),
        (Average, "train", lambda self, rng: True, "trains"),
        (Exact, "only_sums", True, "only_sum"),
        (Always, "reads_update", True, "reads_updates"),
        (EqualShares, "need_radio", True, "needs_radio"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest_where_the_class_is_defined(base, name, value, meant):
    sort = "method" if callable(value) else "attribute"
    with pytest.raises(ComponentError, match=rf"^Mine has no {sort} `{name}`\. Did you mean `{meant}`\?$"):
        made(base, **{name: value})


@pytest.mark.parametrize("base", [Uniform, ByExamples, FedAvg, Average, Exact, EqualShares])
def test_attributes_of_all_components_are_known_to_each_type(base):
    with pytest.raises(ComponentError, match="Did you mean `needs_radio`"):
        made(base, need_radio=True)


def test_a_misspelling_is_found_on_instances_functions_and_measurements_too():
    def mine(reports):
        return reports.metrics["num_examples"]

    mine.need = ("label_entropy",)
    with pytest.raises(ComponentError, match=r"mine has no attribute `need`\. Did you mean `needs`"):
        federation(weighting=FunctionWeighting(mine))

    class Late(fr.Selection):
        def __init__(self):
            self.read_updates = True

        select = Uniform.select

    with pytest.raises(ComponentError, match=r"Late has no attribute `read_updates`"):
        federation(Late())


def test_a_flag_that_became_an_option_by_its_annotation_is_found():
    with pytest.raises(ComponentError, match="Did you mean `reads_updates`"):

        @dataclass(frozen=True)
        class Mine(Uniform):
            read_updates: bool = True


def test_other_names_are_the_components_own():
    @dataclass(frozen=True)
    class Mine(Clustered):
        measure: str = "cosine"  # options are not compared, but for flags
        need: float = 0.5
        radio: bool = False
        FACTS: ClassVar = ("a", "b")
        updates: ClassVar[int] = 3
        cohorts: ClassVar = (1, 2)
        radius: ClassVar[float] = 1.0

        @property
        def labels(self):
            return "labels"

        def cluster(self, rows):  # there is `clusters` beside it
            return rows

        def measured(self, rows):
            return rows

        def draw(self, rng):
            return rng

    assert declared(Mine()) == declared(Clustered())


# ------------------------------------------------------------------------------------------------- wrong types


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        (
            "needs",
            "label_counts",
            r"^Mine\.needs must be a tuple of client statistics, such as .*; got 'label_counts'\.$",
        ),
        ("needs", None, "a tuple of client statistics"),
        ("needs", lambda self: ("label_counts",), "a tuple of client statistics"),
        ("needs", ("label_count",), r"must list client statistics; got 'label_count'\. Did you mean 'label_counts'\?"),
        ("measures", Disagreement(), "a tuple of measurements"),
        ("measures", (Disagreement,), "must list instances of subclasses of Measurement"),
        ("measures", (3,), "must list instances"),
        ("reads_updates", "yes", r"Mine\.reads_updates must be True or False; got 'yes'"),
        ("ignores_cohort", 1, "True or False"),
        ("memory_dtype", "float64", r"one of 'float32', 'float16'; got 'float64'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name, value, rule):
    base = Scaffold if name == "memory_dtype" else Uniform
    with pytest.raises(ComponentError, match=rule):
        made(base, **{name: value})


def test_a_property_is_checked_when_a_federation_is_made():
    class Mine(Uniform):
        @property
        def needs(self):
            return "label_counts"

    with pytest.raises(ComponentError, match=r"Mine\.needs must be a tuple of client statistics"):
        federation(Mine())


def test_an_error_inside_a_property_is_not_taken_for_its_absence():
    class Mine(Uniform):
        @property
        def needs(self):
            return self.nowhere

    with pytest.raises(AttributeError, match="nowhere"):
        federation(Mine())


# ------------------------------------------------------------------------------------------------- what is declared


def test_attributes_are_what_the_components_say():
    assert declared(Uniform()) == {}
    assert declared(CSRA(threshold=1.0)) == {"ignores_cohort": True, "needs_radio": True, "needs": ("label_counts",)}
    assert declared(Clustered()) == {"reads_updates": True, "makes_clusters": True, "probes": True}
    assert declared(Rademacher(n_clusters=2)) == {"measures": (WLRC(),), "reads_updates": True, "probes": True}
    assert declared(Scaffold(memory_dtype="float16")) == {
        "affine": True,
        "is_stateful": True,
        "sends_note": True,
        "sends_state": True,
        "memory_dtype": "float16",
    }
    assert declared(FedDyn()) == {"affine": True, "is_stateful": True}
    assert declared(Safari()) == {"trains_server": True}
    assert declared(ServerOnly()) == {"trains_server": True, "trains_alone": True}
    assert declared(FineTune()) == {"tunes_server": True}
    assert declared(FedDF()) == {"tunes_server": True, "reads_updates": True, "needs_classes": True}
    assert declared(SecureAggregation()) == {"only_sum": True}
    assert declared(Bernoulli(0.5)) == {"loses_replies": True}


def test_parts_made_of_parts_need_what_those_need():
    def mine(reports):
        return reports.metrics["num_examples"]

    mine.needs = ["label_counts"]
    nested = Clip(Mix((ByEntropy(), Product((ByEntropy(), FunctionWeighting(mine))))), max=0.5)
    assert federation(weighting=nested).needs() == {"label_entropy", "label_counts"}
    assert not nested.has_own_weights
    assert Product((ByEntropy(), ByExamples())).has_own_weights
    assert not Product((ByEntropy(), nested)).has_own_weights

    @dataclass(frozen=True)
    class Halves(fr.Weighting):
        inner: object

        def weights(self, state, reports):
            return self.inner.weights(state, reports)

    assert federation(weighting=Halves(nested)).needs() == {"label_entropy", "label_counts"}

    @dataclass(frozen=True)
    class Tries(fr.Selection):
        inner: object

        def select(self, state, view, k, rng):
            return self.inner.select(state, view, k, rng)

    whole = federation(Tries(Clustered()))
    assert whole.selection.declares("reads_updates")
    with pytest.raises(ConfigError, match="reads labels, updates or measurements of single clients"):
        replace(whole, label_statistics=SecureAggregation())


def test_a_component_without_its_methods_is_refused():
    with pytest.raises(TypeError, match=r"abstract class Mine with abstract method select"):
        made(fr.Selection)
    with pytest.raises(
        ComponentError, match=r"^Mine must define prepare, remember, conclude; not defined: remember, conclude"
    ):
        made(FedAvg, prepare=lambda self, memory, state, share: {})
    with pytest.raises(ComponentError, match=r"^Mine has no method `selects`\. Did you mean `select`\?$"):
        made(fr.Selection, selects=Uniform.select)


def test_a_component_of_another_type_is_refused():
    rule = r"^selection must be an instance of a subclass of fedreach\.Selection; got FedAvg\.$"
    with pytest.raises(ComponentError, match=rule):
        federation(FedAvg())
    with pytest.raises(ComponentError, match=r"weighting must be .* got Mine\."):
        federation(weighting=made(object, weights=ByExamples.weights))


def test_what_any_part_needs_is_asked_for():
    whole = replace(federation(), server=made(Average, needs=("label_counts",), measures=(WLRC(),)))
    assert whole.needs() == {"label_counts"}
    assert whole.measurements() == (WLRC(),)
    with pytest.raises(ConfigError, match="Mine reads labels, updates or measurements of single clients"):
        replace(whole, label_statistics=SecureAggregation())


def test_a_promise_holds_for_the_method_it_was_made_for():
    class Heir(FedProx): ...

    class Changed(FedProx):
        def correct(self, gradient, params, broadcast):
            return gradient**3

    class Said(Changed):
        affine: ClassVar[bool] = True

    class Denied(FedProx):
        affine: ClassVar[bool] = False

    assert [part().affine for part in (FedProx, Heir, Changed, Said, Denied)] == [1, 1, 0, 1, 0]

    class OtherWeights(ByExamples):
        def weights(self, state, reports):
            return np.full(len(reports.ids), 1 / len(reports.ids)), state

    assert not OtherWeights().has_own_weights
    with pytest.raises(ConfigError, match="OtherWeights compares clients"):
        replace(federation(weighting=OtherWeights()), label_statistics=SecureAggregation())


def test_a_part_that_is_watched_says_what_it_always_says():
    for part in (Clustered(), ByEntropy(), Scaffold(), FedProx(), Bernoulli(0.5), FunctionSelection(len)):
        assert declared(WatchedGenerator(part)) == declared(part)


def test_measurements_are_read_once_a_federation():
    asked = []

    class Mine(fr.Selection):
        @property
        def needs(self):
            asked.append(1)
            return ()

        select = Uniform.select

    whole = federation(Mine())
    before = len(asked)
    for _ in range(3):
        whole.measurements()
    assert len(asked) == before

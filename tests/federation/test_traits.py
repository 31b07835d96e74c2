"""What parts say of themselves: read in one place, and never taken for something else without a word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.labels import Exact
from fedreach.federation.measurements import WLRC, Disagreement
from fedreach.federation.participation import Always, Bernoulli
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection.base import FunctionSelection, Policy
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.losses import Rademacher
from fedreach.federation.selection.radio import CSRA
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average, FedDF, FineTune, Safari, ServerOnly
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold
from fedreach.federation.traits import Traits
from fedreach.federation.weighting import ByEntropy, ByExamples, Clip, FunctionWeighting, Mix, Product
from fedreach.testing.checks.common import WatchedGenerator
from fedreach.wireless.rules import Equal as EqualShares

from .small import federation


def made(base: type, **attributes: object) -> object:
    """Return a part of a user's class with these attributes."""
    return type("Mine", (base,), attributes)()


# ------------------------------------------------------------------------------------------------- misspelt


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
        (Disagreement, "minimun", 0.0, "minimum"),
    ],
)
def test_a_misspelt_trait_is_answered_with_the_nearest(base, name, value, meant):
    with pytest.raises(ComponentError, match=rf"^`{name}` is no trait of Mine; did you mean `{meant}`\?$"):
        Traits.of(made(base, **{name: value}))


def test_a_federation_refuses_a_misspelt_trait_of_any_of_its_parts():
    whole = federation()
    parts = {"selection": Uniform, "weighting": ByExamples, "solver": FedAvg, "server": Average}
    for kind, base in {**parts, "label_statistics": Exact, "allocation": EqualShares}.items():
        with pytest.raises(ComponentError, match="did you mean `needs_radio`"):
            replace(whole, **{kind: made(base, need_radio=True)})


def test_a_misspelling_is_found_on_instances_functions_and_measurements_too():
    def mine(reports):
        return reports.metrics["num_examples"]

    mine.need = ("label_entropy",)
    with pytest.raises(ComponentError, match=r"`need` is no trait of mine; did you mean `needs`"):
        federation(weighting=FunctionWeighting(mine))

    class Late(Policy):
        def __init__(self):
            self.read_updates = True

    with pytest.raises(ComponentError, match=r"`read_updates` is no trait of Late"):
        Traits.of(Late())

    class Measures(ByExamples):
        measures: ClassVar = (made(Disagreement, minimun=0.0),)

    with pytest.raises(ComponentError, match="did you mean `minimum`"):
        Traits.of(Measures())


def test_a_flag_that_became_an_option_by_its_annotation_is_found():
    @dataclass(frozen=True)
    class Mine(Uniform):
        read_updates: bool = True

    with pytest.raises(ComponentError, match="did you mean `reads_updates`"):
        Traits.of(Mine())


def test_what_a_part_has_for_itself_is_its_own():
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

    assert Traits.of(Mine()) == Traits.of(Clustered())


# ------------------------------------------------------------------------------------------------- wrong types


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        (
            "needs",
            "label_counts",
            r"^Mine\.needs must be a tuple of facts, such as .*; got 'label_counts'\.$",
        ),
        ("needs", None, "a tuple of facts"),
        ("needs", lambda self: ("label_counts",), "a tuple of facts"),
        ("needs", ("label_count",), r"must list facts; got 'label_count'\. Did you mean 'label_counts'\?"),
        ("measures", Disagreement(), "a tuple of measurements"),
        ("measures", (Disagreement,), r"must list measurements, with `name`, `wants_before` and `measure`"),
        ("measures", (3,), "must list measurements"),
        ("reads_updates", "yes", r"Mine\.reads_updates must be True or False; got 'yes'"),
        ("ignores_cohort", 1, "True or False"),
        ("memory_dtype", "float64", r"one of 'float32', 'float16'; got 'float64'"),
        ("minimum", "0", "a number, or None"),
    ],
)
def test_a_trait_of_the_wrong_type_is_refused(name, value, rule):
    with pytest.raises(ComponentError, match=rule):
        Traits.of(made(Uniform, **{name: value}))


def test_an_error_inside_a_trait_is_not_taken_for_its_absence():
    class Mine(Policy):
        @property
        def needs(self):
            return self.nowhere

    with pytest.raises(AttributeError, match="nowhere"):
        Traits.of(Mine())


# ------------------------------------------------------------------------------------------------- what is read


def test_traits_are_what_the_parts_say():
    assert Traits.of(Uniform()) == Traits()
    assert Traits.of(CSRA(threshold=1.0)) == Traits(ignores_cohort=True, needs_radio=True, needs=("label_counts",))
    assert Traits.of(Clustered()) == Traits(reads_updates=True, clusters=True, probes=True)
    assert Traits.of(Rademacher(n_clusters=2)) == Traits(measures=(WLRC(),), reads_updates=True, probes=True)
    assert Traits.of(Scaffold(memory_dtype="float16")) == Traits(
        affine=True, keeps_memory=True, sends_note=True, sends_state=True, memory_dtype="float16"
    )
    assert Traits.of(FedDyn()) == Traits(affine=True, keeps_memory=True)
    assert Traits.of(ServerOnly()) == Traits.of(Safari()) == Traits(trains_server=True)
    assert Traits.of(FineTune()) == Traits(tunes_server=True)
    assert Traits.of(FedDF()) == Traits(tunes_server=True, reads_updates=True, needs_classes=True)
    assert Traits.of(SecureAggregation()) == Traits(only_sum=True)
    assert Traits.of(Bernoulli(0.5)) == Traits(loses_replies=True)
    assert Traits.of(Disagreement()).minimum > 0


def test_parts_made_of_parts_need_what_those_need():
    def mine(reports):
        return reports.metrics["num_examples"]

    mine.needs = ["label_counts"]
    nested = Clip(Mix((ByEntropy(), Product((ByEntropy(), FunctionWeighting(mine))))), max=0.5)
    assert Traits.of(nested).needs == ("label_entropy", "label_counts")
    assert not Traits.of(nested).own_weight
    assert Traits.of(Product((ByEntropy(), ByExamples()))).own_weight
    assert not Traits.of(Product((ByEntropy(), nested))).own_weight

    @dataclass(frozen=True)
    class Halves:  # a user's, which says nothing of `needs`
        inner: object

        def weights(self, state, reports):
            return self.inner.weights(state, reports)

    assert federation(weighting=Halves(nested)).needs() == {"label_entropy", "label_counts"}

    @dataclass(frozen=True)
    class Tries(Policy):
        inner: object

        def select(self, state, view, k, rng):
            return self.inner.select(state, view, k, rng)

    whole = federation(Tries(Clustered()))
    assert whole.traits["selection"].reads_updates
    with pytest.raises(ConfigError, match="looks at single clients' labels or updates"):
        replace(whole, label_statistics=SecureAggregation())


def test_a_part_that_lacks_something_of_its_protocol_is_refused():
    with pytest.raises(ComponentError, match=r"Mine must have all of \S+Selection; select missing\."):
        federation(made(Policy))
    with pytest.raises(ComponentError, match=r"all of \S+LocalSolver; .*remember, conclude, adapted.* missing"):
        replace(federation(), solver=made(FedAvg, prepare=lambda self, memory, state, share: {}))


def test_what_any_part_needs_is_asked_for():
    whole = replace(federation(), server=made(Average, needs=("label_counts",), measures=(WLRC(),)))
    assert whole.needs() == {"label_counts"}
    assert whole.measurements() == (WLRC(),)
    with pytest.raises(ConfigError, match="Mine looks at single clients' labels or updates"):
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

    assert [Traits.of(part()).affine for part in (FedProx, Heir, Changed, Said, Denied)] == [1, 1, 0, 1, 0]

    class OtherWeights(ByExamples):
        def weights(self, state, reports):
            return np.full(len(reports.ids), 1 / len(reports.ids)), state

    assert not Traits.of(OtherWeights()).own_weight
    with pytest.raises(ConfigError, match="OtherWeights compares clients"):
        replace(federation(weighting=OtherWeights()), label_statistics=SecureAggregation())


def test_a_part_that_is_watched_says_what_it_always_says():
    for part in (Clustered(), ByEntropy(), Scaffold(), FedProx(), Bernoulli(0.5), FunctionSelection(len)):
        assert Traits.of(WatchedGenerator(part)) == Traits.of(part)


def test_traits_are_read_once_a_federation():
    asked = []

    class Mine(Policy):
        @property
        def needs(self):
            asked.append(1)
            return ()

        select = Uniform.select

    whole = federation(Mine())
    before = len(asked)
    for _ in range(3):
        whole.needs()
        whole.measurements()
    assert len(asked) == before

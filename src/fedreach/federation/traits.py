"""Traits: what a component declares in addition to its methods, read once. Nothing else uses `getattr` on it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from numbers import Real
from types import MappingProxyType
from typing import Any, get_args

import numpy as np

from fedreach._util.errors import ComponentError, nearest
from fedreach._util.registry import KINDS, import_object
from fedreach._util.row_store import Dtype
from fedreach.federation.base import Measurement
from fedreach.federation.types import Probe, ServerView, State


def name_of(part: object) -> str:
    """Return the name of a component in messages: its `name`, a function's name, or that of its class."""
    return str(getattr(part, "name", None) or getattr(part, "__name__", None) or part.__class__.__name__)


CLIENT_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "label_counts": "number of training examples per class, c numbers a client, sent once",
        "label_entropy": "entropy of the client's labels in nats, one number a client, sent once",
    }
)
"""What a component may ask of clients through its attribute `needs`; 4 bytes per number, counted in round 1."""


def no_probe(self: object, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
    """Return no probe; a policy with this method `probe` is not called, and needs no generator."""
    return None


@dataclass(frozen=True)
class Traits:
    """What a component declares in addition to its methods: optional attributes, and the optional methods that it has.

    A component that contains others of its type, as `inner` or `parts`, or a `function`, needs and measures what they
    do.

    A promise about a method (`affine` about `correct`, `minimum` about `measure`) holds for the method that it was made
    for: a subclass with a method of its own makes the promise again, or it does not count.

    Example:
        >>> from fedreach.federation.weighting import ByEntropy
        >>> Traits.of(ByEntropy()).needs, Traits.of(ByEntropy()).own_weight
        (('label_entropy',), True)
    """

    # Attributes of the same name; a class, an instance or a property may have them.
    needs: tuple[str, ...] = ()  # client statistics, see `CLIENT_STATISTICS`
    measures: tuple[Measurement, ...] = ()  # what clients measure after local training
    reads_updates: bool = False  # of single clients
    needs_radio: bool = False  # channels and devices
    reads_length: bool = False  # a selection depends on the length of the run
    ignores_cohort: bool = False  # may choose more than k
    only_sum: bool = False  # the server sees sums over clients only
    sends_note: bool = False  # clients send the change of their memory
    sends_state: bool = False  # the server sends its state of the solver
    memory_dtype: Dtype = "float32"  # in which clients' memories are kept
    affine: bool = False  # `correct` returns g + pull (w - w0) + shift
    linear: bool = False  # `combine` returns the weighted sum
    remembers_updates: bool = False  # `combine` is handed what clients sent last
    cross_entropy: bool = False  # the loss is that of the outputs as they are
    squared_error: bool = False  # the loss is the mean squared error of the outputs as they are
    scales_targets: bool = False  # a loss of numbers is handed targets and outputs on the participants' scale
    needs_classes: bool = False  # targets must be classes,
    needs_numbers: bool = False  # or numbers
    reads_inputs: bool = False  # an adaptation rule reads features and inputs, in addition to logits
    reads_oracle_prior: bool = False  # an adaptation rule needs labels of the adapting clients: a reference
    needs_batchnorm: bool = False  # an adaptation rule refreshes BatchNorm layers after convolutions
    needs_features: bool = False  # an adaptation rule can do nothing with a model that has no last linear layer
    keeps_bias: bool = False  # an adaptation rule trusts the model's mean prediction, not the class prior
    minimum: float | None = None  # of a measurement or a loss: no honest client's number is below it,
    maximum: float | None = None  # or above it
    lower_is_better: bool = False  # of a metric

    # Methods that the component has, see `METHODS`.
    probes: bool = False
    clusters: bool = False
    own_weight: bool = False
    scales_mean: bool = False
    loses_replies: bool = False
    keeps_memory: bool = False
    trains_server: bool = False
    tunes_server: bool = False
    knows_prior: bool = False
    learns_labels: bool = False
    learns_more_labels: bool = False
    serves_many: bool = False
    adapts_online: bool = False
    shifts_outputs: bool = False
    sees_more: bool = False
    remembers_clients: bool = False
    knows_possible: bool = False

    @property
    def needs_labels(self) -> bool:
        """Whether an adaptation rule is given labels of the adapting clients in evaluation."""
        return self.reads_oracle_prior or self.learns_labels

    @property
    def is_reference(self) -> bool:
        """Whether an adaptation rule cannot be deployed: it needs labels that clients do not have."""
        return self.needs_labels and not self.learns_more_labels

    @classmethod
    def of(cls, part: object) -> Traits:
        """Read the traits of a component.

        Raises:
            ComponentError: If something looks like a misspelled trait, or a trait is of the wrong type.

        Example:
            >>> class MyPolicy:
            ...     read_updates = True
            >>> Traits.of(MyPolicy())
            Traceback (most recent call last):
            fedreach.ComponentError: `read_updates` is no trait of MyPolicy; did you mean `reads_updates`?
        """
        kind: type = part.__class__  # a proxy may name another class
        owners, instance_attributes = _owners(kind), vars(part) if hasattr(part, "__dict__") else {}
        extra_attributes = {key: value for key, value in instance_attributes.items() if key not in _options(kind)}
        for name, suggestion in (*_misspelled_in_class(kind), *_find_misspelled(extra_attributes, kind)):
            raise ComponentError(
                f"`{name}` is no trait of {getattr(part, '__name__', kind.__name__)}; did you mean `{suggestion}`?"
            )
        # Looking up missing attributes is slow, and only a proxy needs it.
        names = NAMES if hasattr(type(part), "__getattr__") else NAMES & (owners.keys() | instance_attributes.keys())
        values: dict[str, Any] = {name: _read_attribute(part, name, owners) for name in ATTRIBUTES if name in names}
        values |= {trait: _has(part, method) for trait, method in METHODS.items() if method in names}
        broken = [trait for trait in PROMISES if trait in values and not _holds_for_methods(owners, *PROMISES[trait])]
        values |= {trait: ATTRIBUTES.get(trait, False) for trait in broken}
        for inner_traits in map(cls.of, _inner_parts(part)):
            values |= {key: (*values.get(key, ()), *getattr(inner_traits, key)) for key in ("needs", "measures")}
            values |= {key: values.get(key, False) or getattr(inner_traits, key) for key in INHERITED}
        if "needs" in values:
            values["needs"] = tuple(dict.fromkeys(values["needs"]))
        return cls(**values)


INHERITED = ("reads_updates", "reads_length", "needs_radio", "needs_classes", "needs_numbers", "scales_targets")
"""Traits that a component inherits from the components that it contains."""

METHODS: Mapping[str, str] = {
    "probes": "probe",
    "clusters": "clusters",
    "own_weight": "raw",
    "scales_mean": "mean_scale",
    "loses_replies": "replies",
    "keeps_memory": "prepare",
    "trains_server": "trains",
    "tunes_server": "tunes",
    "knows_prior": "with_prior",
    "learns_labels": "with_labels",
    "learns_more_labels": "learn_labels",
    "serves_many": "update_many",
    "adapts_online": "predict_online",
    "shifts_outputs": "shift",
    "sees_more": "objective",
    "remembers_clients": "keep",
    "knows_possible": "possible",
}
"""Trait -> the optional method that a component with it has."""

PROMISES: Mapping[str, tuple[str, ...]] = {
    "affine": ("affine", "correct"),
    "linear": ("linear", "combine"),
    "remembers_updates": ("remembers_updates", "combine"),
    "cross_entropy": ("cross_entropy", "per_example"),
    "squared_error": ("squared_error", "per_example"),
    "own_weight": ("raw", "weights"),
    "scales_mean": ("mean_scale", "weights"),
    "knows_possible": ("possible", "release", "contribute"),
    "minimum": ("minimum", "measure", "per_example"),
    "maximum": ("maximum", "measure", "per_example"),
}
"""Trait -> the attribute or method that declares it, and the methods of components that it covers."""

ATTRIBUTES: Mapping[str, Any] = {field.name: field.default for field in fields(Traits) if field.name not in METHODS}
"""Trait that is stated as an attribute -> what holds where it is not."""

NAMES = ATTRIBUTES.keys() | METHODS.values() | {method for _, *methods in PROMISES.values() for method in methods}
"""All attributes and methods that are read from a component."""


def types_of(part: object) -> list[str]:
    """Return the types whose methods a component has, see `fedreach._util.registry.Kind.known_by`.

    Example:
        >>> from fedreach.federation.weighting import Equal
        >>> types_of(Equal())
        ['weighting']
    """
    return [kind for kind, row in KINDS.items() if row.known_by and all(_has(part, name) for name in row.known_by)]


def missing_protocols(kind: str, part: object) -> list[str]:
    """Return which protocols of its type a component does not implement in full, and what is missing."""
    row = KINDS[kind]
    protocols = [row.protocol, *(protocol for method, protocol in row.also.items() if _has(part, method))]
    return [
        f"must have all of {where.replace(':', '.')}; {', '.join(missing)} missing."
        for where in protocols
        if (missing := _missing(part, import_object(where)))
    ]


def _missing(part: object, protocol: type) -> list[str]:
    """Return which methods, properties and attributes of a protocol an object does not have."""
    methods, attributes = _members(protocol)
    missing = [key for key in methods if not callable(getattr(part, key, None))]
    return missing + [key for key in attributes if not hasattr(part, key)]


@cache
def _members(protocol: type) -> tuple[list[str], list[str]]:
    methods = [key for key, value in vars(protocol).items() if inspect.isfunction(value) and key[0] != "_"]
    attributes = [key for key, value in vars(protocol).items() if isinstance(value, property)]
    return methods, attributes + list(inspect.get_annotations(protocol))


@cache
def _owners(cls: type) -> dict[str, int]:
    """Return the depth in the class hierarchy at which each trait is defined, 0 for the class itself."""
    return {name: i for i, owner in reversed([*enumerate(cls.__mro__)]) for name in NAMES & vars(owner).keys()}


def _has(part: object, method: str) -> bool:
    return callable(getattr(part, method, None)) and getattr(part.__class__, method, None) is not no_probe


def _holds_for_methods(owners: Mapping[str, int], promise: str, *methods: str) -> bool:
    """Return whether a promise covers the methods that the component has, not ones that it replaced."""
    depth = owners.get(promise, len(owners))
    return all(depth <= owners[method] for method in methods if method in owners)


def _inner_parts(part: object) -> list[object]:
    parts = getattr(part, "parts", ())
    candidates = (getattr(part, "inner", None), *(parts if isinstance(parts, tuple | list) else ()))
    function = getattr(part, "function", None)
    return [candidate for candidate in candidates if candidate is not None and types_of(candidate)] + [
        function
    ] * callable(function)


def _read_attribute(part: object, name: str, owners: Mapping[str, int]) -> Any:
    """Return the value of a trait, or raise an error that explains what is wrong."""
    default = ATTRIBUTES[name]
    # An AttributeError raised in a property is an error; a proxy may lack the attribute.
    value = getattr(part, name) if name in owners else getattr(part, name, default)
    if isinstance(default, bool):
        rule, right = "True or False", isinstance(value, bool | np.bool_)
    elif isinstance(default, tuple):
        rule = "a tuple of facts, such as ('label_counts',)" if name == "needs" else "a tuple of measurements"
        right = isinstance(value, tuple | list | set | frozenset)
    elif name in ("minimum", "maximum"):
        rule, right = "a number, or None", value is None or isinstance(value, Real)
    else:
        rule, right = f"one of {', '.join(map(repr, get_args(Dtype)))}", value in get_args(Dtype)
    where = f"{name_of(part)}.{name}"
    if not right:
        raise ComponentError(f"{where} must be {rule}; got {value!r}.")
    for fact in value if name == "needs" else ():
        if fact not in CLIENT_STATISTICS:
            raise ComponentError(f"{where} must list facts; got {fact!r}." + nearest(str(fact), CLIENT_STATISTICS))
    for measurement in value if name == "measures" else ():
        if not isinstance(measurement, Measurement) or isinstance(measurement, type):
            raise ComponentError(
                f"{where} must list measurements, with `name`, `wants_before` and `measure`; got {measurement!r}."
            )
        Traits.of(measurement)
    return tuple(value) if isinstance(default, tuple) else value


@cache
def _misspelled_in_class(cls: type) -> tuple[tuple[str, str], ...]:
    """Return (name, trait that it is near to) of what a class and those above it define."""
    return tuple(pair for owner in cls.__mro__ for pair in _find_misspelled(vars(owner), cls))


@cache
def _options(cls: type) -> dict[str, Any]:
    return {field.name: field.default for field in fields(cls)} if is_dataclass(cls) else {}


def _find_misspelled(attributes: Mapping[str, Any], cls: type) -> Iterator[tuple[str, str]]:
    """Yield (name, trait with a similar name) of the attributes of a component or of a base class.

    A method is compared with optional methods, anything else with attributes. A field of a dataclass is an option of
    the component, and is skipped unless it is a flag whose name is almost a trait.
    """
    options = _options(cls)
    for name, value in attributes.items():
        if name.startswith("_") or name in ATTRIBUTES:
            continue
        if callable(value) or isinstance(value, classmethod | staticmethod):
            names, cutoff = [method for method in METHODS.values() if not callable(getattr(cls, method, None))], 0.9
        elif name in options:
            names = [key for key, default in ATTRIBUTES.items() if isinstance(default, bool)]
            names, cutoff = names if isinstance(options[name], bool) else [], 0.9
        else:
            names, cutoff = list(ATTRIBUTES), 0.8
        yield from ((name, suggestion) for suggestion in difflib.get_close_matches(name, names, n=1, cutoff=cutoff))

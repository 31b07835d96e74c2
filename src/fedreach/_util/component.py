"""The base class of all components, and the checks of their options and attributes."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import Field
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from fedreach._util.arrays import Dtype
from fedreach._util.errors import ComponentError, nearest, require

CLIENT_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "label_counts": "number of training examples per class, c numbers per client, sent once",
        "label_entropy": "entropy of the client's labels in nats, one number per client, sent once",
    }
)
"""Client statistics that a component can request in its attribute `needs`.

Each number adds 4 bytes to the communication of round 1.
"""


class Options:
    """Base class of dataclasses whose options are checked against their annotations.

    ``Annotated[float, "(0, 1]"]`` sets the range of an option (see `require`). A ``Literal`` lists its allowed values.
    A subclass that defines ``__post_init__`` must call ``super().__post_init__()``.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Decay(Options):
        ...     factor: Annotated[float, "(0, 1]: Use 1 for no decay."] = 0.9
        >>> Decay(factor=0.0)
        Traceback (most recent call last):
        fedreach.ConfigError: Decay.factor must be in (0, 1]; got 0.0. Use 1 for no decay.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        require(self, **option_rules(kind))


@cache
def option_rules(cls: type[Any]) -> Mapping[str, str | tuple[str, ...]]:
    """Return the rules of a dataclass's options by name (see `Options`)."""
    rules: dict[str, str | tuple[str, ...]] = {}
    for parent in reversed(cls.__mro__):
        try:
            annotations = inspect.get_annotations(parent, eval_str=True)
        except Exception:  # annotations under TYPE_CHECKING cannot be evaluated; the base classes' rules still apply
            continue
        for name, hint in annotations.items():
            origin: Any = get_origin(hint)
            if origin is Annotated and _is_rule(hint.__metadata__[0]):
                rules[name] = hint.__metadata__[0]
            elif origin is Literal:
                rules[name] = get_args(hint)
    return {field.name: rules[field.name] for field in dataclasses.fields(cls) if field.name in rules}


def _is_rule(metadata: object) -> bool:
    """Return whether the metadata of an annotation is a rule; other libraries store other metadata there."""
    return isinstance(metadata, tuple) or (isinstance(metadata, str) and metadata.startswith(("(", "[")))


class Component(Options, ABC):
    """Base class of components; class attributes declare what a component needs and supports.

    Derive a component from the base class of its type, such as `fedreach.Selection`. The documentation of that class
    lists further attributes. FedReach checks attributes when the class is defined. A misspelled name, a value of the
    wrong type and a missing method raise ComponentError.

    A promise such as `affine` describes the behavior of certain methods. If a subclass overrides one of these methods,
    the promise no longer applies unless the subclass declares it again.

    Example:
        >>> class Mine(Component):
        ...     read_updates = True
        Traceback (most recent call last):
        fedreach.ComponentError: Mine has no attribute `read_updates`. Did you mean `reads_updates`?
    """

    component_type: ClassVar[str] = ""
    abilities: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Attribute -> optional methods. Defining the first method sets the attribute to True and requires the others."""
    promises: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Attribute -> methods whose behavior it promises."""

    needs: tuple[str, ...] = ()  # client statistics (see `CLIENT_STATISTICS`)
    measures: tuple[Any, ...] = ()  # measurements that clients make after local training
    reads_updates: bool = False  # reads the update of each client
    needs_radio: bool = False  # reads channels and devices
    needs_classes: bool = False  # requires class labels
    needs_numbers: bool = False  # requires numeric targets

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "component_type" in vars(cls):  # the base class of a type
            return
        _check_names(cls, vars(cls))
        base = cls.type_base()
        depth = {name: i for i, parent in reversed([*enumerate(cls.__mro__)]) for name in vars(parent)}
        defined = {name for name, i in depth.items() if i < depth["component_type"]}
        for flag, methods in cls.abilities.items():
            missing = [name for name in methods if name not in defined]
            if methods[0] in defined or vars(cls).get(flag) is True:
                if missing:
                    raise ComponentError(
                        f"{cls.__name__} must define {', '.join(methods)}; not defined: {', '.join(missing)}."
                    )
                if depth[methods[0]] < depth[flag]:
                    setattr(cls, flag, True)
        for flag, methods in cls.promises.items():
            declared = cls.abilities.get(flag, (flag,))[0]
            if declared in defined and any(depth[method] < depth[declared] for method in methods):
                setattr(cls, flag, getattr(base, flag))

    @classmethod
    def type_base(cls) -> type[Component]:
        """Return the base class of the component's type, such as `fedreach.Selection`."""
        return next(
            parent for parent in cls.__mro__ if issubclass(parent, Component) and "component_type" in vars(parent)
        )

    @classmethod
    def attributes(cls) -> dict[str, Any]:
        """Return the attributes that a component of this type can declare, with their defaults."""
        base = cls.type_base()
        annotations = inspect.get_annotations(Component) | inspect.get_annotations(base)
        return {name: getattr(base, name) for name, hint in annotations.items() if "ClassVar" not in str(hint)}

    def check_attributes(self) -> None:
        """Check properties and attributes of the instance, which are unknown when the class is defined.

        Raises:
            ComponentError: If a name is misspelled or a value has the wrong type.
        """
        options = inspect.get_annotations(type(self))
        _check_names(type(self), {key: value for key, value in vars(self).items() if key not in options})
        for name, default in self.attributes().items():
            _check_value(type(self).__name__, name, getattr(self, name), default)

    def take_attributes(self, function: object) -> None:
        """Copy the attributes of a wrapped function, such as ``function.needs = ("label_counts",)``."""
        _check_names(type(self), getattr(function, "__dict__", {}), name_of(function))
        for name, default in self.attributes().items():
            if hasattr(function, name) and not isinstance(getattr(type(self), name), property):
                value = getattr(function, name)
                _check_value(name_of(function), name, value, default)
                object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)

    def with_inner(self) -> Iterator[Component]:
        """Yield this component and the components inside it, such as the factors of a product of weightings."""
        yield self
        for value in vars(self).values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, Component):
                    yield from inner.with_inner()

    def declares(self, attribute: str) -> bool:
        """Return whether an attribute is True for this component or for a component inside it."""
        return any(getattr(component, attribute, False) for component in self.with_inner())


def name_of(component: object) -> str:
    """Return the name of a component in messages: its `name`, or else the name of its function or class."""
    name = getattr(component, "name", None) or getattr(component, "__name__", None)
    return str(name or component.__class__.__name__)


def wrong_base(component: object, base: type) -> str:
    """Return the message for an object that is not a component of the required type."""
    got = component.__name__ if isinstance(component, type) else type(component).__name__
    return f"must be an instance of a subclass of fedreach.{base.__name__}; got {got}."


def _check_names(cls: type[Component], values: Mapping[str, Any], owner: str = "") -> None:
    """Raise ComponentError for values of the wrong type and for names that resemble an attribute or method.

    Annotated names are options of a dataclass. Only Boolean options are compared with the Boolean attributes.
    """
    attributes, base, owner = cls.attributes(), cls.type_base(), owner or cls.__name__
    options = {name for name, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)}
    for name, value in values.items():
        if name in attributes:
            if not isinstance(value, property | Field):
                _check_value(owner, name, value, attributes[name])
            continue
        if name.startswith("_") or name in vars(Component) or name in vars(base):
            continue
        if callable(value) or isinstance(value, classmethod | staticmethod):
            kind, cutoff = "method", 0.9
            names = [key for key, method in vars(base).items() if callable(method) and getattr(cls, key) is method]
        elif name in options:
            kind, cutoff = "attribute", 0.9
            names = [
                key for key, default in attributes.items() if isinstance(default, bool) and isinstance(value, bool)
            ]
        else:
            kind, cutoff, names = "attribute", 0.8, [*attributes]
        for suggestion in difflib.get_close_matches(name, names, n=1, cutoff=cutoff):
            raise ComponentError(f"{owner} has no {kind} `{name}`. Did you mean `{suggestion}`?")


def _check_value(owner: str, name: str, value: Any, default: Any) -> None:
    """Raise ComponentError if a value is not of the type of the attribute's default."""
    where = f"{owner}.{name}"
    if isinstance(default, bool):
        rule, right = "True or False", isinstance(value, bool)
    elif isinstance(default, int):
        rule, right = "a whole number", isinstance(value, int)
    elif isinstance(default, tuple):
        example = "client statistics, such as ('label_counts',)" if name == "needs" else "measurements"
        rule, right = f"a tuple of {example}", isinstance(value, tuple | list)
    else:
        rule, right = f"one of {', '.join(map(repr, get_args(Dtype)))}", value in get_args(Dtype)
    if not right:
        raise ComponentError(f"{where} must be {rule}; got {value!r}.")
    for statistic in value if name == "needs" else ():
        if statistic not in CLIENT_STATISTICS:
            hint = nearest(str(statistic), CLIENT_STATISTICS)
            raise ComponentError(f"{where} must list client statistics; got {statistic!r}.{hint}")
    for measurement in value if name == "measures" else ():
        if getattr(measurement, "component_type", "") != "measurement" or isinstance(measurement, type):
            raise ComponentError(f"{where} must list instances of subclasses of Measurement; got {measurement!r}.")

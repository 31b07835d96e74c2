"""Functions that check components, for `fedreach.testing.check` and ``fedreach verify``."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedreach._util import registry
from fedreach._util.errors import ConfigError, nearest
from fedreach.federation.weighting import ByEntropy, ByExamples
from fedreach.testing.base import NEEDS_LIBRARY, Check, CheckResults, Subject, options_define_the_component, run_checks

_PARTS = (ByEntropy(), ByExamples())

EXAMPLE_OPTIONS: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType(
    {
        ("selection", "rademacher"): {"n_clusters": 2},  # the smallest federations have six clients
        ("weighting", "product"): {"parts": _PARTS},
        ("weighting", "mix"): {"parts": _PARTS},
        ("weighting", "clip"): {"inner": ByExamples(), "max": 0.3},
        ("aggregation", "dp_fedavg"): {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
        ("aggregation", "dp_ftrl"): {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
        ("participation", "bernoulli"): {"act_prob": 0.5, "reply_prob": 0.5},
        ("label_statistics", "discrete_laplace"): {"epsilon": 1.0},
        ("label_statistics", "discrete_gaussian"): {"epsilon": 1.0, "delta": 1e-5},
    }
)
"""(type, name) -> options for checking a built-in component whose defaults are unsuitable or missing."""


def kind_of(thing: Any) -> str:
    """Return the type of a component, class or function; the arguments of a function determine its type.

    Args:
        thing: Component, class of components, or function.

    Raises:
        ConfigError: If the class is not derived from the base class of a type.

    Example:
        >>> from fedreach.federation.weighting import Equal
        >>> kind_of(Equal())
        'weighting'
    """
    if inspect.isfunction(thing):
        parameters = [p.name for p in inspect.signature(thing).parameters.values() if p.default is p.empty]
        parameters_of = {
            kind: row.handed for kind, row in registry.COMPONENT_TYPES.items() if row.function and row.checked
        }
        return min(
            parameters_of,
            key=lambda kind: (
                abs(len(parameters_of[kind]) - len(parameters)),
                -len({*parameters} & {*parameters_of[kind]}),
            ),
        )
    kind: str = getattr(thing, "component_type", "")
    if kind not in registry.VERIFIED:
        name = thing.__name__ if inspect.isclass(thing) else type(thing).__name__
        bases = ", ".join(registry.COMPONENT_TYPES[kind].base.rpartition(":")[2] for kind in registry.VERIFIED)
        raise ConfigError(f"{name} must be derived from one of these classes of fedreach: {bases}.")
    return kind


def checks_of(kind: str) -> tuple[Check, ...]:
    """Return the checks of a component type: the checks in its module, and the checks for all types.

    Raises:
        ConfigError: If the type is unknown or has no checks.
    """
    if kind not in registry.VERIFIED:
        raise ConfigError(f"Unknown component type {kind!r}.{nearest(kind, registry.VERIFIED)}")
    contents = vars(importlib.import_module(f"fedreach.testing.checks.{kind}"))
    checks = [value for value in contents.values() if isinstance(value, Check)]
    return (*checks, *(contents["PLAYING"].checks() if "PLAYING" in contents else ()), options_define_the_component)


def check_component(
    kind: str,
    component: Any,
    *,
    options: Mapping[str, Any] | None = None,
    name: str = "",
    without: Sequence[str] = (),
) -> CheckResults:
    """Check a component, and return the results.

    Args:
        kind: Component type, one of `fedreach._util.registry.VERIFIED`.
        component: Component or function.
        options: Options of the component.
        name: Name of the component in messages. Default: the component's name.
        without: Names of checks to skip.

    Raises:
        ConfigError: If `without` contains an unknown check.
    """
    row = registry.COMPONENT_TYPES[kind]
    wrapper = registry.import_object(row.function) if row.function else None
    if wrapper is not None and inspect.isfunction(component):
        component = wrapper(component)
    made_with = {"function": component.function} if wrapper is not None and isinstance(component, wrapper) else options
    subject, checks = Subject.of(kind, component, made_with, name), checks_of(kind)
    for unwanted in without:
        if unwanted not in {check.name for check in checks}:
            names = [check.name for check in checks]
            raise ConfigError(f"Unknown check {unwanted!r} for {subject.name}.{nearest(unwanted, names)}")
    return run_checks(subject, [check for check in checks if check.name not in without])


def check_built_in(kind: str, name: str, options: Mapping[str, Any] | None = None) -> CheckResults:
    """Check a built-in component, and return the results.

    Args:
        kind: Component type.
        name: Name of the component.
        options: Options of the component. Default: the options in `EXAMPLE_OPTIONS`.

    Raises:
        ConfigError: If the component cannot be created with these options.
    """
    options = EXAMPLE_OPTIONS.get((kind, name), {}) if options is None else options
    options_text = ", ".join(f"{key}={value!r}" for key, value in options.items())
    try:
        component = registry.table(kind)[name](**options)
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be created: {error}. Add its options to {__name__}.EXAMPLE_OPTIONS."
        ) from error
    except ConfigError as error:
        if NEEDS_LIBRARY not in str(error):
            raise
        return CheckResults(kind, name, skipped=str(error))
    return check_component(kind, component, options=options, name=f"{name}({options_text})" if options_text else name)


def check(component: Any, kind: str | None = None, *, without: Sequence[str] = ()) -> None:
    """Check that a component satisfies the contract of its type.

    Args:
        component: Component, or a function such as ``(view, k, rng) -> ids`` for a selection policy or
            ``(reports) -> numbers`` for a weighting.
        kind: Component type, such as ``"selection"``. Default: the type of the component's base class.
        without: Names of checks to skip.

    Raises:
        CheckFailed: If a check fails. The message describes the first failure, and the notes list the others.
        ConfigError: If the component has no type, or requires a library that is not installed.

    Example:
        >>> from fedreach.federation.selection.random import Uniform
        >>> check(Uniform())
    """
    results = check_component(kind_of(component) if kind is None else kind, component, without=without)
    if results.skipped:
        raise ConfigError(results.skipped)
    if results.failures:
        first, *further_failures = results.failures
        for failure in further_failures:
            first.add_note(f'It also fails "{failure.check}": {failure.statement}')
        raise first

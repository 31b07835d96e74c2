"""Running the checks of a component's type: `fedreach.testing.check` for tests, and ``fedreach verify``."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedreach._util import registry
from fedreach._util.errors import ConfigError, nearest
from fedreach.federation.weighting import ByEntropy, ByExamples
from fedreach.testing.base import NEEDS_LIBRARY, Check, CheckResults, Subject, options_are_all_it_is, run_checks

_PARTS = (ByEntropy(), ByExamples())

EXAMPLE_OPTIONS: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType(
    {
        ("selection", "rademacher"): {"n_clusters": 2},  # the smallest federations have six clients
        ("weighting", "product"): {"parts": _PARTS},
        ("weighting", "mix"): {"parts": _PARTS},
        ("weighting", "clip"): {"inner": ByExamples(), "max": 0.3},
        ("participation", "bernoulli"): {"act_prob": 0.5, "reply_prob": 0.5},
        ("label_statistics", "discrete_laplace"): {"epsilon": 1.0},
        ("label_statistics", "discrete_gaussian"): {"epsilon": 1.0, "delta": 1e-5},
    }
)
"""(type, name) -> options with which a built-in component is checked whose defaults do not do."""


def kind_of(thing: Any) -> str:
    """Return the type of a component or of its class, or that of a function, by its arguments.

    Raises:
        ConfigError: If it is not derived from the base class of a type.

    Example:
        >>> from fedreach.federation.weighting import Equal
        >>> kind_of(Equal())
        'weighting'
    """
    if inspect.isfunction(thing):
        parameters = [p.name for p in inspect.signature(thing).parameters.values() if p.default is p.empty]
        parameters_of = {kind: row.handed for kind, row in registry.KINDS.items() if row.function}
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
        bases = ", ".join(registry.KINDS[kind].base.rpartition(":")[2] for kind in registry.VERIFIED)
        raise ConfigError(f"{name} is not a component. Derive it from one of fedreach's base classes: {bases}.")
    return kind


def checks_of(kind: str) -> tuple[Check, ...]:
    """Return the checks of a component type: those in its module, of all types that are run likewise, and of all."""
    if kind not in registry.VERIFIED:
        raise ConfigError(f"There is no kind of part {kind!r}.{nearest(kind, registry.VERIFIED)}")
    contents = vars(importlib.import_module(f"fedreach.testing.checks.{kind}"))
    checks = [value for value in contents.values() if isinstance(value, Check)]
    return (*checks, *(contents["PLAYING"].checks() if "PLAYING" in contents else ()), options_are_all_it_is)


def check_component(
    kind: str,
    component: Any,
    *,
    options: Mapping[str, Any] | None = None,
    name: str = "",
    without: Sequence[str] = (),
) -> CheckResults:
    """Run the checks of its type on a component.

    Args:
        kind: One of `fedreach._util.registry.VERIFIED`.
        component: The component, or a function.
        options: What the component was made with.
        name: What messages call it.
        without: Checks that are left out.

    Raises:
        ConfigError: If no check of the type has a name in `without`.
    """
    row = registry.KINDS[kind]
    wrapper = registry.import_object(row.function) if row.function else None
    if wrapper is not None and inspect.isfunction(component):
        component = wrapper(component)
    made_with = {"function": component.function} if wrapper is not None and isinstance(component, wrapper) else options
    subject, checks = Subject.of(kind, component, made_with, name), checks_of(kind)
    for unwanted in without:
        if unwanted not in {check.name for check in checks}:
            names = [check.name for check in checks]
            raise ConfigError(f"There is no check {unwanted!r} for {subject.name}.{nearest(unwanted, names)}")
    return run_checks(subject, [check for check in checks if check.name not in without])


def check_built_in(kind: str, name: str, options: Mapping[str, Any] | None = None) -> CheckResults:
    """Run the checks of its type on a built-in component, by default with `EXAMPLE_OPTIONS`."""
    options = EXAMPLE_OPTIONS.get((kind, name), {}) if options is None else options
    options_text = ", ".join(f"{key}={value!r}" for key, value in options.items())
    try:
        component = registry.table(kind)[name](**options)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made: {error}. EXAMPLE_OPTIONS in {__name__} says how.") from error
    except ConfigError as error:
        if NEEDS_LIBRARY not in str(error):
            raise
        return CheckResults(kind, name, skipped=str(error))
    return check_component(kind, component, options=options, name=f"{name}({options_text})" if options_text else name)


def check(component: Any, kind: str | None = None, *, without: Sequence[str] = ()) -> None:
    """Check that a component satisfies the contract of its type.

    Args:
        component: The component, or a function such as ``(view, k, rng) -> ids`` that selects or
            ``(reports) -> numbers`` that weighs.
        kind: One of `fedreach._util.registry.VERIFIED`; None: that of the component's base class.
        without: Names of checks that are left out.

    Raises:
        CheckFailed: Which check fails first, with which input, and what happened; further ones are in its notes.
        ConfigError: If the component is of no type, or needs a library that is not installed.

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

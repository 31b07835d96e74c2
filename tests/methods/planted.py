"""Built-in methods with a mistake, for tests: each is noted with the check of the method that it must fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest

from fedreach._util import registry
from fedreach.testing.base import Check
from fedreach.testing.verify import kind_of

from ..testing.planted import must_fail  # noqa: TID252 (tests are no package that has a name)
from . import (
    test_adaptation,
    test_adaptation_batchnorm,
    test_adaptation_few_labels,
    test_adaptation_few_shot,
    test_aggregation,
    test_allocation,
    test_label_statistics,
    test_loss,
    test_loss_objectives,
    test_measurement,
    test_metric,
    test_participation,
    test_selection,
    test_selection_clusters,
    test_selection_geometry,
    test_selection_hics,
    test_selection_oort,
    test_selection_radio,
    test_selection_urns,
    test_server,
    test_server_learning,
    test_solver,
    test_weighting,
    test_weighting_participation,
)

MODULES: Mapping[str, tuple[ModuleType, ...]] = {
    "aggregation": (test_aggregation,),
    "allocation": (test_allocation,),
    "label_statistics": (test_label_statistics,),
    "loss": (test_loss, test_loss_objectives),
    "measurement": (test_measurement,),
    "metric": (test_metric,),
    "participation": (test_participation,),
    "selection": (
        test_selection,
        test_selection_clusters,
        test_selection_geometry,
        test_selection_hics,
        test_selection_oort,
        test_selection_radio,
        test_selection_urns,
    ),
    "server": (test_server, test_server_learning),
    "adaptation": (test_adaptation, test_adaptation_batchnorm, test_adaptation_few_labels, test_adaptation_few_shot),
    "solver": (test_solver,),
    "weighting": (test_weighting, test_weighting_participation),
}
"""Component type -> the tests of its methods."""


def noting(faults: list[Any]) -> Callable[..., Callable[[type], type]]:
    """Return a decorator that puts a faulty class into the list, with the check that it must fail."""

    def caught_by(check: str, kind: str | None = None, **options: Any) -> Callable[[type], type]:
        def note(cls: type) -> type:
            identity = f"{cls.__name__}-{check}"
            faults.append(
                pytest.param(kind or kind_of(cls), cls, options, check, id=identity, marks=pytest.mark.planted)
            )
            return cls

        return note

    return caught_by


def checks_of_method(kind: str, name: str) -> list[Check]:
    """Return the checks of one built-in method."""
    found = [check for module in MODULES[kind] for check in module.METHOD_CHECKS.get(name, ())]
    return list(dict.fromkeys(found))


def methods_like(kind: str, cls: type) -> list[str]:
    """Return the built-in methods that a class inherits from, or is named after."""
    names = {base.__name__ for base in cls.__mro__}
    return [name for name, method in registry.table(kind).items() if method.__name__ in names]


def must_be_caught(kind: str, cls: type, options: Mapping[str, Any], check: str) -> None:
    """Assert that the component fails the check of this name of the method that it spoils."""
    own = dict.fromkeys(each for name in methods_like(kind, cls) for each in checks_of_method(kind, name))
    must_fail([each for each in own if each.name == check], kind, cls, options)

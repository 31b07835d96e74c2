"""What is compared, as Python says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

Part = Any
"""A name, a table ``{"name": ..., option: value}``, a class, a function where functions are parts, or a part itself."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The parts of one federated method; what is left out is what `compare` is told as `method`, or the default.

    Each part may be a name of ``fedreach list``, a dictionary with a ``name`` and options, one of FedReach's classes or
    one's own, an instance of them, or, where the kind allows it, a plain function.

    Example:
        >>> from fedreach.federation.selection import PowerOfChoice
        >>> Method(selection=PowerOfChoice(candidates=20), server="adam", local={"rate": 0.05}).cohort is None
        True
    """

    selection: Part = None  # who trains; default: uniform
    weighting: Part = None  # how much each report counts; default: by_examples
    solver: Part = None  # how clients train; default: fedavg
    server: Part = None  # what the server makes of the reports; default: average
    aggregation: Part = None  # how reports become one; default: mean
    loss: Part = None  # what clients' models are trained to make small; default: cross_entropy, of numbers mse
    serving: Part = None  # how an unseen client is served; default: none
    label_statistics: Part = None  # what the server hears of clients' labels; default: exact
    allocation: Part = None  # who gets which share of the band, with a radio
    cohort: int | None = None  # clients a round
    local: Mapping[str, Any] | None = None  # options of `fedreach.federation.local_sgd.LocalSGD` that differ

    def said(self) -> dict[str, Any]:
        """Return what is not left out."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

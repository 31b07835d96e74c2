"""Whether parts and data go together: some take targets that are classes, others targets that are numbers."""

from __future__ import annotations

from typing import Protocol

from fedreach.errors import ConfigError
from fedreach.federation.federation import Federation
from fedreach.federation.traits import Traits, name_of


class HasTargets(Protocol):
    """What is asked of a data set."""

    @property
    def name(self) -> str:
        """In messages."""

    @property
    def num_classes(self) -> int:
        """0 where targets are numbers."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Shape of an example's labels where each position has one; else ()."""


def refuse_targets(kind: str, part: object, data: HasTargets) -> None:
    """Refuse a part that does not take what data have as targets.

    Raises:
        ConfigError: If it needs classes and they are numbers, or the other way round.
    """
    traits = Traits.of(part)
    measured = any(Traits.of(measurement).needs_classes for measurement in traits.measures)
    needs_classes = traits.needs_classes or traits.needs or traits.shifts_outputs or measured
    if needs_classes and not data.num_classes:
        advice = "Take loss = 'mse' or 'huber'" if kind == "loss" else "Take another, or make classes of them"
        raise ConfigError(
            f"{kind} {name_of(part)} needs targets that are classes, and those of {data.name} are numbers. {advice}; "
            "where they stand for classes, write them as whole numbers."
        )
    if data.positions and kind != "metric" and (why := _why_not_at_positions(traits)):
        raise ConfigError(
            f"{kind} {name_of(part)} {why}, and {data.name} has a label at every position. Take another, or "
            "leave it out."
        )
    if traits.needs_numbers and data.num_classes:
        advice = "loss = 'cross_entropy'" if kind == "loss" else "another"
        raise ConfigError(
            f"{kind} {name_of(part)} needs targets that are numbers, and those of {data.name} are classes. Take "
            f"{advice}, or give numbers: floats as labels, or of a table `target` instead of `label`."
        )


def _why_not_at_positions(traits: Traits) -> str:
    """Return why a part cannot be used where each position of an example has a label; "" where it can."""
    if traits.needs:
        return "goes by how many examples of each class a client has"
    if traits.shifts_outputs:
        return "shifts outputs by how many examples of each class a client has"
    if traits.sees_more:
        return "sees one output an example"
    if traits.measures:
        return "measures outputs of one row an example"
    return "learns from outputs of one row an example" if traits.tunes_server else ""


def refuse_targets_of(federation: Federation, data: HasTargets) -> None:
    """Refuse a federation of which a part does not take what data have as targets, see `refuse_targets`."""
    for kind in federation.traits:
        refuse_targets(kind, getattr(federation, kind), data)
    if federation.serves and data.positions:
        raise ConfigError(
            f"serving {name_of(federation.serving)} estimates the class of an example, and {data.name} has a label at "
            "every position. Leave serving out."
        )
    if federation.augmentation is not None and data.positions:
        raise ConfigError(
            f"augmentation {name_of(federation.augmentation)} changes inputs alone, and {data.name} has a label at "
            "every position, which would have to move with them. Augment the data set itself."
        )
    if federation.serves and not data.num_classes:
        raise ConfigError(
            f"serving {name_of(federation.serving)} estimates class shares, and targets of {data.name} are numbers. "
            "Leave serving out."
        )

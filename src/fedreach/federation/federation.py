"""A federation: the parts that decide, and what they ask of clients together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from fedreach.errors import ConfigError, PartError, nearest
from fedreach.federation.labels import Exact
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.protocols import (
    LabelStatistics,
    LocalSolver,
    Measurement,
    MemorySolver,
    SelectionPolicy,
    ServerStep,
    ServerTrains,
    Weighting,
)
from fedreach.federation.traits import FACTS, name_of
from fedreach.wireless.allocation.rules import AllocationRule
from fedreach.wireless.radio import Radio


@dataclass(frozen=True)
class Federation:
    """Parts that combine freely; the repr is the configuration."""

    selection: SelectionPolicy
    weighting: Weighting
    solver: LocalSolver
    local: LocalSGD
    server: ServerStep
    cohort: int
    seed: int
    label_statistics: LabelStatistics = field(default_factory=Exact)
    radio: Radio | None = None  # seconds and joules are accounted for where there is one
    allocation: AllocationRule | None = None  # None: the selection policy's own, or else the exact one for its choice

    def __post_init__(self) -> None:
        if self.radio is None:
            for part, asks in (
                (self.allocation, self.allocation is not None),
                (self.selection, getattr(self.selection, "needs_radio", False)),
            ):
                if asks:
                    raise ConfigError(
                        f"{name_of(part)} needs to know channels and devices, and there is no radio. Add a section "
                        "`[radio]` to the experiment, or `radio=Radio()` to the `Federation`."
                    )
        for name, least in {"cohort": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"Federation.{name} must be at least {least}; got {getattr(self, name)}.")
        if self.label_statistics.only_sum:
            self._refuse_what_sees_single_clients()

    def _refuse_what_sees_single_clients(self) -> None:
        hidden = f"{name_of(self.label_statistics)} shows the server sums only"
        selection = self.selection
        if any(getattr(selection, trait, ()) for trait in ("needs", "reads_updates", "measures")):
            raise ConfigError(
                f"{hidden}, but {name_of(selection)} looks at single clients' labels or updates, or measures them."
            )
        if not hasattr(self.weighting, "raw"):
            raise ConfigError(
                f"{hidden}, so that each client must know its own weight; {name_of(self.weighting)} compares clients. "
                "Choose a weighting with a method `raw`, such as 'by_examples', 'equal', 'entropy' or 'disagreement'."
            )

    def needs(self) -> frozenset[str]:
        """Return the facts that the parts ask of clients.

        Raises:
            PartError: If a part asks for something that is not in `FACTS`.
        """
        asked: set[str] = set()
        for part in (self.selection, self.weighting):
            for fact in getattr(part, "needs", ()):
                if fact not in FACTS:
                    raise PartError(f"{name_of(part)}.needs must list facts; got {fact!r}." + nearest(fact, FACTS))
                asked.add(fact)
        return frozenset(asked)

    def measurements(self) -> tuple[Measurement, ...]:
        """Return what the parts have clients measure.

        Raises:
            PartError: If two of them give one name to different measurements.
        """
        found: dict[str, Measurement] = {}
        for part in (self.selection, self.weighting):
            for measurement in getattr(part, "measures", ()):
                if found.setdefault(measurement.name, measurement) != measurement:
                    raise PartError(
                        f"Two parts ask for {measurement.name!r}, but not the same: {found[measurement.name]} "
                        f"and {measurement}. Give both the same options."
                    )
        return tuple(found.values())

    # Kept: a round asks for them many times, and `isinstance` of a protocol looks at every member anew.
    @cached_property
    def memory_solver(self) -> MemorySolver | None:
        """The solver, where clients keep a vector between rounds."""
        return self.solver if isinstance(self.solver, MemorySolver) else None

    @cached_property
    def training_server(self) -> ServerTrains | None:
        """The server step, where the server may train on its own data."""
        return self.server if isinstance(self.server, ServerTrains) else None

    @property
    def has_memory(self) -> bool:
        """Whether clients keep a vector between rounds."""
        return self.memory_solver is not None

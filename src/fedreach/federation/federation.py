"""A federation: the parts that decide, and what they ask of clients together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import cast

from fedreach.errors import ConfigError, PartError
from fedreach.federation.aggregation import Mean
from fedreach.federation.augmentations import Augmentation
from fedreach.federation.labels import Exact, SecureSum
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.objectives import RemembersClients
from fedreach.federation.protocols import (
    Aggregator,
    LabelStatistics,
    LocalSolver,
    Loss,
    Measurement,
    MemorySolver,
    SelectionPolicy,
    ServerStep,
    ServerTrains,
    ServerTunes,
    Serving,
    Weighting,
)
from fedreach.federation.serving import Plain
from fedreach.federation.traits import Traits, lacking, name_of
from fedreach.registry import KINDS
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
    aggregation: Aggregator = field(default_factory=Mean)
    loss: Loss = field(default_factory=CrossEntropy)
    serving: Serving = field(default_factory=Plain)
    label_statistics: LabelStatistics = field(default_factory=Exact)
    augmentation: Augmentation | None = None  # of clients' training batches
    radio: Radio | None = None  # seconds and joules are accounted for where there is one
    allocation: AllocationRule | None = None  # None: the selection policy's own, or else the exact one for its choice

    def __post_init__(self) -> None:
        if self.radio is None:
            for part, asks in (
                (self.allocation, self.allocation is not None),
                (self.selection, self.traits["selection"].needs_radio),
            ):
                if asks:
                    raise ConfigError(
                        f"{name_of(part)} needs to know channels and devices, and there is no radio. Add a section "
                        "`[radio]` to the experiment, or `radio=Radio()` to the `Federation`."
                    )
        for name, least in {"cohort": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"Federation.{name} must be at least {least}; got {getattr(self, name)}.")
        if self.traits["label_statistics"].only_sum:
            self._refuse_what_sees_single_clients()
        if self.serves and not isinstance(self.label_statistics, Exact | SecureSum):
            raise ConfigError(
                f"{name_of(self.serving)} adds up what participants see of their own labels, and "
                f"{name_of(self.label_statistics)} would not noise that. Use label_statistics = 'secure_sum', by which "
                "the server sees sums only, or 'exact'."
            )
        if self.traits["aggregation"].remembers_updates and self.traits["weighting"].scales_mean:
            raise ConfigError(
                f"{name_of(self.weighting)} scales the mean of those that are there, and {name_of(self.aggregation)} "
                "takes that over all clients already. Use one of them: another weighting, such as 'equal', or "
                "aggregation = 'mean'."
            )
        if self.memory_solver is not None and self.memory_loss is not None:
            raise ConfigError(
                f"{name_of(self.solver)} and {name_of(self.loss)} each have clients keep a vector between rounds, and "
                "there is room for one. Use a solver without a memory, such as 'fedprox', or another loss."
            )
        if self.memory_solver is not None and self.local.optimizer is not None:
            raise ConfigError(
                f"{name_of(self.solver)} works out what clients keep from how far plain gradient steps move; got "
                f"local.optimizer {type(self.local.optimizer).__name__}. Use 'sgd', or a solver without a memory, such "
                "as 'fedprox'."
            )
        for kind in self.traits:
            part = getattr(self, kind)
            for rule in lacking(kind, part) if part is not None else ():
                raise PartError(f"{name_of(part)} {rule}")

    def _refuse_what_sees_single_clients(self) -> None:
        hidden = f"{name_of(self.label_statistics)} shows the server sums only"
        for kind, traits in self.traits.items():  # what a weighting needs, each client knows of itself
            if traits.reads_updates or (kind != "weighting" and (traits.needs or traits.measures)):
                raise ConfigError(
                    f"{hidden}, but {name_of(getattr(self, kind))} looks at single clients' labels or updates, or "
                    "measures them."
                )
        if not self.traits["aggregation"].linear:
            raise ConfigError(
                f"{hidden}, but {name_of(self.aggregation)} is no weighted sum. Use 'mean', or one that says `linear`."
            )
        if not self.traits["weighting"].own_weight:
            raise ConfigError(
                f"{hidden}, so that each client must know its own weight; {name_of(self.weighting)} compares clients. "
                "Choose a weighting with a method `raw`, such as 'by_examples', 'equal', 'entropy' or 'disagreement'."
            )

    # Kept: a round asks for traits many times.
    @cached_property
    def traits(self) -> Mapping[str, Traits]:
        """What each part says of itself, by kind; a part that is left out says nothing."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.name in KINDS}
        return {kind: Traits() if part is None else Traits.of(part) for kind, part in parts.items()}

    @property
    def serves(self) -> bool:
        """Whether clients that are served do anything but predict by the model as it is."""
        return type(self.serving) is not Plain  # one's own may build on it

    def needs(self) -> frozenset[str]:
        """Return the facts that the parts ask of clients."""
        return frozenset(fact for traits in self.traits.values() for fact in traits.needs)

    def measurements(self) -> tuple[Measurement, ...]:
        """Return what the parts have clients measure.

        Raises:
            PartError: If two of them give one name to different measurements.
        """
        return self._measurements

    @cached_property  # as with traits
    def _measurements(self) -> tuple[Measurement, ...]:
        found: dict[str, Measurement] = {}
        for traits in self.traits.values():
            for measurement in traits.measures:
                if found.setdefault(measurement.name, measurement) != measurement:
                    raise PartError(
                        f"Two parts ask for {measurement.name!r}, but not the same: {found[measurement.name]} "
                        f"and {measurement}. Give both the same options."
                    )
        return tuple(found.values())

    @property
    def memory_solver(self) -> MemorySolver | None:
        """The solver, where clients keep a vector between rounds."""
        return cast(MemorySolver, self.solver) if self.traits["solver"].keeps_memory else None

    @property
    def memory_loss(self) -> RemembersClients | None:
        """The loss, where clients keep a vector between rounds for it."""
        return cast(RemembersClients, self.loss) if self.traits["loss"].remembers_clients else None

    @property
    def learning_server(self) -> ServerTrains | ServerTunes | None:
        """The server step, where it learns from data of the server's own."""
        says = self.traits["server"]
        return cast(ServerTrains | ServerTunes, self.server) if says.trains_server or says.tunes_server else None

    @property
    def has_memory(self) -> bool:
        """Whether clients keep a vector between rounds."""
        return self.memory_solver is not None or self.memory_loss is not None

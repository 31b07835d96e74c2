"""A federation: its components and their joint requirements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from fedreach._util.arrays import replace_fields
from fedreach._util.component import wrong_base
from fedreach._util.errors import ComponentError, ConfigError, require
from fedreach._util.registry import COMPONENT_TYPES, import_object
from fedreach._util.streams import generator
from fedreach.federation import accounting
from fedreach.federation.adaptation.base import Unadapted
from fedreach.federation.aggregation import Mean
from fedreach.federation.augmentations import Augmentation
from fedreach.federation.base import (
    Adaptation,
    Aggregator,
    Component,
    LabelStatistics,
    LocalSolver,
    Loss,
    Measurement,
    Selection,
    ServerOptimizer,
    Weighting,
    name_of,
)
from fedreach.federation.differential_privacy import DPFedAvg, PrivateAggregator
from fedreach.federation.labels import Exact
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.secure_aggregation import SecureAggregation, weighted_mean_of_shares
from fedreach.federation.solvers import Scaffold
from fedreach.federation.types import NO_STATE, ClientResults, CohortSchedule, ServerView, State
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.wireless.radio import Radio
from fedreach.wireless.rules import AllocationRule

# -------------------- The federation and its components


@dataclass(frozen=True)
class Federation:
    """A federation of freely combined components; its repr shows the configuration."""

    selection: Selection
    weighting: Weighting
    solver: LocalSolver
    local: LocalSGD
    server: ServerOptimizer
    cohort_size: int
    seed: int
    aggregation: Aggregator = field(default_factory=Mean)
    loss: Loss = field(default_factory=CrossEntropy)
    adaptation: Adaptation = field(default_factory=Unadapted)
    label_statistics: LabelStatistics = field(default_factory=Exact)
    augmentation: Augmentation | None = None  # of clients' training batches
    radio: Radio | None = None  # seconds and joules are accounted for where there is one
    allocation: AllocationRule | None = None  # None: the selection policy's own, or else the exact one for its choice
    schedule: CohortSchedule | None = None  # of cohorts, in place of `cohort_size`, which is then their largest number

    def __post_init__(self) -> None:
        for kind, component in self.components.items():
            base = import_object(COMPONENT_TYPES[kind].base)
            if not isinstance(component, base):
                raise ComponentError(f"{kind} {wrong_base(component, base)}")
            component.check_attributes()
        if self.radio is None and (self.allocation is not None or self.selection.declares("needs_radio")):
            raise ConfigError(
                f"{name_of(self.allocation or self.selection)} needs channels and devices; got no radio. Add a section "
                "`[radio]` to the experiment, or `radio=Radio()` to the `Federation`."
            )
        if self.radio is not None and self.radio.max_joules is not None and self.selection.probes:
            raise ConfigError(
                f"radio.max_joules limits the energy of training, but {name_of(self.selection)} also asks clients "
                "before the selection. Remove max_joules, or use another selection."
            )
        require(self, cohort_size="[1, inf)", seed="[0, inf)")
        if self.schedule is not None:
            self._check_schedule(self.schedule)
        if self.is_private:
            accounting.check_components(self)
        if self.label_statistics.only_sum:
            self._refuse_what_sees_single_clients()
        if self.adapts and not isinstance(self.label_statistics, Exact | SecureAggregation):
            raise ConfigError(
                f"{name_of(self.adaptation)} sums statistics of participants' labels, to which "
                f"{name_of(self.label_statistics)} adds no noise. Use label_statistics = 'secure_aggregation', with "
                "which the server sees only sums, or 'exact'."
            )
        if self.aggregation.remembers_updates and self.weighting.scales_mean:
            raise ConfigError(
                f"{name_of(self.weighting)} and {name_of(self.aggregation)} both correct for absent clients. Use one: "
                "another weighting, such as 'equal', or aggregation = 'mean'."
            )
        if self.aggregation.ignores_weights and not isinstance(self.weighting, ByExamples | Equal):
            raise ConfigError(
                f"{name_of(self.aggregation)} gives each client one vote, so {name_of(self.weighting)} would have no "
                "effect. Use weighting = 'equal', or another aggregation, such as 'norm_bound'."
            )
        if self.memory_solver is not None and self.memory_loss is not None:
            raise ConfigError(
                f"{name_of(self.solver)} and {name_of(self.loss)} both store a vector at each client, but a client can "
                "store only one. Use a stateless solver, such as 'fedprox', or another loss."
            )
        if self.selection.makes_clusters and isinstance(self.solver, Scaffold) and self.solver.by_examples:
            raise ConfigError(
                f"Scaffold.by_examples compares a client with all participants, but {name_of(self.selection)} makes "
                "clusters of them. Set by_examples = false, or use another selection."
            )
        if self.memory_solver is not None and self.local.optimizer is not None:
            raise ConfigError(
                f"{name_of(self.solver)} needs plain gradient steps; got local.optimizer "
                f"{type(self.local.optimizer).__name__}. Use 'sgd', or a stateless solver, such as 'fedprox'."
            )

    def _check_schedule(self, schedule: CohortSchedule) -> None:
        selection, equal = self.selection, schedule.equal
        reasons = {
            f"{name_of(selection)} decides how many clients it selects": selection.ignores_cohort,
            f"{name_of(selection)} asks clients before the size of the cohort is known; only equal = 'clients' is "
            "possible": equal != "clients" and selection.probes,
            f"{equal} need a section `[radio]`": equal in ("seconds", "joules") and self.radio is None,
            f"{name_of(self.aggregation)} accounts for cohorts of a fixed size": self.is_private,
        }
        for reason in (reason for reason, holds in reasons.items() if holds):
            raise ConfigError(
                f"cohort_size cannot be that of the method {schedule.method!r}: {reason}. Use a number as cohort_size."
            )

    def _refuse_what_sees_single_clients(self) -> None:
        hidden = f"{name_of(self.label_statistics)} shows the server only sums"
        for kind, component in self.components.items():
            clients_know = kind == "weighting"  # what a weighting needs, each client knows of itself
            for part in component.with_inner():
                if part.reads_updates or ((part.needs or part.measures) and not clients_know):
                    raise ConfigError(
                        f"{hidden}, but {name_of(component)} reads labels, updates or measurements of single clients."
                    )
        if not self.aggregation.linear and self.distributed_noise is None:
            raise ConfigError(
                f"{hidden}, but {name_of(self.aggregation)} is not a weighted sum. Use 'mean', or another `linear` "
                "aggregator."
            )
        if not self.weighting.has_own_weights:
            raise ConfigError(
                f"{hidden}, so each client must know its own weight; {name_of(self.weighting)} compares clients. "
                "Choose a weighting with a method `raw`, such as 'by_examples', 'equal', 'entropy' or 'disagreement'."
            )

    @cached_property
    def components(self) -> Mapping[str, Component]:
        """Components by type, without omitted ones."""
        kinds = [field.name for field in fields(self) if field.name in COMPONENT_TYPES and field.name != "radio"]
        return {kind: component for kind in kinds if (component := getattr(self, kind)) is not None}

    @property
    def is_private(self) -> bool:
        """Whether the model is differentially private for each client."""
        return isinstance(self.aggregation, PrivateAggregator)

    @property
    def distributed_noise(self) -> DPFedAvg | None:
        """The aggregation, if clients clip their updates and add the noise, under secure aggregation; else None."""
        rule = self.aggregation
        return rule if self.label_statistics.only_sum and isinstance(rule, DPFedAvg) else None

    @property
    def adapts(self) -> bool:
        """Whether unseen clients adapt the model before they predict."""
        return type(self.adaptation) is not Unadapted  # a custom rule may build on it

    def needs(self) -> frozenset[str]:
        """Return the names of the client statistics that the components need."""
        return frozenset(
            name for part in self.components.values() for inner in part.with_inner() for name in inner.needs
        )

    def measurements(self) -> tuple[Measurement, ...]:
        """Return the measurements that the components request from clients.

        Raises:
            ComponentError: If two components use the same name for different measurements.
        """
        return self._measurements

    @cached_property  # every round asks for it
    def selection_reads_length(self) -> bool:
        """Whether the selection policy sees the length of the run."""
        return self.selection.declares("reads_length")

    @cached_property  # a round asks for them many times
    def _measurements(self) -> tuple[Measurement, ...]:
        measurements: dict[str, Measurement] = {}
        for component in self.components.values():
            for measurement in [measurement for part in component.with_inner() for measurement in part.measures]:
                if measurements.setdefault(measurement.name, measurement) != measurement:
                    raise ComponentError(
                        f"Two components measure {measurement.name!r} differently: {measurements[measurement.name]} "
                        f"and {measurement}. Set the same options for both."
                    )
        return tuple(measurements.values())

    @property
    def memory_solver(self) -> LocalSolver | None:
        """The solver, if clients store a vector between rounds for it."""
        return self.solver if self.solver.is_stateful else None

    @property
    def memory_loss(self) -> Loss | None:
        """The loss, if clients store a vector between rounds for it."""
        return self.loss if self.loss.remembers_clients else None

    @property
    def learning_server(self) -> ServerOptimizer | None:
        """The server optimizer, if it learns from the server's own data."""
        return self.server if self.server.trains_server or self.server.tunes_server else None

    @property
    def has_memory(self) -> bool:
        """Whether clients store a vector between rounds."""
        return self.memory_solver is not None or self.memory_loss is not None


# -------------------- Targets: classes or numbers


class HasTargets(Protocol):
    """Data set with classes or numbers as targets."""

    @property
    def name(self) -> str:
        """Name of the data set in messages."""

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for numeric targets."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Shape of an example's labels if each position has a label; else ()."""


def check_targets(kind: str, component: Component, data: HasTargets) -> None:
    """Reject a component that does not accept the targets of the data.

    Raises:
        ConfigError: If it needs classes but the targets are numbers, or if it needs numbers but the targets are
            classes.
    """
    parts = [part for inner in component.with_inner() for part in (inner, *inner.measures)]
    needs_classes = any(part.needs_classes or part.needs for part in parts) or kind == "adaptation"
    if (needs_classes or component.declares("shifts_outputs")) and not data.num_classes:
        advice = (
            "Use loss = 'mse' or 'huber'"
            if kind == "loss"
            else f"Choose another {kind}, or divide the targets into classes"
        )
        raise ConfigError(
            f"{kind} {name_of(component)} needs classes as targets; the targets of {data.name} are numbers. {advice}. "
            "If the targets are classes, convert them to whole numbers."
        )
    if data.positions and kind != "metric" and (why := _why_not_at_positions(kind, component)):
        raise ConfigError(
            f"{kind} {name_of(component)} {why}; {data.name} has a label at every position. Choose another {kind}."
        )
    if component.declares("needs_numbers") and data.num_classes:
        advice = "loss = 'cross_entropy'" if kind == "loss" else f"another {kind}"
        raise ConfigError(
            f"{kind} {name_of(component)} needs numbers as targets; the targets of {data.name} are classes. Use "
            f"{advice}, or numbers as targets: floats as labels, or `target` instead of `label` for a table."
        )


def _why_not_at_positions(kind: str, component: Component) -> str:
    """Return why a component cannot be used if each position of an example has a label; "" if it can."""
    reasons = {
        "needs the label counts of clients": any(part.needs for part in component.with_inner()),
        "measures one row of outputs per example": any(part.measures for part in component.with_inner()),
        "shifts outputs by label counts": component.declares("shifts_outputs"),
        "reads one output per example": component.declares("has_objective"),
        "learns from one row of outputs per example": component.declares("tunes_server"),
        "estimates the class of an example": kind == "adaptation",
        "changes inputs but not labels": kind == "augmentation",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def check_federation_targets(federation: Federation, data: HasTargets) -> None:
    """Reject a federation with a component that does not accept the targets of the data, see `check_targets`."""
    for kind, component in federation.components.items():
        if kind != "adaptation" or federation.adapts:
            check_targets(kind, component, data)


# -------------------- What the server sees of clients
# A simulation knows everything, and hands policies what they would see on a real network, where clients compute with
# their labels and scale their updates themselves.

PUBLIC_METRICS = ("num_examples", "loss", "draws", "steps")  # metrics that secure aggregation does not hide


def visible_view(federation: Federation, view: ServerView) -> ServerView:
    """Return the view that policies may read, without clients' label statistics under secure aggregation.

    Only policies with `reads_length` see the length of the run. All other policies decide the same in a longer run.
    """
    if view.rounds is not None and not federation.selection_reads_length:
        view = replace_fields(view, rounds=None)
    if not federation.label_statistics.only_sum:
        return view
    return replace(view, label_counts=None, label_entropy=None)


def visible_reports(federation: Federation, reports: ClientResults, aggregation: State = NO_STATE) -> ClientResults:
    """Return the client results that the server sees.

    Under secure aggregation the server sees the weighted mean of the updates. Of each client it sees only the number of
    examples, the loss and the requested steps. `update` then has shape (r, 0), and measurements, labels and notes are
    missing.

    Args:
        federation: Federation with its components.
        reports: Results of the clients.
        aggregation: State of the aggregation.
    """
    if not federation.label_statistics.only_sum or reports.secure_mean is not None:
        return reports
    mean, clients, rule = None, len(reports.ids) + len(reports.lost), federation.distributed_noise
    if len(reports.ids) and rule is not None:
        total = np.zeros(reports.update.shape[1], np.uint64)
        for client, update in zip(reports.ids.tolist(), reports.update, strict=True):
            total += rule.noisy_share(aggregation, update, clients, simulated_noise(federation, reports.round, client))
        mean = rule.mean_of_shares(aggregation, total, len(reports.ids), clients)
    elif len(reports.ids):
        raw = np.asarray(federation.weighting.raw(reports.metrics))
        mean = weighted_mean_of_shares(raw, reports.update, clients)
    return replace(
        reports,
        update=reports.update[:, :0],
        metrics={name: reports.metrics[name] for name in PUBLIC_METRICS if name in reports.metrics},
        label_counts=None,
        steps=None,
        note=None,
        secure_mean=mean,
    )


def simulated_noise(federation: Federation, round_: int, client: int) -> np.random.Generator:
    """Return the generator of a simulated client's noise; on Flower, each client has an unpredictable one."""
    return generator(federation.seed, "client-noise", round_, client)

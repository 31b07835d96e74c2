"""What an experiment file may say: every key, its type, its range and its default; `loading` reads and checks one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fedreach.config.grid import Grid, TuneSection
from fedreach.config.section import Positive, Section, Seed, Share
from fedreach.errors import ConfigError, nearest
from fedreach.evidence.plan import AnalysisPlan
from fedreach.registry import KINDS, METHOD

PARTS = {kind: row.default for kind, row in KINDS.items() if row.path == METHOD}
"""Keys of a method that name a part of its federation, and what stands there by default."""


class Choice(BaseModel):
    """Something by name, with its options: ``"uniform"`` or ``{ name = "power_of_choice", candidates = 20 }``."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class Data(Choice):
    """The data set: a name of `fedreach list data`, or the path of an ``.npz`` file or of a folder's ``x.npy``."""

    name: str = "digits"
    folder: str | None = None  # where the files lie; default: FEDREACH_DATA, then the cache
    download: bool = True


class PartitionSection(Choice):
    """Which client holds which sample."""

    name: str = "dirichlet_by_class"
    clients: Positive = 50
    file: str | None = None  # a partition saved by `fedreach partition --save`, instead of drawing one
    empty: Literal["error", "drop", "merge"] = "error"
    seed: Seed | None = None  # of who holds what, label noise included; default: the population's


class ShiftSection(Choice):
    """How unseen clients differ from the participants in more than their classes."""

    share: Annotated[float, Field(ge=0, le=1)] = 1.0  # of the unseen clients that are shifted


class PopulationSection(Section):
    """Who takes part, and when."""

    # how many, a share of those not excluded, or who: ids or names
    participants: Positive | Share | list[int | str] | Literal["all"] = 0.4
    exclude_clients: list[int] = Field(default=[])
    exclude_labels: list[int] = Field(default=[])
    held_out: Share = 0.2
    validation: Share | None = None  # of what participants train on, by which [tune] judges; nothing else is looked at
    participation: Choice = Choice(name="always")
    seed: Seed | None = None  # of who takes part and the shift, and of a partition without one; default: the run's


class ModelSection(Choice):
    """What is trained."""

    name: str = "mlp"
    seed: Seed | None = None  # of its initial weights; default: the run's


class ServerDataSection(Section):
    """Data that the server holds itself, for methods that train on it: drawn from the clients', or a file."""

    examples: Positive | None = None  # taken from training data of all clients, those that never train too
    file: str | None = None  # an .npz file with x and y


class RadioSection(Choice):
    """Channels, devices and prices; with this section, seconds and joules are counted."""

    name: str = "gigahertz"


class UnevenStepsSection(Section):
    """Steps that differ between clients, see `fedreach.federation.uneven_steps.UnevenSteps`."""

    least: Positive
    most: Positive
    drawn: Literal["client", "round"] = "round"


class OptimizerSection(Section):
    """How a client follows its gradients, see `fedreach.federation.adam`."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    beta1: Annotated[float, Field(ge=0, lt=1)] | None = None  # these where it is Adam; default: as in torch
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = None
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class LocalSection(Section):
    """Local SGD, see `fedreach.federation.local_sgd.LocalSGD`."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    batch_size: Positive = 32
    epochs: Positive = 1
    steps: Positive | UnevenStepsSection | None = None
    drop_last: bool = False  # what an epoch has left after its full batches
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    schedule: Literal["constant", "exponential", "cosine"] = "constant"
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    optimizer: OptimizerSection = OptimizerSection()


class EngineSection(Section):
    """How training is computed; the decisions do not depend on it."""

    name: Literal["auto", "native", "chain", "sequential", "stacked", "compiled"] = "auto"  # the fastest in a trial
    device: str = "cpu"
    threads: Positive | None = None  # at work in one run; changes no number; default: the cores, shared by all runs
    precision: Literal["highest", "high", "medium"] = "highest"  # of products, as torch names it: medium is bfloat16


class EvaluationSection(Section):
    """When the model is evaluated."""

    every: Positive = 5
    local: bool = True  # also the local models of the cohort before aggregation
    samples_per_client: Positive | None = None  # at most so many of each client's samples; None: all
    inputs: list[Positive] = Field(
        default=[5, 20]
    )  # clients are served with so many inputs, too, and scored on their others
    patience: Positive | None = None  # stop after so many evaluations without a better id_loss
    metrics: list[Choice] = Field(default=[Choice(name="accuracy"), Choice(name="loss")])  # these two are always there


class StatisticsSection(Section):
    """What a comparison is asked, said before it runs; changes no run. See `fedreach.evidence.plan.AnalysisPlan`."""

    contrasts: Literal["baseline", "all"] | list[list[str]] = "baseline"
    correction: Literal["holm", "max_t"] = "holm"  # for the number of contrasts
    margin_points: Annotated[float, Field(gt=0, le=100)] = 2.0  # within it two methods are as good as equal
    last_rounds: Positive = 1  # what is compared is the mean over so many last evaluated rounds
    detect_points: Annotated[float, Field(gt=0, le=100)] | None = None  # seeds as many as find this; `seeds` the pilot
    most_seeds: Positive = 200  # where the rule asks for more


class RunSection(Section):
    """How a run behaves; none of this changes its numbers, but `on_failure` where a client fails."""

    checkpoint_seconds: Annotated[float, Field(ge=0)] = 2.0
    on_failure: Literal["stop", "drop"] = "stop"


if TYPE_CHECKING:
    Parts = Section
else:  # a field for each kind
    Parts = pydantic.create_model("Parts", __base__=Section, **dict.fromkeys(PARTS, (Choice | None, None)))


class Method(Parts):
    """What is compared: the parts of one federation. What a method leaves out comes from `[method]`."""

    cohort: Positive | None = None
    local: dict[str, Any] = Field({})


class DefaultMethod(Parts):
    """The parts that all methods share unless they say otherwise; each kind has its default in `KINDS`."""

    cohort: Positive = 10

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return value | {kind: name for kind, name in PARTS.items() if value.get(kind) is None}


class BudgetSection(Section):
    """What a run may spend: it ends with the round that reaches one of these, or after `rounds`."""

    megabytes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # sent, both ways, probes included
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # simulated, by [radio]
    joules: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name, limit in self if limit is not None}


NO_COMPARISON: dict[str, Any] = {"methods": {}, "baseline": None, "statistics": None, "sweep": None, "tune": None}
"""What an experiment of one run says of several."""


class Experiment(Section):
    """A whole experiment file."""

    name: str = "experiment"
    rounds: Positive = 50
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default=[0])
    baseline: str | None = None  # default: the first method
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    data: Data = Data()
    partition: PartitionSection = PartitionSection.model_validate({"alpha": 0.3})
    noise: Choice | None = None
    shift: ShiftSection | None = None
    population: PopulationSection = PopulationSection()
    server_data: ServerDataSection | None = None
    budget: BudgetSection = BudgetSection()
    radio: RadioSection | None = None
    model: ModelSection = ModelSection()
    local: LocalSection = LocalSection()
    engine: EngineSection = EngineSection()
    evaluation: EvaluationSection = EvaluationSection()
    statistics: StatisticsSection | None = None  # of a comparison; None in each of its runs, as are the next two
    sweep: Grid | None = None  # settings that are shown, a comparison each
    tune: TuneSection | None = None  # settings of which each method is given the best
    run: RunSection = RunSection()
    method: DefaultMethod = DefaultMethod()
    methods: dict[str, Method] = Field(default={})

    def choice(self, kind: str) -> Choice | None:
        """Return what the experiment says of a kind; None where it says nothing."""
        path = KINDS[kind].path
        if path is None:
            return None
        found: Any = self
        for step in (*path, kind):
            found = getattr(found, step)
        result: Choice | None = found
        return result

    @property
    def plan(self) -> AnalysisPlan:
        """What a comparison by this experiment is asked."""
        return AnalysisPlan(**dict(self.statistics or StatisticsSection()))

    def resolved(self, method: str | None = None) -> Experiment:
        """Return the experiment of one method: its parts in `[method]`, and no other methods."""
        if method is None:
            return self.model_copy(update=NO_COMPARISON)
        if method not in self.methods:
            raise ConfigError(f"There is no method {method!r} in this experiment." + nearest(method, self.methods))
        chosen = self.methods[method]
        parts = {key: value for key, value in chosen if value is not None and key != "local"}
        return self.model_copy(
            update={
                "method": self.method.model_copy(update=parts),
                "local": LocalSection.model_validate({**self.local.model_dump(), **chosen.local}),
                **NO_COMPARISON,
            }
        )

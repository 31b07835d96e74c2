"""The schema of an experiment file."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import math
import re
import typing
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fedreach._util.component import option_rules
from fedreach._util.errors import ConfigError, nearest, violation
from fedreach._util.registry import COMPONENT_TYPES, METHOD
from fedreach._util.streams import generator
from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps
from fedreach.federation.types import CohortSchedule, Equal
from fedreach.runs.budget import Budget

# -------------------- Building blocks of tables

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A table of the experiment file: unknown keys are rejected, and types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


# -------------------- Settings of options: all combinations of listed values, or random draws

Setting = Mapping[str, Any]
"""Option -> value. Options have the same names as for ``--set``, such as ``local.lr``."""

MAX_SETTINGS = 1000  # settings
DIGITS = 4  # of a drawn number: short enough to read and to write again


class Range(Section):
    """Random numbers between two limits, both included: integers if both limits are integers."""

    min: int | float
    """The lower limit."""
    max: int | float
    """The upper limit."""
    log: bool = False
    """Draw numbers whose logarithm is uniform."""

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.min < self.max:
            raise ValueError(f"`min` must be below `max`; got {self.min} and {self.max}.")
        if self.log and self.min <= 0:
            raise ValueError(f"`min` must be above 0 where `log` is true; got {self.min}.")
        return self

    def draw(self, rng: np.random.Generator) -> int | float:
        """Draw a number from the range."""
        is_integer = isinstance(self.min, int) and isinstance(self.max, int)
        low, high = (self.min - 0.5, self.max + 0.5) if is_integer else (self.min, self.max)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else float(rng.uniform(low, high))
        if is_integer:
            return min(max(round(value), int(self.min)), int(self.max))
        return min(max(float(f"{value:.{DIGITS}g}"), self.min), self.max)


Values = (
    Annotated[list[Any], Field(min_length=1)]
    | Annotated[Range, pydantic.PlainSerializer(lambda limits: limits.model_dump(exclude_unset=True))]
)


class Grid(BaseModel):
    """Options with the values to combine. All keys that are not fields of this class are options.

    Example:
        >>> grid = Grid.model_validate({"local.lr": [0.1, 0.2], "local.epochs": [1, 5]})
        >>> grid.settings()[:2]
        [{'local.lr': 0.1, 'local.epochs': 1}, {'local.lr': 0.1, 'local.epochs': 5}]
        >>> drawn = Grid.model_validate({"samples": 3, "local.lr": {"min": 0.01, "max": 1.0, "log": True}})
        >>> drawn.settings()
        [{'local.lr': 0.0958}, {'local.lr': 0.1543}, {'local.lr': 0.0164}]
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, use_attribute_docstrings=True)

    samples: Positive | None = None
    """Number of random settings. Default: all combinations."""
    seed: Seed = 0
    """Seed of the draw."""
    __pydantic_extra__: dict[str, Values] = Field(init=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _flatten_options(cls, value: Any) -> Any:
        """Turn ``local.lr``, which TOML reads as nested tables, into one option."""
        if not isinstance(value, dict):
            return value
        declared = {key: inner for key, inner in value.items() if key in cls.model_fields}
        return declared | dict(_options({key: inner for key, inner in value.items() if key not in declared}))

    @pydantic.model_validator(mode="after")
    def _check_grid(self) -> Self:
        if not self.values:
            raise ValueError('must have an option with its values, such as "local.lr" = [0.01, 0.1].')
        for key, values in self.values.items():
            if isinstance(values, Range) and self.samples is None:
                raise ValueError(
                    f"{key} is a range, which requires a number of samples. Add samples = 20, or list values."
                )
            if isinstance(values, list) and len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
                raise ValueError(f"{key} must not repeat a value; got {values}.")
        if self.size > MAX_SETTINGS:
            raise ValueError(
                f"must define at most {MAX_SETTINGS} settings; got {self.size}. List fewer values, or set samples."
            )
        return self

    @property
    def values(self) -> dict[str, Values]:
        """The values of each option."""
        return self.__pydantic_extra__

    @property
    def size(self) -> int:
        """The maximum number of settings."""
        lists = [values for values in self.values.values() if isinstance(values, list)]
        return self.samples or math.prod(map(len, lists))

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings without repeated draws; the value of the first option changes last."""
        if self.samples is None:
            lists = [values for values in self.values.values() if isinstance(values, list)]
            return [dict(zip(self.values, combination, strict=True)) for combination in itertools.product(*lists)]
        rng, settings = generator(self.seed, "sweep"), {}
        for _ in range(self.samples):
            setting = {
                key: values.draw(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]
                for key, values in self.values.items()
            }
            settings[json.dumps(setting, sort_keys=True)] = setting
        return [*settings.values()]


class TuneSection(Grid):
    """Settings to choose from for each method and seed, based on validation data that no score uses."""

    validation: Share = 0.2
    """Share of each participant's training examples used to score settings."""
    rounds: Positive | None = None
    """Number of rounds for which a setting is tried. Default: the rounds of the comparison."""


def _options(table: Mapping[str, Any], prefix: str = "") -> Any:
    for key, inner in table.items():
        if isinstance(inner, dict) and not inner.keys() & Range.model_fields.keys():
            yield from _options(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def format_setting(setting: Setting) -> str:
    """Return a setting as readable text.

    Example:
        >>> format_setting({"partition.alpha": 0.1, "method.selection": "full"})
        'partition.alpha = 0.1, method.selection = full'
    """
    return ", ".join(f"{key} = {format_value(value)}" for key, value in setting.items())


def format_value(value: Any) -> str:
    """Return a value as readable text: short numbers, words without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -------------------- Every key of an experiment file, with type, range and default

PARTS = {kind: row.default for kind, row in COMPONENT_TYPES.items() if row.path == METHOD}
"""Keys of a method that name a component, with their defaults."""


class Choice(BaseModel):
    """A component's name with its options: ``"uniform"`` or ``{ name = "power_of_choice", candidates = 20 }``."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, use_attribute_docstrings=True)
    name: str
    """Built-in name (see `fedreach list`) or `FILE.py:NAME`. The other keys of the table are the options."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if not isinstance(value, str | dict | Choice):
            raise ValueError(f"must be a name, or a table with a `name`; got {value!r}.")
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """All keys except `name`, with their values."""
        return dict(self.model_extra or {})


class Data(Choice):
    """The data set: a name from `fedreach list data`, or the path of an ``.npz`` file or of a folder's ``x.npy``."""

    name: str = "digits"
    """Name from `fedreach list data`, `FILE.py:NAME`, or path of a .csv, .parquet, .npz or `x.npy` file."""
    folder: str | None = None
    """Folder of the data files. Default: the environment variable FEDREACH_DATA, else the cache folder."""
    download: bool = True
    """Download missing files, and check the downloaded files."""


class PartitionSection(Choice):
    """The assignment of examples to clients."""

    name: str = "dirichlet_by_class"
    """Partition of the examples; `natural` uses the clients given in the data."""
    clients: Positive = 50
    """Number of clients."""
    file: str | None = None
    """File of a partition, written by `fedreach partition --save`. Default: draw a partition."""
    empty: Literal["error", "drop"] = "error"
    """Treatment of clients without data: `error` rejects the partition; `drop` removes these clients."""
    seed: Seed | None = None
    """Seed of the partition and of label noise. Default: the seed of the population."""


class ShiftSection(Choice):
    """Shift of unseen clients beyond their label distribution."""

    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the unseen clients that are shifted."""


class AttackSection(Choice):
    """Malicious participants, which send wrong results."""

    share: Share = 0.1
    """Share of the participants that are malicious, at least one. The seed of the run determines which."""


class PopulationSection(Section):
    """Which clients participate, and when."""

    participants: Positive | Share | list[int | str] | Literal["all"] = 0.4
    """Clients that may train: a number, a share of the clients that are not excluded, ids or names, or all."""
    exclude_clients: list[int] = Field(default=[])
    """Ids of clients that never train."""
    exclude_labels: list[int] = Field(default=[])
    """Excluded classes. A client with examples of any of these classes never trains."""
    held_out: Share = 0.2
    """Share of each participant's examples that is not used for training."""
    refit: bool = False
    """After the run, train again for the rounds of the best model, also on held-out examples. Scores do not change."""
    validation: Share | None = None
    """Share of the participants' training examples used to score settings of `[tune]`. Default: none."""
    participation: Choice = Choice(name="always")
    """Which participants are available in a round, and which of their replies arrive."""
    seed: Seed | None = None
    """Seed of the participants, the shift, and a partition without its own seed. Default: the seed of the run."""


class ModelSection(Choice):
    """The model."""

    name: str = "mlp"
    """Name of a built-in model, or `FILE.py:NAME` of a function or class that returns a `torch.nn.Module`."""
    seed: Seed | None = None
    """Seed of the initial weights. Default: the seed of the run."""
    output: str | int | None = None
    """Key, attribute or position of the output in the module's result, or a function to extract it, `FILE.py:NAME`."""

    @property
    def options(self) -> dict[str, Any]:
        """All keys except `name` and `seed`, with their values."""
        return super().options | ({} if self.output is None else {"output": self.output})


class ServerDataSection(Section):
    """Data of the server, for methods that train on it: drawn from the clients' data, or read from a file."""

    examples: Positive | None = None
    """Number of examples, drawn from the training data of all clients, including clients that never train."""
    file: str | None = None
    """An .npz file with arrays `x` and `y`, as an alternative to `examples`."""


class RadioSection(Choice):
    """Channels, devices and prices; with this section, FedReach counts seconds and joules."""

    name: str = "gigahertz"
    """Name of the radio cell. Its options set bandwidth, devices and prices."""


class OptimizerSection(Choice):
    """Optimizer of local training, with the options of `Adam`, `AdamW` or `TorchSteps`."""

    name: Literal["sgd", "adam", "adamw", "torch"] = "sgd"
    """Plain gradient steps, Adam, AdamW, or any optimizer of PyTorch, whose state is reset in each round."""


def _in_range(rule: str | Sequence[str], value: Any) -> Any:
    """Return a value of an option that follows its rule in a dataclass; a table or `FILE.py:NAME` has its own rules."""
    is_checked = value is None or isinstance(value, BaseModel) or (isinstance(value, str) and ":" in value)
    if not is_checked and (wrong := violation(value, rule)) is not None:
        raise ValueError(wrong)
    return value


def section_of(dataclass: type, name: str, **types: Any) -> Any:
    """Return the model of a table whose keys are the options of a dataclass, with their types, defaults and rules.

    Args:
        dataclass: Dataclass that defines the options.
        name: Name of the table.
        types: Types of options whose form in a file differs from the form in Python.

    Example:
        >>> section_of(UnevenSteps, "UnevenStepsSection")(min=1, max=5).model_dump()
        {'min': 1, 'max': 5, 'drawn': 'round'}
    """
    hints, rules, summary = typing.get_type_hints(dataclass), option_rules(dataclass), inspect.getdoc(dataclass) or ""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(dataclass):
        described = re.search(rf"^    {field.name}: (.*(?:\n        .*)*)", summary, re.MULTILINE)
        kind, rule = types.get(field.name, hints[field.name]), rules.get(field.name)
        if rule is not None:
            kind = Annotated[kind, pydantic.AfterValidator(partial(_in_range, rule))]
        about = Field(
            description=" ".join(described[1].split()) if described else None,
            json_schema_extra={"rule": rule} if isinstance(rule, str) else None,
        )
        default = OptimizerSection() if kind is OptimizerSection else field.default  # Python's None are plain steps
        options[field.name] = (Annotated[kind, about], ... if default is dataclasses.MISSING else default)
    return pydantic.create_model(name, __base__=Section, __doc__=summary.partition("\n\n")[0], **options)


if TYPE_CHECKING:

    class LocalSection(Section):
        """Local training, with the options of `LocalSGD`."""

        schedule: str = "constant"

    StatisticsSection = Section
    BudgetSection = Section
else:
    _steps = int | section_of(UnevenSteps, "UnevenStepsSection") | None
    LocalSection = section_of(LocalSGD, "LocalSection", steps=_steps, schedule=str, optimizer=OptimizerSection)
    _pair = Annotated[list[str], Field(min_length=2, max_length=2)]
    _contrasts = Literal["baseline", "all"] | Annotated[list[_pair], Field(min_length=1)]
    StatisticsSection = section_of(AnalysisPlan, "StatisticsSection", contrasts=_contrasts)
    BudgetSection = section_of(Budget, "BudgetSection")


class EngineSection(Section):
    """The computation of training, which does not affect conclusions."""

    name: Literal["auto", "native", "manual", "sequential", "vmap"] = "auto"
    """Engine; `auto` chooses the fastest engine in a short trial. Engines give equal results up to rounding."""
    device: str = "cpu"
    """Device in torch's notation, such as `cpu`, `cuda` or `cuda:1`."""
    threads: Positive | None = None
    """Number of threads per run, which does not affect results. Default: the number of cores, shared by all runs."""
    precision: Literal["highest", "high", "medium"] = "highest"
    """Precision of matrix products in torch's notation; `medium` is bfloat16."""


class EvaluationSection(Section):
    """When the model is evaluated."""

    every: Positive = 5
    """Number of rounds from one evaluation to the next."""
    local: bool = False
    """Also evaluate the local models of the cohort before aggregation."""
    examples_per_client: Positive | None = None
    """Maximum number of scored examples per client. Default: all."""
    training: bool = False
    """Also score participants' training examples, as `train_accuracy` and `out_of_sample_gap`."""
    inputs: list[Positive] = Field(default=[5, 20])
    """Numbers of inputs per client for additional adaptations. Scores are measured on the client's other examples."""
    patience: Positive | None = None
    """Stop a run after this many evaluations without a lower `participant_loss`. Default: never."""
    metrics: list[Choice] = Field(default=[Choice(name="accuracy"), Choice(name="loss")])
    """Names from `fedreach list metric`, or `FILE.py:NAME`. Accuracy, loss and, for two classes, `auroc` are added."""


class RunSection(Section):
    """The behavior of a run; only `on_failure` can affect results, if a client fails."""

    checkpoint_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Seconds from one checkpoint to the next; 0: one per round."""
    on_failure: Literal["stop", "drop"] = "stop"
    """If a client's update is not finite: stop the run, or drop the client from the round."""
    trackers: list[Choice] = Field(default=[])
    """Trackers of the run: names from `fedreach list tracker`, or `FILE.py:NAME`."""


if TYPE_CHECKING:

    class CohortSection(Section):
        """Cohorts as large as those of another method, with the options of `CohortSchedule`."""

        equal: Equal
        amounts: list[int | float | list[int]] | None

    Parts = Section
else:  # a field for each component type, and a key that is a keyword in Python
    CohortSection = pydantic.create_model(
        "CohortSection",
        __base__=Section,
        __doc__="Cohorts as large as those of another method of the comparison, in the same round with the same seed.",
        **{
            "as": (str, Field(description="Name of the other method.")),
            "equal": (Equal, Field("clients", description="What is equal; bytes are those if all clients reply.")),
            "amounts": (
                list[Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)] | list[int]] | None,
                Field(None, description="The other method's amount in each round. Default: taken from its run."),
            ),
        },
    )
    Parts = pydantic.create_model("Parts", __base__=Section, **dict.fromkeys(PARTS, (Choice | None, None)))


class MethodSection(Parts):
    """A method to compare: the components of one federation. `[method]` sets the components that are omitted."""

    cohort_size: Positive | CohortSection | None = None
    """Clients per round, or `{ as = "csra" }` for as many as another method. Default: the value in `[method]`."""
    local: dict[str, Any] = Field({})
    """Keys of `[local]` that this method overrides."""


class DefaultMethod(Parts):
    """The components that all methods share unless they override them; `COMPONENT_TYPES` lists the defaults."""

    cohort_size: Positive | CohortSection = 10
    """Clients per round, or `{ as = "csra" }` for as many as the method csra of the comparison has in that round."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return value | {kind: name for kind, name in PARTS.items() if value.get(kind) is None}

    @property
    def schedule(self) -> CohortSchedule | None:
        """The schedule of the cohorts, without amounts if these are unknown; None if their size is a number."""
        if isinstance(self.cohort_size, int):
            return None
        amounts = [tuple(n) if isinstance(n, list) else n for n in self.cohort_size.amounts or ()]
        return CohortSchedule(getattr(self.cohort_size, "as"), tuple(amounts), self.cohort_size.equal)

    @property
    def largest_cohort(self) -> int:
        """Number of clients in the largest cohort, or 1 if it is unknown."""
        return self.cohort_size if isinstance(self.cohort_size, int) else cast(CohortSchedule, self.schedule).largest

    @property
    def method_to_follow(self) -> str | None:
        """Name of the method whose cohorts this method's cohorts will equal; None if their sizes are known."""
        unknown = not isinstance(self.cohort_size, int) and self.cohort_size.amounts is None
        return getattr(self.cohort_size, "as") if unknown else None


NO_COMPARISON: dict[str, Any] = {"methods": {}, "baseline": None, "statistics": None, "sweep": None, "tune": None}
"""Keys that apply only to comparisons, with their values for a single run."""


class Experiment(Section):
    """A whole experiment file."""

    name: str = "experiment"
    """Name in tables and in the HTML report. Default: the name of the file."""
    rounds: Positive = 50
    """Maximum number of training rounds."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default=[0])
    """Seeds of the runs. Each seed draws its own partition, participants, model and batches."""
    baseline: str | None = None
    """Method with which the other methods are compared. Default: the first method."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Accuracy on unseen clients. FedReach reports the rounds, bytes and seconds until it is reached."""
    data: Data = Data()
    partition: PartitionSection = PartitionSection.model_validate({"alpha": 0.3})
    noise: Choice | None = None
    """Label noise on training data. Labels of held-out and test data do not change."""
    shift: ShiftSection | None = None
    population: PopulationSection = PopulationSection()
    attack: AttackSection | None = None
    server_data: ServerDataSection | None = None
    budget: BudgetSection = BudgetSection()
    radio: RadioSection | None = None
    model: ModelSection = ModelSection()
    augmentation: Choice | None = None
    """Random augmentation of the inputs in clients' training batches."""
    local: LocalSection = LocalSection()
    engine: EngineSection = EngineSection()
    evaluation: EvaluationSection = EvaluationSection()
    statistics: StatisticsSection | None = None
    """Planned comparisons and their analysis, fixed before the first run."""
    sweep: Grid | None = None
    """Settings to compare; FedReach runs one comparison per setting."""
    tune: TuneSection | None = None
    """Settings to try for each method. The method then uses the best setting."""
    run: RunSection = RunSection()
    method: DefaultMethod = DefaultMethod()
    methods: dict[str, MethodSection] = Field(default={})
    """Methods to compare, by name."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _numbers_by_squared_error(cls, value: Any) -> Any:
        """Set the loss to mse if `data.target` names columns of numbers and no loss is named."""
        data, method = (value.get(key, {}) for key in ("data", "method")) if isinstance(value, dict) else ({}, None)
        named = isinstance(data, dict) and data.get("target") is not None
        if named and isinstance(method, dict) and method.get("loss") is None:
            return value | {"method": method | {"loss": "mse"}}
        return value

    def choice(self, kind: str) -> Choice | None:
        """Return the component that the experiment chooses for a type; None if it chooses none."""
        path = COMPONENT_TYPES[kind].path
        if path is None:
            return None
        value: Any = self
        for step in (*path, kind):
            value = getattr(value, step)
        result: Choice | None = value
        return result

    @property
    def limits(self) -> dict[str, float]:
        """The limits of `[budget]` that are set, by name."""
        return Budget(**dict(self.budget)).limits

    @property
    def plan(self) -> AnalysisPlan:
        """The analysis plan of a comparison with this experiment."""
        return AnalysisPlan(**dict(self.statistics or StatisticsSection()))

    def resolved(self, method: str | None = None) -> Experiment:
        """Return the experiment of one method: its components in `[method]`, without other methods."""
        if method is None:
            return self.model_copy(update=NO_COMPARISON)
        if method not in self.methods:
            raise ConfigError(f"Unknown method {method!r} in this experiment." + nearest(method, self.methods))
        chosen = self.methods[method]
        parts = {key: value for key, value in chosen if value is not None and key != "local"}
        return self.model_copy(
            update={
                "method": self.method.model_copy(update=parts),
                "local": LocalSection.model_validate({**self.local.model_dump(), **chosen.local}),
                **NO_COMPARISON,
            }
        )

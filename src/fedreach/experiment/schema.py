"""The schema of an experiment file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fedreach._util.errors import ConfigError, nearest
from fedreach._util.registry import KINDS, METHOD
from fedreach._util.streams import generator
from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.federation.local_sgd import Schedule

# -------------------- What tables of an experiment file are made of

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A table of the file: unknown keys are refused, types are not guessed; each field has its meaning below it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


# -------------------- Settings of some options: every combination of listed values, or so many drawn at random

Setting = Mapping[str, Any]
"""Option -> value; options are written as for ``--set``, such as ``local.rate``."""

MOST = 1000  # settings
DIGITS = 4  # of a drawn number: enough, and few enough to be read and written again


class Range(Section):
    """What is drawn between two limits, both included: whole numbers where both are whole."""

    least: int | float
    """The lower limit."""
    most: int | float
    """The upper limit."""
    log: bool = False
    """Whether it is drawn evenly in the logarithm."""

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.least < self.most:
            raise ValueError(f"`least` must be below `most`; got {self.least} and {self.most}.")
        if self.log and self.least <= 0:
            raise ValueError(f"`least` must be above 0 where `log` is true; got {self.least}.")
        return self

    def drawn(self, rng: np.random.Generator) -> int | float:
        """Return a number from it."""
        is_integer = isinstance(self.least, int) and isinstance(self.most, int)
        low, high = (self.least - 0.5, self.most + 0.5) if is_integer else (self.least, self.most)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else float(rng.uniform(low, high))
        if is_integer:
            return min(max(round(value), int(self.least)), int(self.most))
        return min(max(float(f"{value:.{DIGITS}g}"), self.least), self.most)


Values = list[Any] | Range


class Grid(BaseModel):
    """Options with the values that they take; further keys than those here are options.

    Example:
        >>> grid = Grid.model_validate({"local.rate": [0.1, 0.2], "local.epochs": [1, 5]})
        >>> grid.settings()[:2]
        [{'local.rate': 0.1, 'local.epochs': 1}, {'local.rate': 0.1, 'local.epochs': 5}]
        >>> drawn = Grid.model_validate({"samples": 3, "local.rate": {"least": 0.01, "most": 1.0, "log": True}})
        >>> drawn.settings()
        [{'local.rate': 0.0958}, {'local.rate': 0.1543}, {'local.rate': 0.0164}]
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, use_attribute_docstrings=True)

    samples: Positive | None = None
    """So many settings are drawn. Default: every combination."""
    seed: Seed = 0
    """Of the draw."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _flatten_options(cls, value: Any) -> Any:
        """Take ``local.rate``, which TOML reads as a table in a table, for the option of that name."""
        if not isinstance(value, dict):
            return value
        declared = {key: inner for key, inner in value.items() if key in cls.model_fields}
        return declared | dict(_options({key: inner for key, inner in value.items() if key not in declared}))

    @pydantic.model_validator(mode="after")
    def _check_grid(self) -> Self:
        if not self.values:
            raise ValueError('names no option. Say which values one takes, such as "local.rate" = [0.01, 0.1].')
        for key, values in self.values.items():
            if isinstance(values, Range) and self.samples is None:
                raise ValueError(f"{key} is a range, from which `samples` are drawn: add samples = 20, or list values.")
            if isinstance(values, list) and len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
                raise ValueError(f"{key} must not repeat a value; got {values}.")
        if self.size > MOST:
            raise ValueError(f"makes {self.size} settings, and at most {MOST} are allowed. List fewer, or set samples.")
        return self

    @property
    def values(self) -> dict[str, Values]:
        """The values of each option."""
        return {key: _values(key, value) for key, value in (self.model_extra or {}).items()}

    @property
    def size(self) -> int:
        """How many settings there are, at most."""
        lists = [values for values in self.values.values() if isinstance(values, list)]
        return self.samples or math.prod(map(len, lists))

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings, the first option's value changing last; drawn ones without repetitions."""
        if self.samples is None:
            lists = [values for values in self.values.values() if isinstance(values, list)]
            return [dict(zip(self.values, combination, strict=True)) for combination in itertools.product(*lists)]
        rng, settings = generator(self.seed, "sweep"), {}
        for _ in range(self.samples):
            setting = {
                key: values.drawn(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]
                for key, values in self.values.items()
            }
            settings[json.dumps(setting, sort_keys=True)] = setting
        return [*settings.values()]


class TuneSection(Grid):
    """What is chosen for each method with each seed, on data of its participants that it is not scored on."""

    validation: Share = 0.2
    """Share of each participant's training samples by which a setting is judged."""
    rounds: Positive | None = None
    """Of a run that tries a setting. Default: as in the comparison."""


def _options(table: Mapping[str, Any], prefix: str = "") -> Any:
    for key, inner in table.items():
        if isinstance(inner, dict) and not inner.keys() & Range.model_fields.keys():
            yield from _options(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def _values(key: str, value: Any) -> Values:
    if isinstance(value, list) and value:
        return value
    if isinstance(value, dict):
        try:
            return Range.model_validate(value)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{key}: {where or 'range'}: {first['msg'].removeprefix('Value error, ')}") from None
    raise ValueError(
        f"{key} must list values, such as [0.01, 0.1], or be a range {{ least, most, log }}; got {value!r}."
    )


def in_words(setting: Setting) -> str:
    """Return a setting as people write it.

    Example:
        >>> in_words({"partition.alpha": 0.1, "method.selection": "full"})
        'partition.alpha = 0.1, method.selection = full'
    """
    return ", ".join(f"{key} = {value_in_words(value)}" for key, value in setting.items())


def value_in_words(value: Any) -> str:
    """Return a value as people write it: numbers as short as they are, words without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- What an experiment file may say: every key, its type, its range and its default; `loading` reads and checks one

PARTS = {kind: row.default for kind, row in KINDS.items() if row.path == METHOD}
"""Keys of a method that name a part of its federation, and what stands there by default."""


class Choice(BaseModel):
    """Something by name, with its options: ``"uniform"`` or ``{ name = "power_of_choice", candidates = 20 }``."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, use_attribute_docstrings=True)
    name: str
    """Of a built-in one, `fedreach list` shows them all; or `FILE.py:NAME`. Its options stand beside it."""

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
    """One of `fedreach list data`, a table (.csv, .parquet), an .npz file, a folder's `x.npy`, or `FILE.py:NAME`."""
    folder: str | None = None
    """Where the files lie. Default: the environment variable FEDREACH_DATA, then the cache."""
    download: bool = True
    """Whether files that are missing may be fetched; they are checked."""


class PartitionSection(Choice):
    """Which client holds which sample."""

    name: str = "dirichlet_by_class"
    """How samples are shared out; `natural` leaves them with the clients that the data name."""
    clients: Positive = 50
    """How many clients there are."""
    file: str | None = None
    """A partition saved by `fedreach partition --save`, instead of drawing one."""
    empty: Literal["error", "drop", "merge"] = "error"
    """What becomes of clients without data."""
    seed: Seed | None = None
    """Of who holds what, label noise included. Default: the population's."""


class ShiftSection(Choice):
    """How unseen clients differ from the participants in more than their classes."""

    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the unseen clients, how many are shifted."""


class PopulationSection(Section):
    """Who takes part, and when."""

    participants: Positive | Share | list[int | str] | Literal["all"] = 0.4
    """Who may train: how many, a share of those not excluded, ids or names, or all."""
    exclude_clients: list[int] = Field(default=[])
    """Ids of clients that never train."""
    exclude_labels: list[int] = Field(default=[])
    """Clients that hold one of these classes never train."""
    held_out: Share = 0.2
    """Share of each participant's samples that it does not train on."""
    refit: bool = False
    """Train once more in the end, on held-out rows too, for as many rounds as the best one took; scores stay."""
    validation: Share | None = None
    """Share of what participants train on by which `[tune]` judges; nothing else is looked at. Default: none."""
    participation: Choice = Choice(name="always")
    """Which participants can be reached in a round, and whose replies arrive."""
    seed: Seed | None = None
    """Of who takes part and of the shift, and of a partition without one. Default: the run's."""


class ModelSection(Choice):
    """What is trained."""

    name: str = "mlp"
    """A built-in model, or `FILE.py:NAME`: a function or class that makes a `torch.nn.Module`."""
    seed: Seed | None = None
    """Of its initial weights. Default: the run's."""
    output: str | int | None = None
    """Key, attribute or position of the output in what the module returns; or a function of it, `FILE.py:NAME`."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but name and seed."""
        return super().options | ({} if self.output is None else {"output": self.output})


class ServerDataSection(Section):
    """Data that the server holds itself, for methods that train on it: drawn from the clients', or a file."""

    examples: Positive | None = None
    """So many, taken from the training data of all clients, those that never train too."""
    file: str | None = None
    """An .npz file with `x` and `y` instead."""


class RadioSection(Choice):
    """Channels, devices and prices; with this section, seconds and joules are counted."""

    name: str = "gigahertz"
    """Which cell; its options are bandwidth, devices and prices."""


class UnevenStepsSection(Section):
    """Steps that differ between clients, see `fedreach.federation.local_sgd.UnevenSteps`."""

    least: Positive
    """The fewest steps of a client."""
    most: Positive
    """The most steps of a client."""
    drawn: Literal["client", "round"] = "round"
    """Whether a client draws its number once, or anew in each round."""


class OptimizerSection(Section):
    """How a client follows its gradients, see `fedreach.federation.local_sgd`."""

    name: Literal["sgd", "adam", "adamw", "torch"] = "sgd"
    """Plain gradient steps, or Adam, AdamW or any optimizer of PyTorch, which begins again in each round."""
    beta1: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of Adam's mean of gradients. Default: as in torch."""
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of Adam's mean of squares. Default: as in torch."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Added to Adam's denominator. Default: as in torch."""
    optimizer: str | None = None
    """Of `torch`, a class of `torch.optim`, such as `RMSprop`. The rate is `local.rate`."""
    options: dict[str, Any] | None = None
    """Of `torch`, the options of that class, such as `{ alpha = 0.9 }`. Default: as in torch."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class LocalSection(Section):
    """Local SGD, see `fedreach.federation.local_sgd.LocalSGD`."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Step size."""
    batch_size: Positive = 32
    """Examples a step."""
    epochs: Positive = 1
    """Passes over a client's examples in a round."""
    steps: Positive | UnevenStepsSection | None = None
    """So many steps in place of epochs, or numbers that differ between clients."""
    drop_last: bool = False
    """Whether an epoch ends with its last full batch; BatchNorm cannot train on one example."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the last step that is kept."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Pull to 0: so much of the weights is added to the gradient."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Longest gradient; longer ones are shortened to it."""
    schedule: str = "constant"
    """How the rate follows the rounds: `constant`, `exponential`, `cosine`, `step`, `warmup`, or `FILE.py:NAME`."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor a round of `exponential`; share of the rate at the end of `cosine`; factor of each step of `step`."""
    schedule_rounds: Positive | None = None
    """Rounds from one step of `step` to the next; rounds until `warmup` reaches the rate."""
    optimizer: OptimizerSection = OptimizerSection()
    """How a client follows its gradients."""

    @pydantic.field_validator("schedule")
    @classmethod
    def _known_schedule(cls, value: str) -> str:
        if value not in get_args(Schedule) and ":" not in value:
            raise ValueError(f"{', '.join(map(repr, get_args(Schedule)))} or FILE.py:NAME")
        return value


class EngineSection(Section):
    """How training is computed; the decisions do not depend on it."""

    name: Literal["auto", "native", "chain", "sequential", "stacked", "compiled"] = "auto"
    """`auto` takes the fastest in a trial; numbers agree to rounding."""
    device: str = "cpu"
    """As torch names it, such as `cpu`, `cuda` or `cuda:1`."""
    threads: Positive | None = None
    """At work in one run; changes no number. Default: the cores, shared by all runs."""
    precision: Literal["highest", "high", "medium"] = "highest"
    """Of products, as torch names it; `medium` is bfloat16."""


class EvaluationSection(Section):
    """When the model is evaluated."""

    every: Positive = 5
    """Rounds from one evaluation to the next."""
    local: bool = False
    """Whether the local models of the cohort are evaluated before they are aggregated, too."""
    samples_per_client: Positive | None = None
    """At most so many of each client's samples are scored. Default: all."""
    training: bool = False
    """Whether participants' training examples are scored, too, as `train_accuracy` and `out_of_sample_gap`."""
    inputs: list[Positive] = Field(default=[5, 20])
    """Clients are served with so many inputs, too, and scored on their others."""
    patience: Positive | None = None
    """Stop after so many evaluations without a better `id_loss`. Default: never."""
    metrics: list[Choice] = Field(default=[Choice(name="accuracy"), Choice(name="loss")])
    """Names of `fedreach list metric`, or `FILE.py:NAME`; these two are always there, of two classes `auroc`, too."""


class StatisticsSection(Section):
    """What a comparison is asked, said before it runs; changes no run. See `AnalysisPlan`."""

    contrasts: Literal["baseline", "all"] | list[list[str]] = "baseline"
    """Which differences are judged: with the baseline, of all pairs, or of these pairs."""
    correction: Literal["holm", "max_t"] = "holm"
    """For the number of contrasts."""
    margin_points: Annotated[float, Field(gt=0, le=100)] = 2.0
    """Within it two methods are as good as equal."""
    last_rounds: Positive = 1
    """What is compared is the mean over so many last evaluated rounds."""
    detect_points: Annotated[float, Field(gt=0, le=100)] | None = None
    """As many seeds as find a difference of so many points; `seeds` are then the pilot."""
    most_seeds: Positive = 200
    """No more than these, where that asks for more."""


class RunSection(Section):
    """How a run behaves; none of this changes its numbers, but `on_failure` where a client fails."""

    checkpoint_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Seconds from one checkpoint to the next; 0: one a round."""
    on_failure: Literal["stop", "drop"] = "stop"
    """What a client whose update is not finite does: end the run, or be left out of the round."""
    trackers: list[Choice] = Field(default=[])
    """Told as it goes on: names of `fedreach list tracker`, or `FILE.py:NAME`."""


if TYPE_CHECKING:
    Parts = Section
else:  # a field for each kind
    Parts = pydantic.create_model("Parts", __base__=Section, **dict.fromkeys(PARTS, (Choice | None, None)))


class Method(Parts):
    """What is compared: the parts of one federation. What a method leaves out comes from `[method]`."""

    cohort: Positive | None = None
    """Clients a round. Default: that of `[method]`."""
    local: dict[str, Any] = Field({})
    """Keys of `[local]` that this method has otherwise."""


class DefaultMethod(Parts):
    """The parts that all methods share unless they say otherwise; each kind has its default in `KINDS`."""

    cohort: Positive = 10
    """Clients a round."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return value | {kind: name for kind, name in PARTS.items() if value.get(kind) is None}


class BudgetSection(Section):
    """What a run may spend: it ends with the round that reaches one of these, or after `rounds`."""

    megabytes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Sent, both ways, probes included."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Simulated, by `[radio]`."""
    joules: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Simulated, by `[radio]`."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name, limit in self if limit is not None}


NO_COMPARISON: dict[str, Any] = {"methods": {}, "baseline": None, "statistics": None, "sweep": None, "tune": None}
"""What an experiment of one run says of several."""


class Experiment(Section):
    """A whole experiment file."""

    name: str = "experiment"
    """In tables and on the page. Default: that of the file."""
    rounds: Positive = 50
    """Of training, at most."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default=[0])
    """Each draws partition, participants, model and batches anew."""
    baseline: str | None = None
    """What the other methods are compared with. Default: the first."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Rounds, bytes and seconds until unseen clients reach it are told."""
    data: Data = Data()
    partition: PartitionSection = PartitionSection.model_validate({"alpha": 0.3})
    noise: Choice | None = None
    """Wrong labels on training data; those of held-out and test data stay true."""
    shift: ShiftSection | None = None
    population: PopulationSection = PopulationSection()
    server_data: ServerDataSection | None = None
    budget: BudgetSection = BudgetSection()
    radio: RadioSection | None = None
    model: ModelSection = ModelSection()
    augmentation: Choice | None = None
    """How the inputs of clients' training batches are changed at random."""
    local: LocalSection = LocalSection()
    engine: EngineSection = EngineSection()
    evaluation: EvaluationSection = EvaluationSection()
    statistics: StatisticsSection | None = None
    """What a comparison is asked, said before it runs."""
    sweep: Grid | None = None
    """Settings that are shown, a comparison each."""
    tune: TuneSection | None = None
    """Settings of which each method is given the best."""
    run: RunSection = RunSection()
    method: DefaultMethod = DefaultMethod()
    methods: dict[str, Method] = Field(default={})
    """What is compared, by name."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _numbers_by_squared_error(cls, value: Any) -> Any:
        """A column that is named as `target` holds numbers: their loss is mse unless another is named."""
        data, method = (value.get(key, {}) for key in ("data", "method")) if isinstance(value, dict) else ({}, None)
        named = isinstance(data, dict) and data.get("target") is not None
        if named and isinstance(method, dict) and method.get("loss") is None:
            return value | {"method": method | {"loss": "mse"}}
        return value

    def choice(self, kind: str) -> Choice | None:
        """Return what the experiment says of a kind; None where it says nothing."""
        path = KINDS[kind].path
        if path is None:
            return None
        value: Any = self
        for step in (*path, kind):
            value = getattr(value, step)
        result: Choice | None = value
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

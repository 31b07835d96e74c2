"""What stands in a run folder, file by file: the recorder writes it and the report reads it, both by these classes.

```
run.json          RunRecord          what was run: method, seed, options, the user's code, environment, git revision
federation.json   FederationRecord   who holds what and who takes part, with a hash
rounds.jsonl      RoundRow           one row a round          pandas.read_json(path, lines=True)
clients.jsonl     ClientLine         scores of single clients, a line for each evaluation and population
timing.jsonl      Timing             seconds a round; the only rows that differ between two runs of the same thing
serving.json      ServingRecord      how clients are served by the last and the best model, where a method has a rule
baselines.json    BaselinesRecord    what a model must beat, such as the majority class, on this federation
served.jsonl      ServedLine         the same for single clients, a line for each model, population and rung
result.json       Result             how it ended; written last
comparison.json   ComparisonRecord   several runs, in the folder that theirs lie in
sweep.json        SweepRecord        several comparisons, one a setting, likewise
tuning.json       TuningRecord       which setting each method of a comparison was given, and why
```
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from hashlib import sha256
from math import nan
from types import NoneType, UnionType
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np

from fedreach._util.arrays import Ints, replaced
from fedreach._util.errors import RunFolderError, nearest

FORMAT = 3  # 2: models, clusters, solver states; rows with metrics. 3: digests
CHECKPOINT = "checkpoint.safetensors"

EVALUATED = re.compile(r"(id|unseen|test|train|local)_\w+|(participation|out_of_sample)_gap(_low|_high)?")
"""Columns that an evaluation adds to a row: of a population and a metric, or of a gap between two."""
METRIC = re.compile(r"[a-z][a-z0-9_]*")  # what further metrics are called

HARMLESS = {
    "config.name",
    "config.seeds",
    "config.target_accuracy",
    "config.run.checkpoint_seconds",
    "config.run.trackers",
    "config.engine.threads",
    "config.data.folder",
    "config.data.download",
}
"""Options that change no number of a run: a folder is gone on with although they differ."""

OF_EACH_FILE = ("format", "seal")
"""Keys that say nothing of what a record is about."""

IN_JSON: Mapping[Any, type] = {Mapping: dict, Sequence: list, np.ndarray: list}
NUMBERS = frozenset({int, float, bool, NoneType})


class Key(NamedTuple):
    """A key of a JSON object."""

    types: frozenset[type]  # that its value may be of
    required: bool
    array: bool  # whether the list that stands there is read as an array


A_NUMBER = Key(frozenset({int, float, NoneType}), required=False, array=False)
NUMBERS_OF_CLIENTS = Key(frozenset({list}), required=False, array=False)


class Record:
    """A JSON object by its keys: the fields of a frozen dataclass, in their order; what has its default is left out.

    Example:
        >>> Timing(round=3, train_seconds=0.25).to_json()
        {'round': 3, 'train_seconds': 0.25}
        >>> Timing.of_json({"round": 3, "train_second": 0.25}, "timing.jsonl, line 4")
        Traceback (most recent call last):
            ...
        fedreach.RunFolderError: timing.jsonl, line 4 has a key 'train_second' that no version of this format...
    """

    FILE: ClassVar[str]
    REST: ClassVar[str] = ""  # the field whose keys stand beside the other fields, as columns of evaluations do
    REST_NAMES: ClassVar[re.Pattern[str]] = EVALUATED  # that these keys may have
    REST_KEY: ClassVar[Key] = A_NUMBER  # and what stands there

    @classmethod
    @cache
    def known_keys(cls) -> Mapping[str, Key]:
        """Return the keys of the object, without those of `REST`."""
        hints, keys = get_type_hints(cls), {}
        for record_field in fields(cls):  # type: ignore[arg-type]  # every record is a dataclass
            hint = hints[record_field.name]
            kinds = [get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else [hint])]
            types = {IN_JSON.get(kind, kind) for kind in kinds} | ({int} if float in kinds else set())
            keys[record_field.name] = Key(frozenset(types), record_field.default is MISSING, np.ndarray in kinds)
        keys.pop(cls.REST, None)
        return keys

    @classmethod
    @cache
    def _defaults_and_arrays(cls) -> tuple[Mapping[str, Any], list[str]]:
        defaults = {record_field.name: record_field.default for record_field in fields(cls)}  # type: ignore[arg-type]  # as above
        return defaults, [name for name, key in cls.known_keys().items() if key.array]

    def to_json(self) -> dict[str, Any]:
        """Return the object that is written."""
        defaults, arrays = self._defaults_and_arrays()
        content = {key: value for key, value in vars(self).items() if value is not defaults[key]}
        for name in arrays:
            content[name] = content[name].tolist()
        if self.REST:
            content.update(content.pop(self.REST))
        return content

    @classmethod
    def of_json(cls, row: Mapping[str, Any], where: str) -> Self:
        """Return the record that was written as `row`.

        Args:
            row: The JSON object.
            where: It stands: the file, and the line.

        Raises:
            RunFolderError: If a key is missing, unknown, or its value of another type.
        """
        cls.check_keys(row.keys(), where)
        values: dict[str, Any] = {}
        for name, key in cls.known_keys().items():
            if name in row:
                value = row[name]
                cls.check_type(name, type(value), where)
                values[name] = _array(value, f"{where}: {name!r}") if key.array else value
        if cls.REST:
            values[cls.REST] = {name: value for name, value in row.items() if name not in values}
            for name, value in values[cls.REST].items():
                cls.check_type(name, type(value), where)
        return cls(**values)

    @classmethod
    def check_keys(cls, names: Collection[str], where: str) -> None:
        """Refuse an object with these keys if one is unknown or one is missing; both errors are RunFolderError."""
        known_keys = cls.known_keys()
        for name in names:
            if (
                name not in known_keys
                and name not in OF_EACH_FILE
                and not (cls.REST and cls.REST_NAMES.fullmatch(name))
            ):
                raise RunFolderError(
                    f"{where} has a key {name!r} that no version of this format writes."
                    f"{nearest(name, [key for key in known_keys if key not in names])} "
                    "It was edited: run the same command again."
                )
        for name, key in known_keys.items():
            if key.required and name not in names:
                raise RunFolderError(f"{where} has no key {name!r}. It was edited or cut: run the same command again.")

    @classmethod
    def types_of(cls, name: str) -> frozenset[type]:
        """Return the types that the value of a known key may be of."""
        return cls.known_keys().get(name, cls.REST_KEY).types

    @classmethod
    def check_type(cls, name: str, actual: type, where: str) -> None:
        """Refuse a value of a type that its key does not have, by a RunFolderError."""
        types = cls.types_of(name)
        if actual not in types:
            expected = " or ".join(sorted(_word(kind) for kind in types))
            raise RunFolderError(
                f"{where}: {name!r} must be {expected}; got {_word(actual)}. Restore the file as it was written."
            )


def _word(kind: type) -> str:
    return {NoneType: "null", dict: "object"}.get(kind, kind.__name__)


def _array(value: Any, where: str) -> Ints:
    try:
        return np.array(value, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise RunFolderError(
            f"{where} must hold whole numbers ({error}). Restore the file as it was written."
        ) from None


# ---------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRow(Record):
    """What a round did: who trained, what it cost, how good the model then was. Row 0 stands before the first round."""

    FILE = "rounds.jsonl"
    REST = "evaluated"

    round: int
    cohort: Sequence[int]
    weights: Sequence[float | None]  # of the clients in `cohort` whose reply counts
    lost: Sequence[int]
    metrics: Mapping[str, Sequence[float | None]] | None = None  # what the replies measured
    train_loss: float | None = nan  # None: no reply counted; not there in row 0
    bytes_down: int
    bytes_up: int
    bytes_total: int  # of all rounds so far
    probe_bytes: int  # part of `bytes_down` and `bytes_up`
    seconds: float | None = None  # simulated; these and all up to `allocation` where there is a radio
    joules: float | None = None
    probe_seconds: float | None = None
    probe_joules: float | None = None
    seconds_total: float | None = None
    joules_total: float | None = None
    allocation: Mapping[str, Sequence[float]] | None = None  # who got which share and frequency, by `ids`
    remark: str | None = None  # of the selection policy
    by_server: bool = False  # whether the server trained on its own data and no client was asked
    refused: Mapping[str, str] | None = None  # "client 3" or "node 7" -> what it said that cannot be, on Flower
    clusters: Sequence[int] | None = None  # which model each participant has, where there are several
    evaluated: Mapping[str, float | None]  # columns of `fedreach.evaluation.evaluator.Evaluator`; null is not finite


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientLine(Record):
    """Scores of the single clients of a population."""

    FILE = "clients.jsonl"
    REST, REST_NAMES, REST_KEY = "metrics", METRIC, NUMBERS_OF_CLIENTS

    round: int
    population: str  # "participants", "unseen" or "local": each of the cohort by its own model
    ids: Sequence[int]
    names: Sequence[str] | None = None  # of these clients, where they have any
    examples: Sequence[int]  # that a client was evaluated on
    accuracy: Sequence[float | None] | None = None  # or else, where targets are numbers,
    mae: Sequence[float | None] | None = None
    loss: Sequence[float | None]
    metrics: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # further ones; null is undefined

    @property
    def score(self) -> Sequence[float | None]:
        """What the main score is of each client."""
        return (self.accuracy if self.mae is None else self.mae) or ()

    @classmethod
    def check_keys(cls, names: Collection[str], where: str) -> None:
        super().check_keys(names, where)
        if ("accuracy" in names) is ("mae" in names):
            problem = "both 'accuracy' and 'mae'" if "mae" in names else "no key 'accuracy'"
            raise RunFolderError(f"{where} has {problem}. It was edited or cut: run the same command again.")


@dataclass(frozen=True, kw_only=True)
class Timing(Record):
    """How long a round took."""

    FILE = "timing.jsonl"

    round: int
    train_seconds: float | None = None  # without the evaluation
    evaluate_seconds: float | None = None
    check: str = ""  # digest of the above and of the run: this file stands in no checkpoint

    def checked(self, run: str) -> Timing:
        """Return the row of a run with its digest."""
        return replaced(self, check=self.digest(run, self.round, self.train_seconds, self.evaluate_seconds))

    @staticmethod
    def digest(run: str, round_: int, trained: float | None, evaluated: float | None) -> str:
        """Return the digest of a row."""
        return sha256(f"{run} {round_} {trained} {evaluated}".encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False, kw_only=True)
class ServedLine(Record):
    """How well the single clients of a population are served on one rung, see `fedreach.evaluation.modes`."""

    FILE = "served.jsonl"

    model: str  # "last" or "best"
    round: int
    population: str  # "participants" or "unseen"
    rung: str
    ids: Sequence[int]
    names: Sequence[str] | None = None  # of these clients, where they have any
    inputs: Sequence[int] | None = None  # that each client has; not there in folders of before
    accuracy: Sequence[float]
    loss: Sequence[float]
    calibration_error: Sequence[float]


# ---------------------------------------------------------------------------------------------------- whole files


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord(Record):
    """What was run. All but the last two make a run this run: it is gone on with by nothing else."""

    FILE = "run.json"

    method: str
    seed: int
    config: Mapping[str, Any]
    code: Mapping[str, str]  # name of the user's own code, or path of what it imports -> digest of what it means
    data: Mapping[str, str] | None = None  # name of the user's own data -> digest of the file, where there are any
    environment: Mapping[str, Any]
    git: Mapping[str, Any] | None
    id: str = ""  # digest of what makes it this run, and of its federation; the folder's other files name it
    federation: str = ""  # digest of what the recorder wrote of it


@dataclass(frozen=True, eq=False, kw_only=True)
class FederationRecord(Record):
    """Who holds what and who takes part: n clients, c classes."""

    FILE = "federation.json"

    hash: str
    dataset: Mapping[str, Any]  # where it is from and, unless clients kept that to themselves, what a sample looks like
    partition: Mapping[str, Any]
    num_clients: int
    num_classes: int  # 0 where clients did not tell their labels, or targets are numbers
    label_counts: Ints  # (n, c), of the partition, less what a shift dropped; `server_data` says what the server took
    sizes: Ints  # (n,)
    participants: Ints  # ids, increasing
    unseen: Ints  # ids, increasing; empty if everybody takes part
    participants_without_held_out_data: Ints
    statistics: Mapping[str, Any]
    noise: Mapping[str, Any] | None
    server_data: Mapping[str, Any] | None
    shift: Mapping[str, Any] | None = None  # of unseen clients
    client_names: Sequence[str] | None = None  # (n,) where clients have names other than their ids
    class_names: Sequence[str] | None = None  # (c,) where labels are words
    preparation: Sequence[Mapping[str, Any]] | None = None  # how columns of a table became inputs
    targets: int | None = None  # numbers to predict for each sample, where these are no classes
    target_scale: Mapping[str, Any] | None = None  # on which they were learned, `mean` and `sd`; None: as they are
    mean_mae: float | None = None  # error of the participants' mean on what they hold out, where targets are numbers

    @property
    def outputs(self) -> int:
        """Numbers that the model says of a sample: one a class, or the targets; 0 where clients did not tell."""
        return self.targets or self.num_classes or int(self.dataset.get("outputs", 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Result(Record):
    """How a run ended."""

    FILE = "result.json"

    status: str  # "finished" or "failed"; a failed run has nothing but its error
    rounds: int | None = None
    best_round: int | None = None  # with the lowest loss on participants' held-out data
    refit: Mapping[str, Any] | None = None  # `rounds` on all rows and their `bytes_total`, where there were any
    run: str = ""  # `RunRecord.id`; empty where a run failed before it was written
    seals: Mapping[str, Sequence[Any]] | None = None  # of each file of rows its length in bytes and its sha256
    digests: Mapping[str, str] | None = None  # of the models and what serves them
    error: str | None


@dataclass(frozen=True, eq=False, kw_only=True)
class ServingRecord(Record):
    """How clients are served by the last and the best model: columns of `fedreach.evaluation.modes`, and the cost."""

    FILE = "serving.json"

    rule: str
    needs_labels: bool = False  # of those that are served: a reference that nobody could deploy
    rounds: Mapping[str, int]  # "last" and "best" -> the model's round
    columns: Mapping[str, Mapping[str, float]]  # "last" and "best" -> column -> number
    exchanges: int = 0  # of the server with the participants, to fit the rule
    bytes_up: int = 0  # of one participant, in all exchanges
    bytes_down: int = 0  # likewise
    bytes_state: int = 0  # handed out beside the model
    seconds: float | None = None  # simulated, where there is a radio: of all exchanges
    joules: float | None = None  # likewise, of all participants together
    left: Mapping[str, Mapping[str, int]] | None = None  # "last" and "best" -> participant -> exchange that it missed


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselinesRecord(Record):
    """How baselines do on this federation, whatever the method; see `fedreach.evaluation.baselines`."""

    FILE = "baselines.json"

    columns: Mapping[
        str, Mapping[str, float]
    ]  # name of a baseline -> columns of `fedreach.evaluation.evaluator.Evaluator`
    clients: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]  # name -> population -> "ids" and their scores
    left_out: str | None = None  # why there is no pooled model
    leaks: Sequence[Mapping[str, Any]]  # columns that give the label away: "column", "measure", "value"


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonRecord(Record):
    """Several methods with several seeds."""

    FILE = "comparison.json"

    name: str
    baseline: str
    target_accuracy: float | None
    methods: Sequence[str]
    seeds: Sequence[int]
    runs: Mapping[str, Mapping[str, str]]  # method -> seed -> folder, relative to this one
    statistics: Mapping[str, Any]  # `fedreach.evaluation.statistics.AnalysisPlan`, said before the first run
    pilot: Sequence[int] | None = None  # the seeds whose spread gave the number of seeds, where it was not declared
    looks: Sequence[int] | None = None  # numbers of seeds declared before, if seeds were added once there were results
    lengths: Sequence[int] | None = None  # rounds of its runs before these were made longer, if they were
    config: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class SweepRecord(Record):
    """Comparisons that differ in the settings of some options."""

    FILE = "sweep.json"

    name: str
    keys: Sequence[str]  # the options
    settings: Sequence[Mapping[str, Any]]  # key -> value, one a comparison
    cells: Sequence[str]  # folders of the comparisons, relative to this one
    samples: int | None = None  # how many were drawn, where they are no grid
    config: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class TuningRecord(Record):
    """Which of some settings each method was given with each seed: that with the best score on validation data.

    These are a part of what participants train on. Nobody trained on it, and it is in no other number of the
    comparison: the runs that are compared train on it again, and are scored on other data.
    """

    FILE = "tuning.json"

    settings: Sequence[Mapping[str, Any]]  # key -> value, one a candidate
    samples: int | None = None  # how many were drawn, where they are no grid
    rounds: int  # of a run that tries one
    validation: float  # share of each participant's training samples
    score: str  # that was looked at: "accuracy" or "mae", the mean over participants
    scores: Mapping[str, Mapping[str, Sequence[float | None]]]  # method -> seed -> a number a candidate; null: diverged
    chosen: Mapping[str, Mapping[str, int]]  # method -> seed -> place of the candidate
    runs: Mapping[str, int]  # method -> runs that it took, beside those that are compared

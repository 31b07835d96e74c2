"""The files of a run folder, which the recorder writes and the report reads with these classes.

```
run.json          RunRecord          the run: method, seed, options, the user's code, environment, git revision
federation.json   FederationRecord   data and participants, with a hash
rounds.jsonl      RoundRow           one row per round        pandas.read_json(path, lines=True)
clients.jsonl     ClientLine         scores of single clients, a line for each evaluation and population
timing.jsonl      Timing             seconds per round; the only rows that differ when a run is repeated
adaptation.json   AdaptationRecord   scores of the adapted last and best model, if the method has an adaptation rule
baselines.json    BaselinesRecord    scores to beat, such as that of the majority class, on this federation
adapted.jsonl     AdaptedLine        adapted scores of single clients, a line for each model, population and mode
result.json       Result             the result of the run; written last
comparison.json   ComparisonRecord   several runs; in the folder that contains the run folders
sweep.json        SweepRecord        several comparisons, one per setting; in the folder that contains their folders
tuning.json       TuningRecord       the chosen setting of each method of a comparison, and why
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from hashlib import sha256
from math import nan
from typing import Any, ClassVar, Self

import numpy as np

from fedreach._util.arrays import Ints, replace_fields

FORMAT = 4  # 4: the terms of this version in keys and file names
CHECKPOINT = "checkpoint.safetensors"

HARMLESS_OPTIONS = {
    "config.name",
    "config.seeds",
    "config.target_accuracy",
    "config.run.checkpoint_seconds",
    "config.run.trackers",
    "config.engine.threads",
    "config.data.folder",
    "config.data.download",
}
"""Options that do not affect results, so a run resumes even if they differ."""

COMMON_KEYS = ("format", "sha256")
"""Keys of every file in addition to the fields of the record."""


class Record:
    """A JSON object whose keys are the fields of a frozen dataclass, in order, without default values.

    Signatures and manifests show that an object has not changed since it was written. Reading checks nothing else.

    Example:
        >>> Timing(round=3, train_seconds=0.25).to_json()
        {'round': 3, 'train_seconds': 0.25}
        >>> Timing.of_json({"round": 3, "train_seconds": 0.25}).train_seconds
        0.25
    """

    FILE: ClassVar[str]
    REST: ClassVar[str] = ""  # the field whose keys are stored like fields, such as columns of evaluations

    @classmethod
    @cache
    def known_keys(cls) -> Mapping[str, Any]:
        """Return the keys of the object with their default values, without the keys of `REST`."""
        record_fields = fields(cls)  # type: ignore[arg-type]  # every record is a dataclass
        return {key.name: key.default for key in record_fields if key.name != cls.REST}

    @classmethod
    @cache
    def _arrays(cls) -> list[str]:
        return [key.name for key in fields(cls) if key.type == "Ints"]  # type: ignore[arg-type]  # as above

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the record."""
        defaults = self.known_keys()
        content = {key: value for key, value in vars(self).items() if value is not defaults.get(key, MISSING)}
        for name in self._arrays():
            content[name] = content[name].tolist()
        if self.REST:
            content.update(content.pop(self.REST))
        return content

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the record from its JSON object `row`."""
        values = {name: row[name] for name in cls.known_keys() if name in row}
        for name in cls._arrays():
            values[name] = np.array(values[name], np.int64)
        if cls.REST:
            values[cls.REST] = {name: value for name, value in row.items() if name not in values}
        return cls(**values)


# ---------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRow(Record):
    """One round: cohort, costs, and scores of the model after the round. Row 0 is the state before the first round."""

    FILE = "rounds.jsonl"
    REST = "evaluated"

    round: int
    cohort: Sequence[int]
    weights: Sequence[float | None]  # of the clients in `cohort` whose reply counts
    lost: Sequence[int]
    metrics: Mapping[str, Sequence[float | None]] | None = None  # what the replies measured
    train_loss: float | None = nan  # None: no reply counted; missing in row 0
    bytes_down: int
    bytes_up: int
    bytes_total: int  # of all rounds so far
    probe_bytes: int  # part of `bytes_down` and `bytes_up`
    seconds: float | None = None  # simulated; this and all fields up to `allocation` need a radio
    joules: float | None = None
    probe_seconds: float | None = None
    probe_joules: float | None = None
    seconds_total: float | None = None
    joules_total: float | None = None
    allocation: Mapping[str, Sequence[float]] | None = None  # shares and frequencies of the clients in `ids`
    remark: str | None = None  # of the selection policy
    by_server: bool = False  # whether the server trained on its own data and no client was asked
    refused: Mapping[str, str] | None = None  # "client 3" or "node 7" -> its impossible reply, on Flower
    clusters: Sequence[int] | None = None  # the model of each participant, if there are several
    cluster_changes: float | None = None  # share of participants that changed their cluster, of those with one before
    evaluated: Mapping[str, float | None]  # columns of `fedreach.evaluation.evaluator.Evaluator`; null is not finite


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientLine(Record):
    """Scores of each client of a population."""

    FILE = "clients.jsonl"
    REST = "metrics"

    round: int
    population: str  # "participants", "unseen" or "local": each of the cohort by its own model
    ids: Sequence[int]
    names: Sequence[str] | None = None  # of these clients, if they have names
    examples: Sequence[int]  # number of evaluated examples of each client
    accuracy: Sequence[float | None] | None = None  # in classification
    mae: Sequence[float | None] | None = None  # in regression
    loss: Sequence[float | None]
    metrics: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # additional ones; null is undefined

    @property
    def score(self) -> Sequence[float | None]:
        """The main score of each client."""
        return (self.accuracy if self.mae is None else self.mae) or ()


@dataclass(frozen=True, kw_only=True)
class Timing(Record):
    """Duration of a round."""

    FILE = "timing.jsonl"

    round: int
    train_seconds: float | None = None  # without the evaluation
    evaluate_seconds: float | None = None
    check: str = ""  # digest of the fields above and of the run, because no manifest lists this file

    def checked(self, run: str) -> Timing:
        """Return the row with its digest for this run."""
        return replace_fields(self, check=self.digest(run, self.round, self.train_seconds, self.evaluate_seconds))

    @staticmethod
    def digest(run: str, round_: int | None, trained: float | None, evaluated: float | None) -> str:
        """Return the digest of a row."""
        return sha256(f"{run} {round_} {trained} {evaluated}".encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptedLine(Record):
    """Scores of each client of a population in one prediction mode (see `fedreach.evaluation.modes`)."""

    FILE = "adapted.jsonl"

    model: str  # "last" or "best"
    round: int
    population: str  # "participants" or "unseen"
    mode: str
    ids: Sequence[int]
    names: Sequence[str] | None = None  # of these clients, if they have names
    inputs: Sequence[int] | None = None  # number of inputs of each client; missing in older folders
    accuracy: Sequence[float]
    loss: Sequence[float]
    calibration_error: Sequence[float]


# ---------------------------------------------------------------------------------------------------- whole files


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord(Record):
    """Record of a run, which resumes only if all fields up to `data` are the same."""

    FILE = "run.json"

    method: str
    seed: int
    config: Mapping[str, Any]
    code: Mapping[str, str]  # name of the user's code, or path of an import -> digest of its meaning
    data: Mapping[str, str] | None = None  # name of the user's data -> digest of the file, if any
    environment: Mapping[str, Any]
    git: Mapping[str, Any] | None
    learned: Sequence[Mapping[str, str]] | None = None  # what the server learns (see `Disclosed.to_json`)
    id: str = ""  # digest of the options and the federation; checkpoint and result name it


@dataclass(frozen=True, eq=False, kw_only=True)
class FederationRecord(Record):
    """Data and participants of a federation: n clients, c classes."""

    FILE = "federation.json"

    hash: str
    dataset: Mapping[str, Any]  # its source and, unless clients hide it, the form of its examples
    partition: Mapping[str, Any]
    num_clients: int
    num_classes: int  # 0 if clients do not share labels, or in regression
    label_counts: Ints  # (n, c) of the partition after a shift; `server_data` has what the server took
    sizes: Ints  # (n,)
    participants: Ints  # ids, increasing
    unseen: Ints  # ids, increasing; empty if all clients participate
    participants_without_held_out_data: Ints
    statistics: Mapping[str, Any]
    noise: Mapping[str, Any] | None
    server_data: Mapping[str, Any] | None
    shift: Mapping[str, Any] | None = None  # of unseen clients
    client_names: Sequence[str] | None = None  # (n,) if clients have names other than their ids
    class_names: Sequence[str] | None = None  # (c,) if labels are text
    preparation: Sequence[Mapping[str, Any]] | None = None  # conversion of table columns to inputs
    targets: int | None = None  # number of targets per example, in regression
    target_scale: Mapping[str, Any] | None = None  # scale of the targets, `mean` and `sd`; None: unscaled
    mean_mae: float | None = None  # error of the participants' mean on held-out data, in regression

    @property
    def outputs(self) -> int:
        """Number of model outputs per example: one per class or target; 0 if clients do not share labels."""
        return self.targets or self.num_classes or int(self.dataset.get("outputs", 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Result(Record):
    """Result of a run."""

    FILE = "result.json"

    status: str  # "finished" or "failed"; a failed run has only its error
    rounds: int | None = None
    best_round: int | None = None  # with the lowest loss on participants' held-out data
    refit: Mapping[str, Any] | None = None  # `rounds` on all rows and their `bytes_total`, after a refit
    privacy: Mapping[str, Any] | None = None  # `fedreach.federation.accounting.Guarantee` and its `statement`
    run: str = ""  # `RunRecord.id`; empty if a run failed before it was written
    error: str | None
    files: Mapping[str, Sequence[Any]] | None = None  # manifest: file -> its size in bytes and its sha256


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptationRecord(Record):
    """Scores of the adapted last and best model, as columns of `fedreach.evaluation.modes`, and costs."""

    FILE = "adaptation.json"

    rule: str
    needs_labels: bool = False  # of adapted clients: a reference that cannot be deployed
    rounds: Mapping[str, int]  # "last" and "best" -> the model's round
    columns: Mapping[str, Mapping[str, float]]  # "last" and "best" -> column -> number
    exchanges: int = 0  # of the server with the participants, to fit the rule
    bytes_up: int = 0  # of one participant, in all exchanges
    bytes_down: int = 0  # likewise
    bytes_state: int = 0  # sent in addition to the model
    seconds: float | None = None  # simulated, if there is a radio: of all exchanges
    joules: float | None = None  # likewise, of all participants together
    left: Mapping[str, Mapping[str, int]] | None = None  # "last" and "best" -> participant -> exchange that it missed


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselinesRecord(Record):
    """Scores of baselines on this federation, which apply to all methods (see `fedreach.evaluation.baselines`)."""

    FILE = "baselines.json"

    columns: Mapping[
        str, Mapping[str, float]
    ]  # name of a baseline -> columns of `fedreach.evaluation.evaluator.Evaluator`
    clients: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]  # name -> population -> "ids" and their scores
    left_out: str | None = None  # why the pooled model is missing
    leaks: Sequence[Mapping[str, Any]]  # columns that leak the label: "column", "measure", "value"


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
    statistics: Mapping[str, Any]  # `fedreach.evaluation.statistics.AnalysisPlan`, declared before the first run
    pilot: Sequence[int] | None = None  # seeds whose spread determined the number of seeds, if it was not declared
    looks: Sequence[int] | None = None  # earlier numbers of seeds, if seeds were added after results
    lengths: Sequence[int] | None = None  # earlier numbers of rounds, if runs were extended
    config: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class SweepRecord(Record):
    """Comparisons that differ in the settings of some options."""

    FILE = "sweep.json"

    name: str
    keys: Sequence[str]  # the options
    settings: Sequence[Mapping[str, Any]]  # key -> value, one per comparison
    cells: Sequence[str]  # folders of the comparisons, relative to this one
    samples: int | None = None  # number of drawn settings, unless they are a grid
    config: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class TuningRecord(Record):
    """The setting of each method and seed with the best score on validation data.

    Validation data are a part of participants' training data on which candidates do not train. They affect no other
    result of the comparison, because the compared runs train on them and are scored on other data.
    """

    FILE = "tuning.json"

    settings: Sequence[Mapping[str, Any]]  # key -> value, one per candidate
    samples: int | None = None  # number of drawn settings, unless they are a grid
    rounds: int  # of the run of one candidate
    validation: float  # share of each participant's training examples
    score: str  # "accuracy" or "mae", the mean over participants
    scores: Mapping[str, Mapping[str, Sequence[float | None]]]  # method -> seed -> score per candidate; null: diverged
    chosen: Mapping[str, Mapping[str, int]]  # method -> seed -> index of the candidate
    runs: Mapping[str, int]  # method -> number of runs, in addition to the compared ones

"""Data of a round: views, probes, cohorts and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints

if TYPE_CHECKING:
    from fedreach.wireless.problem import Allocation
    from fedreach.wireless.radio import RadioState


State = Mapping[str, AnyArray]
"""What a component keeps between rounds: named arrays, never written to in place."""
NO_STATE: State = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class ServerView:
    """Data that the server may read before the selection; arrays over the n participants, with increasing ids.

    Args:
        ids: (n,) ids of the participants.
        available: (n,) whether each client is available in this round.
        num_examples: (n,) number of training examples.
        loss: (n,) last reported loss; nan for clients that have not reported a loss yet.
        probed: (n,) whether the client was probed in this round.
        label_counts: (n, c) label counts, if a component needs them; whole numbers unless noise was added. Default:
            None.
        label_entropy: (n,) label entropy in nats, if a component needs it. Default: None.
        sent_update: (n,) whether the client answered this round's probe for updates. Default: None, in rounds without
            such a probe.
        round: Number of the round, at least 1.
        rounds: Number of rounds of the run, for policies with `reads_length = True`. Default: None, unknown.
        probe: Probe of this round. Default: None.
        radio: Channels and devices, if the federation has a radio. Default: None.
        constant_bytes: Size of the parameters that are neither trained nor averaged, in bytes; a client receives them
            once, with its first model. Default: 0.
    """

    ids: Ints
    available: Bools
    num_examples: Ints
    loss: Floats
    probed: Bools
    label_counts: Floats | None = None
    label_entropy: Floats | None = None
    sent_update: Bools | None = None
    round: int = 1
    rounds: int | None = None
    probe: Probe | None = None
    radio: RadioState | None = None
    constant_bytes: int = 0

    @classmethod
    def of(
        cls, ids: Ints, num_examples: Ints, *, available: Bools | None = None, loss: Floats | None = None
    ) -> ServerView:
        """Return a view in which, by default, all clients are available and no client has replied yet.

        Example:
            >>> ServerView.of(np.arange(3), np.array([10, 20, 30])).available
            array([ True,  True,  True])
        """
        n = len(ids)
        return cls(
            ids=ids,
            available=np.ones(n, np.bool_) if available is None else available,
            num_examples=num_examples,
            loss=np.full(n, np.nan) if loss is None else loss,
            probed=np.zeros(n, np.bool_),
        )

    @property
    def available_ids(self) -> Ints:
        """Ids of the available clients; `ids` itself, without a copy, if all clients are available."""
        return self.ids if self.available.all() else self.ids[self.available]

    @property
    def share(self) -> Floats:
        """(n,) N m_i / sum_j m_j: numbers of examples relative to the mean over clients that have examples."""
        return np.asarray(self.num_examples / self.num_examples[self.num_examples > 0].mean())

    def rows(self, ids: Ints) -> Ints:
        """Return the positions of these ids in the arrays of this view."""
        return self.ids.searchsorted(ids).astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Probe:
    """Request to clients that receive the model before the selection.

    - ``loss``: Clients send their mean training loss. The policy then reads it in ``view.loss``.
    - ``batch_loss``: Clients send the mean loss of `batch_size` examples, drawn for this round.
    - ``update``: Clients train and send their update and metrics, for the policy's `observe` only. A client that is
      selected afterwards does not train again.
    """

    ids: Ints  # (p,)
    asks: Literal["loss", "batch_loss", "update"] = "loss"
    batch_size: int = 64


@dataclass(frozen=True, eq=False)
class Cohort:
    """Cohort of a round.

    A policy that draws with replacement stores in `draws` how often it drew each client. A client trains once and sends
    one result, even if it was drawn several times. Its metrics contain `draws`, which the weighting `by_draws` uses.
    """

    ids: Ints  # (k,)
    remark: str = ""  # for the row of the round, such as a filter that could not be kept
    allocation: Allocation | None = None  # of bandwidth and CPU frequency, of a policy that decides these too
    draws: Ints | None = None  # (k,) how often each was drawn, 1 at least; None: once

    @classmethod
    def drawn(cls, ids: Ints, remark: str = "") -> Cohort:
        """Return the cohort for a list of client ids that may contain repeated ids.

        Example:
            >>> selection = Cohort.drawn(np.array([7, 3, 7]))
            >>> selection.ids, selection.draws
            (array([3, 7]), array([1, 2]))
        """
        once, draws = np.unique(ids, return_counts=True)
        return cls(once, remark, draws=draws)

    @property
    def places(self) -> int:
        """Number of used places in the cohort; a client that was drawn twice uses two places."""
        return len(self.ids) if self.draws is None else int(self.draws.sum())


@dataclass(frozen=True, eq=False)
class RoundCost:
    """Simulated seconds and joules of a round, for all requested clients, including clients without a reply."""

    seconds: float  # the probe's, then until the last of the cohort is ready
    joules: float  # of all clients, to compute and to send
    probe_seconds: float  # part of the two above
    probe_joules: float
    allocation: Allocation | None  # of those in the cohort that had work left after the probe; None: none had


@dataclass(frozen=True, eq=False)
class ClientResults:
    """The r client results of a round, sorted by id so that results do not depend on the order of arrival."""

    ids: Ints  # (r,)
    update: Float32s  # (r, d) local - broadcast, always this sign
    # name -> (r,): num_examples, loss, label_entropy where asked for, measurements, draws where a `Cohort` has them;
    # where reports are weighed, also steps: `LocalSGD.moved_steps` of those that each client ran
    metrics: Mapping[str, Floats]
    label_counts: Floats | None = None  # (r, c) where asked for
    lost: Mapping[int, str] = field(default_factory=dict)  # client id -> why its reply does not count
    trainable: int | None = None  # p: the first p of the d numbers are trained, the rest are buffers; None: all d
    output_bias: int | None = None  # this many of the p, the last, are the output layer's bias; None: it has none
    steps: Ints | None = None  # (r,) local steps that each client ran; solvers with a memory need them
    note: Float32s | None = None  # (r, p) the second message, where the solver sends one: the change of its memory
    round: int = 1
    probe: bool = False  # whether these are answers to a probe
    secure_mean: Floats | None = None  # (d,) weighted mean from secure aggregation; then `update` is (r, 0)

    @property
    def trained(self) -> Float32s:
        """Trained part of the updates (r, p), without buffers."""
        return self.update[:, : self.trainable]

    def without(self, lost: Mapping[int, str]) -> ClientResults:
        """Return the results without those of some clients, given by id with the reason."""
        if not lost:
            return self
        return replace(self, lost={**self.lost, **lost}).only(~np.isin(self.ids, list(lost)))

    def only(self, chosen: Bools) -> ClientResults:
        """Return the results of the clients with a true (r,) flag; the same object if all flags are true."""
        return self if chosen.all() else self.at(chosen)

    def at(self, chosen: Bools | Ints) -> ClientResults:
        """Return the results of a subset of the clients, given flags or positions."""
        rows = ("ids", "update", "label_counts", "steps", "note")
        arrays = {name: values for name in rows if (values := getattr(self, name)) is not None}
        metrics = {name: values[chosen] for name, values in self.metrics.items()}
        return replace(self, metrics=metrics, **{name: values[chosen] for name, values in arrays.items()})


@dataclass(frozen=True, eq=False)
class LocalOutputs:
    """Outputs of a client's local model on its training data, in evaluation mode.

    The local model is the model after local training, before aggregation.
    """

    logits: Float32s  # (m, c)
    labels: AnyArray  # as the client sees them: (m,) classes, or (m, t) numbers
    before: Float32s | None = None  # (m, c) of the broadcast model, where a measurement asks for it


@dataclass(frozen=True, eq=False)
class Outputs:
    """Model outputs on m inputs of a client in evaluation mode, without labels: the input of adaptation."""

    logits: Floats  # (m, c)
    features: Floats | None = None  # (m, h) of the layer before the last; these and what follows where asked for
    inputs: Float32s | None = None  # (m, ...) as the model gets them
    again: Callable[[Float32s], Outputs] | None = None  # the same model on changed inputs, (m, ...)
    statistics: RunningStatistics | None = None  # of BatchNorm layers after convolutions, where there are any

    def arrays(self, prefix: str = "") -> dict[str, AnyArray]:
        """Return all arrays that are not None, by the name under which a client stores them."""
        named = {"logits": self.logits, "features": self.features, "inputs": self.inputs}
        return {f"{prefix}{name}": values for name, values in named.items() if values is not None}

    def at(self, places: Ints | slice) -> Outputs:
        """Return the outputs on the inputs at these positions, or in a slice."""
        selected: dict[str, Any] = {name: values[places] for name, values in self.arrays().items()}
        return replace(self, **selected)

    def after(self, kept: State, prefix: str = "") -> Outputs:
        """Return the outputs that a client stored under a prefix, followed by these outputs."""
        if f"{prefix}logits" not in kept:
            return self
        before = {name: kept[f"{prefix}{name}"] for name in self.arrays() if f"{prefix}{name}" in kept}
        joined: dict[str, Any] = {"features": None, "inputs": None}
        joined |= {name: np.concatenate([rows, self.arrays()[name]]) for name, rows in before.items()}
        return replace(self, **joined)


class RunningStatistics(Protocol):
    """Means and variances of all BatchNorm layers after convolutions, s numbers in total."""

    def refreshed(self, inputs: Float32s, strength: float) -> Float32s:
        """Return the (s,) statistics after m inputs (m, ...), without a change of the model.

        With w = m/(m + strength), each new mean and variance is w times the value over the layer's m inputs, plus (1 -
        w) times the old value. The inputs of a layer are computed with the new statistics of the layers before it.
        """
        ...

    def outputs(self, statistics: Float32s, inputs: Float32s) -> Outputs:
        """Return the outputs of the model on inputs when its layers use these (s,) statistics."""
        ...


@dataclass(frozen=True)
class RoundResult:
    """Result of a round, as stored in a row of the run folder."""

    cohort: tuple[int, ...]
    weights: tuple[float, ...]  # of the clients in `cohort` that replied, summing to 1; clusters renormalize theirs
    lost: Mapping[int, str]
    train_loss: float | None  # weighted mean of the clients' losses during training
    bytes_down: int
    bytes_up: int
    probe_bytes: int  # part of the two above
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # what the replies measured
    remark: str = ""  # of the selection policy
    by_server: bool = False  # whether the server trained on its own data and no client was asked
    cost: RoundCost | None = None  # seconds and joules, where the federation has a radio


class LocalUpdates(NamedTuple):
    """Result of local training, with rows in the order of the requested ids."""

    update: Float32s  # (k, d) local - broadcast
    loss: Floats  # (k,) mean training loss over all examples of all local steps
    steps: Ints  # (k,) local steps that each client ran
    trainable: int | None = None  # p: the first p of the d numbers are trained, the rest are buffers; None: all d
    finite: Bools | None = None  # (k,) whether all numbers of an update are finite; None: not checked

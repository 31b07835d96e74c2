"""What can be believed of what clients report: each figure has a range that no honest client leaves.

The ranges stand beside what is reported: `Range.of` a measurement or a loss, `possible` of label statistics and serving
rules, `LocalSGD.steps_of` and `furthest`. Here they are held against what one client says, given what it said before.
An app that trains by itself says less, and in its own way: of it, only what every app must know is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.federation import Federation
from fedreach.federation.labels import Exact
from fedreach.federation.labels.released import entropy_range
from fedreach.federation.protocols import KnowsPossibleLabels, KnowsPossibleSums
from fedreach.federation.ranges import NOT_NEGATIVE, SHARE, Range, is_part_of
from fedreach.federation.traits import name_of
from fedreach.federation.values import State
from fedreach.flower.facts import Facts
from fedreach.flower.messages import EXAMPLES, LARGEST, LOSS, STEPS, ReplyError, number, whole
from fedreach.models.flat import Layout


@dataclass(frozen=True, eq=False)
class Checks:
    """Holds figures of clients against what is possible; each method returns them, or raises a `ReplyError`.

    Args:
        federation: Whose parts state ranges.
        layout: Of the model.
        rounds: Length of the run, which schedules of the local rate refer to.
        classes: Of the whole federation; None: the server was not told, and there are at most as many as the model
            has numbers along an axis.
        sizes: (n,) examples of each client, where the server knows who holds what.
    """

    federation: Federation
    layout: Layout
    rounds: int
    classes: int | None = None
    sizes: Ints | None = None

    # ------------------------------------------------------------------------------------------ before round 1

    def examples(self, client: int, facts: Facts, before: Facts | None) -> None:
        """Refuse other numbers of examples than the client told when the run began, or than it can hold."""
        now = facts.num_examples, facts.num_held_out
        if before is not None and now != (before.num_examples, before.num_held_out):
            raise ReplyError(
                f"client {client} holds {_holds(facts)}, and said {_holds(before)} when the run began; other data need "
                "a run of their own"
            )
        if self.sizes is None:
            return
        if client >= len(self.sizes):
            raise ReplyError(f"there are clients 0 to {len(self.sizes) - 1}, and it says that it is client {client}")
        if facts.num_examples + (facts.num_held_out or 0) > self.sizes[client]:
            raise ReplyError(f"client {client} has {self.sizes[client]} examples, and it says {_holds(facts)}")

    def label_counts(self, counts: Floats, facts: Facts) -> tuple[float, ...]:
        """Return (c,) counts of labels as they are told."""
        wanted = "a list of numbers" if self.classes is None else f"{self.classes} numbers"
        if counts.ndim != 1 or not len(counts) or len(counts) != (self.classes or len(counts)):
            raise ReplyError(f"its label_counts must be {wanted}; got {counts.shape}")
        if not np.isfinite(counts).all() or (counts < 0).any() or (counts > LARGEST).any():
            raise ReplyError(f"its label_counts must be from 0 to {LARGEST}; got {_short(counts)}")
        statistics = self.federation.label_statistics
        # An app that trains by itself may tell them in a way of its own.
        if isinstance(statistics, KnowsPossibleLabels) and facts.trains_as_asked:
            self._possible(statistics, counts, facts)
        return tuple(map(float, counts))

    def _possible(self, statistics: KnowsPossibleLabels, counts: Floats, facts: Facts) -> None:
        if not statistics.possible(counts[None], np.array([facts.num_examples]))[0]:
            raise ReplyError(
                f"its label_counts cannot be those of {facts.num_examples} examples, as {name_of(statistics)} tells "
                f"them: {_short(counts)}"
            )

    def label_entropy(self, entropy: Floats, facts: Facts) -> float:
        """Return the entropy of a client's labels, in nats."""
        classes = self.classes or max((max(shape, default=1) for shape in self.layout.shapes), default=1)
        if facts.trains_as_asked and isinstance(self.federation.label_statistics, Exact) and facts.num_examples:
            classes = min(classes, facts.num_examples)
        wanted = entropy_range(classes)
        if entropy.shape != (1,) or not wanted.holds(entropy).all():
            raise ReplyError(f"its label_entropy must be one number, in nats, {wanted}; got {_short(entropy)}")
        return float(entropy[0])

    # ------------------------------------------------------------------------------------------------ a round

    def loss(self, metrics: Mapping[str, Any]) -> float:
        """Return a mean training loss."""
        return float(number(metrics, LOSS, Range.of(self.federation.loss)))

    def measured(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return what the parts have clients measure, by name."""
        wanted = self.federation.measurements()
        return {one.name: float(number(metrics, one.name, Range.of(one))) for one in wanted}

    def steps(self, metrics: Mapping[str, Any], facts: Facts, client: int, round_: int) -> int:
        """Return the local steps of a client, which are those that it was asked for."""
        federation, size = self.federation, np.array([facts.num_examples])
        (asked,) = federation.local.steps_of(size, np.array([client]), federation.seed, round_).tolist()
        if not self.federation.has_memory and (STEPS not in metrics or not facts.trains_as_asked):
            return int(asked)  # which nothing is worked out of
        steps = whole(metrics, STEPS, 1)
        if steps != asked:
            raise ReplyError(f"its {STEPS!r} must be {asked}, as it was asked for; got {steps}")
        return steps

    def num_examples(self, metrics: Mapping[str, Any], facts: Facts) -> int:
        """Return the number of examples, which is what the client said before."""
        count = whole(metrics, EXAMPLES, 1)
        if count != facts.num_examples:
            raise ReplyError(f"it says that it has {count} examples, but it said {facts.num_examples} before")
        return count

    def update(self, update: Float32s, start: Float32s, facts: Facts, steps: int, round_: int) -> Float32s:
        """Return the (d,) update of a client that trained from `start`, which clipped steps cannot carry further."""
        if facts.trains_as_asked:
            p, local = self.layout.num_trainable, self.federation.local
            size = float(np.linalg.norm(start[:p].astype(np.float64)))
            furthest = local.furthest(steps, local.rate_at(round_, self.rounds), size)
            norm = float(np.linalg.norm(update[:p].astype(np.float64)))
            if norm > furthest:
                raise ReplyError(
                    f"its update has the norm {norm:.6g}; {steps} steps with gradients clipped to {local.clip_norm:g} "
                    f"make {furthest:.6g} at most"
                )
        return update

    # ---------------------------------------------------------------------------------- evaluation and serving

    def accuracy(self, metrics: Mapping[str, Any], name: str, count: int, facts: Facts) -> float:
        """Return a share of so many examples, or of their labeled positions, that a model gets right."""
        accuracy = float(number(metrics, name, SHARE))
        # How many positions are labeled, clients do not tell.
        if facts.trains_as_asked and count and not facts.has_positions and not is_part_of(accuracy, count):
            raise ReplyError(f"its {name!r} must be a share of {count} examples; got {accuracy}")
        return accuracy

    def score(self, metrics: Mapping[str, Any], name: str) -> float:
        """Return a loss in nats, or what else is not negative."""
        return float(number(metrics, name, NOT_NEGATIVE))

    def contribution(self, query: State, sums: State, facts: Facts) -> None:
        """Refuse what no participant with these examples contributes to a serving rule."""
        if not self.are_contributions(query, sums, [facts]):
            raise ReplyError(f"its sums for {name_of(self.federation.serving)} cannot be those of {_holds(facts)}")

    def are_contributions(self, query: State, sums: State, facts: Sequence[Facts]) -> bool:
        """Return whether participants with these examples can contribute this in sum."""
        rule = self.federation.serving
        if not isinstance(rule, KnowsPossibleSums):
            return True
        try:
            held_out, trained = sum(one.num_held_out or 0 for one in facts), sum(one.num_examples for one in facts)
            return rule.possible(query, sums, held_out, trained)
        except (ValueError, IndexError, KeyError):  # of shapes that nobody expects
            return False


def _holds(facts: Facts) -> str:
    held_out = "" if facts.num_held_out is None else f" and {facts.num_held_out} held out"
    return f"{facts.num_examples} examples{held_out}"


def _short(values: Floats) -> str:
    return str(values.tolist())[:100]

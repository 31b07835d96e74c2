"""Who is asked to evaluate which model, and what their answers say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.evaluation import Scores
from fedreach.flower import messages
from fedreach.flower.local import Scores as Own

PARTS = {"held_out": ("num-examples", "eval"), "train": ("train-examples", "train"), "both": ("both-examples", "both")}


def own_scores(metrics: Mapping[str, object]) -> dict[str, Own]:
    """Return what a client's reply says of each part of its data; an app of its own tells of what it tests on only.

    Raises:
        ReplyError: If a number is missing, not finite or out of its range.
    """
    found = {}
    for part, (examples, name) in PARTS.items():
        if part != "held_out" and examples not in metrics:
            continue
        count = int(messages.number(metrics, examples, least=0, whole=True))
        accuracy = messages.number(metrics, f"{name}_acc", least=0)
        loss = messages.number(metrics, f"{name}_loss", least=0)
        if accuracy > 1:
            raise messages.ReplyError(f"its '{name}_acc' must be at most 1; got {accuracy}")
        found[part] = Own(count, float(accuracy), float(loss))
    return found | {"both": found.get("both", found["held_out"])}


def scores_of(answers: Mapping[int, Mapping[str, Own]], part: str) -> Scores:
    """Return the scores of all clients that have examples in a part of their data, ids increasing."""
    own = {client: parts[part] for client, parts in sorted(answers.items()) if part in parts and parts[part].examples}
    return Scores(
        ids=np.array(list(own), np.int64),
        examples=np.array([score.examples for score in own.values()], np.int64),
        accuracy=np.array([score.accuracy for score in own.values()]),
        loss=np.array([score.loss for score in own.values()]),
    )


@dataclass(frozen=True)
class Exam:
    """A model that a client is to evaluate."""

    client: int
    model: int


def exams(participants: Iterable[int], unseen: Iterable[int], clusters: Mapping[int, int], models: int) -> list[Exam]:
    """Return who evaluates what: participants the model of their cluster, those that never train all models."""
    own = [Exam(client, clusters[client]) for client in participants]
    return own + [Exam(client, model) for client in unseen for model in range(models)]


def mixed(answers: Sequence[Mapping[str, Own]], shares: Floats) -> dict[str, Own]:
    """Return the scores as if a client drew one of the models at random, with these probabilities."""
    first, result = answers[0], {}
    for part in first:
        accuracy = float(sum(share * answer[part].accuracy for share, answer in zip(shares, answers, strict=True)))
        loss = float(sum(share * answer[part].loss for share, answer in zip(shares, answers, strict=True)))
        result[part] = Own(first[part].examples, accuracy, loss)
    return result

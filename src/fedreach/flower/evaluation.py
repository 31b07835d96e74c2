"""Who is asked to evaluate which model, and what the answers say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import Message

from fedreach.arrays import Floats
from fedreach.engines.protocols import Engine
from fedreach.evaluation import Scores, Served, summarized
from fedreach.evidence.scores import ACCURACY, MAE
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.traits import Traits
from fedreach.flower import messages
from fedreach.flower.checks import Checks
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.facts import Facts
from fedreach.flower.local import PartScore
from fedreach.flower.messages import SHORT, ReplyError

LOG = getLogger("flwr")
PARTS = {"held_out": ("num-examples", "eval"), "train": ("train-examples", "train"), "both": ("both-examples", "both")}

PartScores = Mapping[str, PartScore]
"""What a client says of a model: on its ``train`` and ``held_out`` part, and on ``both``."""


@dataclass(frozen=True)
class EvaluationTask:
    """A model that a client is to evaluate."""

    client: int
    model: int


def evaluation_tasks(clients: Iterable[int], clusters: Mapping[int, int], models: int) -> list[EvaluationTask]:
    """Return who evaluates what: participants the model of their cluster, those that never train all models.

    Example:
        >>> evaluation_tasks([0, 5], {0: 1}, models=2)
        [EvaluationTask(client=0, model=1), EvaluationTask(client=5, model=0), EvaluationTask(client=5, model=1)]
    """
    every = range(models)
    return [EvaluationTask(c, model) for c in clients for model in ([clusters[c]] if c in clusters else every)]


def answered(
    replies: Iterable[Message],
    asked: Mapping[tuple[int, str], EvaluationTask],
    registry: ClientRegistry,
    run: str,
    round_: int,
) -> dict[EvaluationTask, PartScores]:
    """Return the scores that came; who sent nothing, or what cannot be, is logged and left out.

    `asked` maps a node and the group of its message to the task; each counts once.
    """
    found, waiting = dict[EvaluationTask, PartScores](), dict(asked)
    for reply in replies:
        task = waiting.pop((reply.metadata.src_node_id, reply.metadata.group_id), None)
        if task is None:
            continue
        client, facts = task.client, registry.known[task.client]
        try:
            metrics = messages.metrics_of(messages.content_of(reply))
            if facts.trains_as_asked:
                messages.check_question(reply, run, round_)
            found[task] = _part_scores(metrics, facts, registry.checks)
        except ReplyError as error:
            LOG.warning("Client %s did not evaluate: %s.", client, error)
            registry.blame(f"client {client}", error)
    return found


def _part_scores(metrics: Mapping[str, object], facts: Facts, checks: Checks) -> PartScores:
    """Return a client's scores; an app of its own tells of what it tests on only, and of both parts that."""
    found = {}
    for part, (examples, name) in PARTS.items():
        if part != "held_out" and facts.parts is None and examples not in metrics:
            continue
        count = messages.whole(metrics, examples)
        if facts.parts is not None and count != facts.parts[part]:
            raise ReplyError(f"its {examples!r} must be {facts.parts[part]}, as it said before; got {count}")
        loss = checks.score(metrics, f"{name}_loss")
        if Traits.of(checks.federation.loss).needs_numbers:
            found[part] = PartScore(count, checks.score(metrics, f"{name}_{SHORT[MAE.name]}"), loss, MAE)
        else:
            accuracy = checks.accuracy(metrics, f"{name}_{SHORT[ACCURACY.name]}", count, facts)
            found[part] = PartScore(count, accuracy, loss)
    return found | {"both": found.get("both", found["held_out"])}


def combined(
    scores: Mapping[EvaluationTask, PartScores], participants: Iterable[int], shares: Floats
) -> tuple[Scores, Scores, Scores]:
    """Return the scores of participants on what they held out, of the others, and of participants in training.

    Args:
        scores: What each client says of the model, or of each model, that it was sent.
        shares: (m,) of the participants that each model serves. One that never trains is scored as if it drew a
            participant's model at random, and not at all if an answer is missing.
    """
    taking_part, own, others = set(participants), dict[int, PartScores](), dict[int, list[PartScores]]()
    for task in sorted(scores, key=lambda task: (task.client, task.model)):
        if task.client in taking_part:
            own[task.client] = scores[task]
        else:
            others.setdefault(task.client, []).append(scores[task])
    unseen = {client: _mixed(said, shares) for client, said in others.items() if len(said) == len(shares)}
    return _scores(own, "held_out"), _scores(unseen, "both"), _scores(own, "train")


def _mixed(scores: Sequence[PartScores], shares: Floats) -> PartScores:
    both = [each["both"] for each in scores]
    mean = sum(share * score.score for share, score in zip(shares.tolist(), both, strict=True))
    loss = sum(share * score.loss for share, score in zip(shares.tolist(), both, strict=True))
    return {"both": PartScore(both[0].examples, mean, loss, both[0].by)}


def _scores(scores: Mapping[int, PartScores], part: str) -> Scores:
    """Return the scores of all clients that have examples in a part of their data, ids increasing."""
    own = {client: said[part] for client, said in scores.items() if part in said and said[part].examples}
    return Scores(
        ids=np.array(list(own), np.int64),
        examples=np.array([score.examples for score in own.values()], np.int64),
        score=np.array([score.score for score in own.values()]),
        loss=np.array([score.loss for score in own.values()]),
        by=next((score.by for score in own.values()), ACCURACY),
    )


def evaluation(
    federation: Federation,
    state: FederationState,
    participants: Sequence[int],
    scores: Mapping[EvaluationTask, PartScores],
    engine: Engine | None,
) -> tuple[dict[str, float], list[dict[str, Any]]] | None:
    """Return the columns of a round and the lines about single clients; None where nobody evaluated.

    The state is that after the round; the server's own engine predicts the test set where it has one.
    """
    models, test = state.served(federation), None
    shares = np.bincount(state.clusters, minlength=len(models)) / len(state.clusters)
    if engine is not None and len(engine.task.data.dataset.test_y):
        index = np.arange(len(engine.task.data.dataset.test_y))
        served = Served.of(models, state.clusters, np.array(participants, np.int64))
        right, loss = served.predict(engine, "test", index, None)
        test = float(right.mean(dtype=np.float64)), float(loss.mean(dtype=np.float64))
    columns, lines = summarized(state.round, *combined(scores, participants, shares), test)
    return (columns, lines) if columns else None

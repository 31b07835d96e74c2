"""Who is asked to evaluate which model, and what the answers say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import Message

from fedreach.arrays import Floats
from fedreach.data.positions import position_counts
from fedreach.engines.protocols import Engine
from fedreach.evaluation import Scores, Served, summarized
from fedreach.evaluation.evaluator import mean_of
from fedreach.evaluation.further import SaidOfClients, Values, further_columns, in_a_line
from fedreach.evaluation.metrics import Metric
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
    metrics: Sequence[Metric] = (),
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
            numbers = messages.metrics_of(messages.content_of(reply))
            if facts.trains_as_asked:
                messages.check_question(reply, run, round_)
            found[task] = _part_scores(numbers, facts, registry.checks, [metric.name for metric in metrics])
        except ReplyError as error:
            LOG.warning("Client %s did not evaluate: %s.", client, error)
            registry.blame(f"client {client}", error)
    return found


def _part_scores(metrics: Mapping[str, object], facts: Facts, checks: Checks, further: Sequence[str]) -> PartScores:
    """Return a client's scores; an app of its own tells of what it tests on only, and of both parts that."""
    found = {}
    for part, (examples, name) in PARTS.items():
        if part != "held_out" and facts.parts is None and examples not in metrics:
            continue
        count = messages.whole(metrics, examples)
        if facts.parts is not None and count != facts.parts[part]:
            raise ReplyError(f"its {examples!r} must be {facts.parts[part]}, as it said before; got {count}")
        loss = checks.score(metrics, f"{name}_loss")
        names = [one for one in further if f"{name}_{one}" in metrics]  # of the others it is not defined
        others = {one: messages.number(metrics, f"{name}_{one}") for one in names}
        if Traits.of(checks.federation.loss).needs_numbers:
            found[part] = PartScore(count, checks.score(metrics, f"{name}_{SHORT[MAE.name]}"), loss, MAE, others)
        else:
            accuracy = checks.accuracy(metrics, f"{name}_{SHORT[ACCURACY.name]}", count, facts)
            found[part] = PartScore(count, accuracy, loss, further=others)
    return found | {"both": found.get("both", found["held_out"])}


def by_population(
    scores: Mapping[EvaluationTask, PartScores], participants: Iterable[int], shares: Floats
) -> tuple[dict[int, PartScores], dict[int, PartScores]]:
    """Return what is said of participants, and of those that never train.

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
    return own, unseen


def _mixed(scores: Sequence[PartScores], shares: Floats) -> PartScores:
    both = [each["both"] for each in scores]
    mean = sum(share * score.score for share, score in zip(shares.tolist(), both, strict=True))
    loss = sum(share * score.loss for share, score in zip(shares.tolist(), both, strict=True))
    names = set.intersection(*(set(score.further) for score in both))
    pairs = [*zip(shares.tolist(), both, strict=True)]
    further = {name: sum(share * score.further[name] for share, score in pairs) for name in sorted(names)}
    return {"both": PartScore(both[0].examples, mean, loss, both[0].by, further)}


def _of_part(scores: Mapping[int, PartScores], part: str) -> dict[int, PartScore]:
    """Return the scores of all clients that have examples in a part of their data, ids increasing."""
    return {client: said[part] for client, said in scores.items() if part in said and said[part].examples}


def _further(own: Mapping[int, PartScore], metrics: Sequence[Metric]) -> Values:
    """Return each metric of clients, nan where it is not defined or was not told."""
    return {one.name: np.array([score.further.get(one.name, np.nan) for score in own.values()]) for one in metrics}


def _scores(own: Mapping[int, PartScore]) -> Scores:
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
    metrics: Sequence[Metric] = (),
    training: bool = True,
) -> tuple[dict[str, float], list[dict[str, Any]]] | None:
    """Return the columns of a round and the lines about single clients; None where nobody evaluated.

    The state is that after the round; the server's own engine predicts the test set where it has one.
    """
    models, test = state.served(federation), None
    further: dict[str, float] = {}
    shares = np.bincount(state.clusters, minlength=len(models)) / len(state.clusters)
    if engine is not None and len(engine.task.data.dataset.test_y):
        index = np.arange(len(engine.task.data.dataset.test_y))
        served = Served.of(models, state.clusters, np.array(participants, np.int64))
        right, loss = served.predict(engine, "test", index, None)
        d = engine.task.data.dataset
        counts = position_counts(d.test_y) if d.positions else None
        test = mean_of(right, counts), mean_of(loss, counts)
        said = served.logits(engine, "test", index, None) if metrics else []
        answers = SaidOfClients.of(d.test_y, said, np.array([len(index)]))
        for metric in metrics:
            further |= further_columns(f"test_{metric.name}", metric, answers.of_clients(metric), None)
    own, others = by_population(scores, participants, shares)
    parts = {"id": _of_part(own, "held_out"), "unseen": _of_part(others, "both")}
    others_scored = parts["id"] or parts["unseen"] or test is not None
    trained = _scores(_of_part(own, "train") if training or not others_scored else {})
    columns, lines = summarized(state.round, _scores(parts["id"]), _scores(parts["unseen"]), trained, test)
    values = {name: _further(part, metrics) for name, part in parts.items()}
    for name, of_clients in values.items():
        for metric in metrics if parts[name] else ():
            further |= further_columns(f"{name}_{metric.name}", metric, of_clients[metric.name], np.nan)
    names = {"participants": "id", "unseen": "unseen"}
    lines = [line | in_a_line(values[names[line["population"]]]) for line in lines]
    return (columns | further, lines) if columns else None

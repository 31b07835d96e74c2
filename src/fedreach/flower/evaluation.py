"""Evaluation by Flower's clients."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message

from fedreach._util.arrays import Floats
from fedreach.data.several import position_counts
from fedreach.engines.protocols import Engine
from fedreach.evaluation.evaluator import ClientModels, Scores, mean_of, summarize_round
from fedreach.evaluation.metrics import ClientOutputs, Metric, columns_of_metric, metrics_record
from fedreach.evaluation.scores import ACCURACY, MAE
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.flower import messages
from fedreach.flower.clients import ClientModel, ClientRegistry
from fedreach.flower.messages import PARTS, SHORT_NAMES

PartScores = Mapping[str, Mapping[str, float]]
"""Part of a client's data (``train``, ``held_out``, ``both``) -> examples, score, loss and metrics of a model."""


def evaluation_tasks(clients: Iterable[int], clusters: Mapping[int, int], models: int) -> list[ClientModel]:
    """Return the evaluation tasks: participants evaluate the model of their cluster, and unseen clients all models.

    Example:
        >>> evaluation_tasks([0, 5], {0: 1}, models=2)
        [ClientModel(client=0, model=1), ClientModel(client=5, model=0), ClientModel(client=5, model=1)]
    """
    every = range(models)
    return [ClientModel(c, model) for c in clients for model in ([clusters[c]] if c in clusters else every)]


def read_evaluations(
    replies: Iterable[Message],
    tasks: Iterable[ClientModel],
    registry: ClientRegistry,
    round_: int,
    metrics: Sequence[Metric] = (),
) -> dict[ClientModel, PartScores]:
    """Return the scores of clients; log and skip clients that sent no scores or wrong scores."""
    reader = partial(_read_part_scores, registry, round_, [metric.name for metric in metrics])
    return registry.read(replies, tasks, reader, "did not evaluate")[0]


def _read_part_scores(
    registry: ClientRegistry, round_: int, metric_names: Sequence[str], task: ClientModel, reply: Message
) -> PartScores:
    """Return the scores of a client; those of a custom app on held-out data count for both parts."""
    numbers, facts, scores = messages.metrics_of(reply), registry.known[task.client], dict[str, dict[str, float]]()
    if facts.trains_as_asked:
        messages.check_question(reply, registry.run, round_)
    main = SHORT_NAMES[_main_score(registry.federation).name]
    for part, (examples, name) in PARTS.items():
        if part != "held_out" and not facts.parts and examples not in numbers:
            continue
        count = messages.whole_number(numbers, examples)
        values: dict[str, float] = {"examples": messages.same_count(numbers, examples, facts.parts.get(part, count))}
        values |= {"score": messages.number(numbers, f"{name}_{main}")}
        values |= {"loss": messages.number(numbers, f"{name}_loss")}
        reported = [metric for metric in metric_names if f"{name}_{metric}" in numbers]  # the others are undefined
        scores[part] = values | {metric: messages.number(numbers, f"{name}_{metric}") for metric in reported}
    return scores | {"both": scores.get("both", scores["held_out"])}


def _main_score(federation: Federation) -> Any:
    return MAE if federation.loss.declares("needs_numbers") else ACCURACY


def by_population(
    scores: Mapping[ClientModel, PartScores], participants: Iterable[int], shares: Floats
) -> tuple[dict[int, PartScores], dict[int, PartScores]]:
    """Return the scores of participants and of unseen clients.

    Args:
        scores: Scores of each client for each model that it evaluated.
        shares: (m,) share of the participants that use each model. The score of an unseen client is the expected score
            with the model of a random participant. Unseen clients with a missing reply are skipped.
    """
    taking_part, of_participants = set(participants), dict[int, PartScores]()
    unseen: dict[int, list[Mapping[str, float]]] = {}
    for task in sorted(scores):
        if task.client in taking_part:
            of_participants[task.client] = scores[task]
        else:
            unseen.setdefault(task.client, []).append(scores[task]["both"])
    mixed: dict[int, PartScores] = {}
    for client, of_models in unseen.items():
        if len(of_models) == len(shares):
            pairs = [*zip(shares.tolist(), of_models, strict=True)]
            names = [name for name in of_models[0] if name != "examples" and all(name in part for part in of_models)]
            means = {name: sum(share * part[name] for share, part in pairs) for name in names}
            mixed[client] = {"both": {"examples": of_models[0]["examples"], **means}}
    return of_participants, mixed


def evaluation(
    federation: Federation,
    state: FederationState,
    participants: Sequence[int],
    scores: Mapping[ClientModel, PartScores],
    engine: Engine | None,
    metrics: Sequence[Metric] = (),
    training: bool = True,
) -> tuple[dict[str, float], list[dict[str, Any]]] | None:
    """Return the columns of a round and the lines about single clients; None if no client evaluated a model.

    `state` is the state after the round. The engine makes predictions for the server's test set, if one is given.
    """
    models, test = state.adapted(federation), None
    metric_columns: dict[str, float] = {}
    shares = np.bincount(state.clusters, minlength=len(models)) / len(state.clusters)
    if engine is not None and len(engine.task.data.dataset.test_y):
        d = engine.task.data.dataset
        index = np.arange(len(d.test_y))
        adapted = ClientModels.of(models, state.clusters, np.array(participants, np.int64))
        right, loss = adapted.predict(engine, "test", index, None)
        counts = position_counts(d.test_y) if d.positions else None
        test = mean_of(right, counts), mean_of(loss, counts)
        logits = adapted.logits(engine, "test", index, None) if metrics else []
        answers = ClientOutputs.of(d.test_y, logits, np.array([len(index)]))
        for metric in metrics:
            metric_columns |= columns_of_metric(f"test_{metric.name}", metric, answers.of_clients(metric), None)
    of_participants, of_unseen = by_population(scores, participants, shares)

    def select(population: Mapping[int, PartScores], part: str) -> dict[int, Mapping[str, float]]:
        """Return the scores of clients that have examples in a part of their data, ids increasing."""
        parts = {client: scored[part] for client, scored in population.items() if part in scored}
        return {client: scored for client, scored in parts.items() if scored["examples"]}

    parts = {"participants": select(of_participants, "held_out"), "unseen": select(of_unseen, "both")}
    is_alone = not (parts["participants"] or parts["unseen"] or test is not None)
    train = select(of_participants, "train") if training or is_alone else {}

    def scores_of(part: Mapping[int, Mapping[str, float]]) -> Scores:
        return Scores(
            ids=np.array(list(part), np.int64),
            examples=np.array([scored["examples"] for scored in part.values()], np.int64),
            score=np.array([scored["score"] for scored in part.values()]),
            loss=np.array([scored["loss"] for scored in part.values()]),
            by=_main_score(federation),
        )

    columns, lines = summarize_round(
        state.round, scores_of(parts["participants"]), scores_of(parts["unseen"]), scores_of(train), test
    )
    values = {
        population: {
            metric.name: np.array([scored.get(metric.name, np.nan) for scored in parts[population].values()])
            for metric in metrics
        }
        for population in ("participants", "unseen")
    }
    for population, name in (("participants", "participant"), ("unseen", "unseen")):
        for metric in metrics if parts[population] else ():
            of_clients = values[population][metric.name]
            metric_columns |= columns_of_metric(f"{name}_{metric.name}", metric, of_clients, np.nan)
    lines = [line | metrics_record(values[line["population"]]) for line in lines]
    return (columns | metric_columns, lines) if columns else None

"""Training and evaluation on Flower's clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedreach._util.arrays import AnyArray, Floats
from fedreach._util.errors import TrainingError
from fedreach.data.several import position_counts
from fedreach.engines.protocols import Engine
from fedreach.evaluation.evaluator import ClientModels, Scores, mean_of, summarize_round
from fedreach.evaluation.metrics import ClientOutputs, Metric, Values, columns_of_metric, metrics_record
from fedreach.evaluation.modes import folds
from fedreach.evaluation.scores import ACCURACY, MAE
from fedreach.federation.adaptation.fitting import UNFITTED, FittedRule, after_exchange, next_query, plain_sum
from fedreach.federation.base import name_of
from fedreach.federation.federation import Federation
from fedreach.federation.secure_aggregation import LARGEST_EXACT, sum_of_limbs
from fedreach.federation.state import FederationState
from fedreach.federation.types import State
from fedreach.flower import messages
from fedreach.flower.agreement import Checks, ClientStatistics
from fedreach.flower.clients import ClientRegistry, replies_by_node, reply_of
from fedreach.flower.local import PartScore
from fedreach.flower.messages import (
    EXAMPLES,
    EXCHANGE,
    FEDREACH,
    FITS,
    KEYS,
    MODEL,
    RUN,
    SESSION,
    SHORT_NAMES,
    ReplyError,
)

# ---- Fitting an adaptation rule by messages
# Queries go to clients and sums come back until the rule is fitted. The participants are fixed at the start: those
# that are available and have held-out examples. The same messages carry cross-fits, which score participants. If a
# participant fails to reply, all fits restart without it, so each is bit for bit the fit of those that stayed.

LOG = getLogger("flwr")
Answers = dict[int, dict[str, AnyArray]]
"""Fit -> contribution of a participant."""


class RuleFit(NamedTuple):
    """The fitted rule of a model, and the cross-fitted rules that score participants."""

    fitted: FittedRule
    without: Mapping[int, State]  # participant -> state of the rule that others fitted


class Exchange(NamedTuple):
    """One exchange of several fits."""

    session: str
    number: int
    sets: Sequence[Sequence[int]]  # participants of each fit
    queries: Mapping[int, State]  # fit -> query of its rule; a finished fit has none


@dataclass(eq=False)
class RemoteFit:
    """Fits the adaptation rule of the federation.

    Args:
        federation: Federation with the rule.
        registry: Clients and their nodes.
        run: Name of the run, for masks.
        grid: Flower's grid, which carries the messages.
    """

    federation: Federation
    registry: ClientRegistry
    run: str
    grid: Grid
    nodes: Mapping[int, int] = field(default_factory=dict, init=False)  # participant -> node at the start
    held_out: dict[int, int] = field(default_factory=dict, init=False)  # participant -> its number of held-out examples

    def holding_out(self, participants: Sequence[int]) -> list[int]:
        """Return the available participants that have held-out examples and send sums over them."""
        nodes, contributors = self.registry.nodes_of(participants), []
        self.nodes = nodes
        sent = [Message(RecordDict(), node, "query.adaptation", ttl=self.registry.timeout) for node in nodes.values()]
        replies = replies_by_node(self.grid, sent, self.registry.timeout)
        for client, node in nodes.items():
            try:
                metrics = messages.metrics_of(reply_of(replies, node, self.registry.timeout))
                count, known_count = messages.whole_number(metrics, EXAMPLES), self.registry.known[client].num_held_out
                if count != known_count:
                    raise ReplyError(f"it says that it holds {count} examples out, but it said {known_count} before")
                if count:
                    self.held_out[client] = count
                    contributors.append(client)
            except ReplyError as error:
                self.registry.blame(f"client {client}", error)
                LOG.warning("Client %s does not help to fit the adaptation rule: %s.", client, error)
        return contributors

    def fitted(self, record: ArrayRecord, members: Sequence[int], *, cross: bool) -> RuleFit:
        """Fit the rule on these participants; all sums exclude one that leaves.

        Args:
            record: The model.
            members: Participants that contribute, ids increasing.
            cross: Also fit the rule without each fold of the participants, to score them.

        Raises:
            TrainingError: If no participant is left; with secure aggregation, if only one is left.
        """
        contributors, departed = list(members), dict[int, int]()
        hidden = self._hides
        while True:
            if len(contributors) < (messages.MIN_CLIENTS if hidden else 1):
                departures = f", and clients {sorted(departed)} left in the midst" if departed else ""
                raise TrainingError(
                    f"{name_of(self.federation.adaptation)} cannot be fitted: {len(contributors)} participants that "
                    f"hold examples out are left{departures}. Start clients again, and then the run, in the same "
                    "folder: nothing is trained anew."
                )
            parts = folds(contributors) if cross else []
            if hidden and any(len(part) < messages.MIN_CLIENTS for part in parts):
                LOG.warning("Participants are not adapted themselves: a sum without one of them would show its part.")
                parts = []
            fits, lost, exchange = self._attempt(
                record, [contributors, *([c for c in contributors if c not in p] for p in parts)]
            )
            if not lost:
                break
            for client, reason in lost.items():
                LOG.warning(
                    "Client %s left in exchange %s of fitting the adaptation rule, which begins anew without it: %s.",
                    *(client, exchange, reason),
                )
            departed |= dict.fromkeys(lost, exchange)
            contributors = [client for client in contributors if client not in lost]
        without = {client: fit.state for part, fit in zip(parts, fits[1:], strict=True) for client in part}
        return RuleFit(fits[0]._replace(left=departed), without)

    def _attempt(
        self, record: ArrayRecord, sets: Sequence[Sequence[int]]
    ) -> tuple[list[FittedRule], Mapping[int, str], int]:
        """Return the fit of each set; or the participants that did not reply, the reasons, and the exchange."""
        fits, session, number = [UNFITTED] * len(sets), uuid4().hex, 0
        while True:
            next_queries = {fit: next_query(self.federation.adaptation, fitted) for fit, fitted in enumerate(fits)}
            queries = {fit: query for fit, query in next_queries.items() if query is not None}
            if not queries:
                return fits, {}, number
            number += 1
            answers, lost = self._exchange(record, Exchange(session, number, sets, queries))
            if lost:
                return fits, lost, number
            template = "Fitting %s, exchange %s: %s participants answered."
            LOG.info(template, name_of(self.federation.adaptation), number, len(answers))
            for fit, query in queries.items():
                sums = self._sum_answers([answers[client][fit] for client in sets[fit]])
                fits[fit] = after_exchange(self.federation.adaptation, fits[fit], query, sums)

    def _exchange(self, record: ArrayRecord, exchange: Exchange) -> tuple[dict[int, Answers], dict[int, str]]:
        """Return the answers, client -> fit -> arrays, and the reasons of missing ones."""
        fits_by_client = {c: [fit for fit in exchange.queries if c in exchange.sets[fit]] for c in exchange.sets[0]}
        fits_by_client = {client: fits for client, fits in fits_by_client.items() if fits}
        online = set(self.grid.get_node_ids())  # of the participants at the start
        nodes = {client: self.nodes[client] for client in fits_by_client if self.nodes[client] in online}
        sent = [self._question(record, exchange, fits_by_client[client], node) for client, node in nodes.items()]
        replies = replies_by_node(self.grid, sent, self.registry.timeout)
        answers: dict[int, Answers] = {}
        lost = dict.fromkeys((client for client in fits_by_client if client not in nodes), "it is not there any more")
        for client, node in nodes.items():
            try:
                reply = reply_of(replies, node, self.registry.timeout)
                answers[client] = {
                    fit: self._read_arrays(reply, messages.sums_name(fit)) for fit in fits_by_client[client]
                }
            except ReplyError as error:
                lost[client] = str(error)
        for fit in exchange.queries:
            fit_answers = {client: answer[fit] for client, answer in answers.items() if fit in answer}
            lost |= _find_odd_shapes(fit_answers)
        for client, reason in lost.items():
            if client in answers:
                self.registry.blame(f"client {client}", ReplyError(reason))
        return answers, lost

    @property
    def _hides(self) -> bool:
        return self.federation.label_statistics.only_sum

    def _question(self, record: ArrayRecord, exchange: Exchange, fits: Sequence[int], node: int) -> Message:
        request = ConfigRecord({SESSION: exchange.session, EXCHANGE: exchange.number, FITS: list(fits)})
        request[RUN] = self.run
        content = RecordDict({MODEL: record, FEDREACH: request})
        for fit in fits:
            content[messages.query_name(fit)] = messages.array_record(exchange.queries[fit])
            if self._hides:
                request[messages.members_name(fit)] = list(exchange.sets[fit])
        if self._hides:
            content[KEYS] = self.registry.keys(exchange.sets[0])
        return Message(content, node, "query.adaptation", ttl=self.registry.timeout)

    def _read_arrays(self, reply: Message, name: str) -> dict[str, AnyArray]:
        record, kind = messages.arrays(reply, name), self._kind
        named_arrays = {key: messages.array(record, key, None, kind) for key in record}
        for key, values in named_arrays.items():
            if kind is np.float64 and (largest := float(np.abs(values).max(initial=0))) > LARGEST_EXACT:
                raise ReplyError(f"its {key!r} holds numbers up to {largest:.3g}")
            if kind is np.uint64 and (not values.ndim or len(values) != 4):
                raise ReplyError(f"its {key!r} must be four words a number; got {values.shape}")
        return named_arrays

    @property
    def _kind(self) -> type:
        return np.uint64 if self._hides else np.float64

    def _sum_answers(self, answers: Sequence[Mapping[str, AnyArray]]) -> dict[str, Floats]:
        """Return the sums of the participants' answers by name, in the order of their ids."""
        columns = {name: [answer[name] for answer in answers] for name in answers[0]}
        if self._hides:  # words wrap around
            return {name: sum_of_limbs(np.sum(words, axis=0), len(words)) for name, words in columns.items()}
        return {name: plain_sum(parts) for name, parts in columns.items()}


def _find_odd_shapes(answers: Mapping[int, Mapping[str, AnyArray]]) -> dict[int, str]:
    """Return the clients whose arrays differ from most in names or shapes, and the reasons."""
    shapes = {c: {name: values.shape for name, values in sorted(answer.items())} for c, answer in answers.items()}
    usual = max(shapes.values(), key=[*shapes.values()].count, default={})
    return {c: f"it sent {shape}, and most clients {usual}" for c, shape in shapes.items() if shape != usual}


# ---- Evaluation by clients

PARTS = {"held_out": ("num-examples", "eval"), "train": ("train-examples", "train"), "both": ("both-examples", "both")}

PartScores = Mapping[str, PartScore]
"""Scores of a model on the ``train`` and ``held_out`` part of a client's data, and on ``both``."""


@dataclass(frozen=True)
class EvaluationTask:
    """A model for a client to evaluate."""

    client: int
    model: int


def evaluation_tasks(clients: Iterable[int], clusters: Mapping[int, int], models: int) -> list[EvaluationTask]:
    """Return the evaluations: participants evaluate the model of their cluster, unseen clients all models.

    Example:
        >>> evaluation_tasks([0, 5], {0: 1}, models=2)
        [EvaluationTask(client=0, model=1), EvaluationTask(client=5, model=0), EvaluationTask(client=5, model=1)]
    """
    every = range(models)
    return [EvaluationTask(c, model) for c in clients for model in ([clusters[c]] if c in clusters else every)]


def read_evaluations(
    replies: Iterable[Message],
    tasks: Mapping[tuple[int, str], EvaluationTask],
    registry: ClientRegistry,
    run: str,
    round_: int,
    metrics: Sequence[Metric] = (),
) -> dict[EvaluationTask, PartScores]:
    """Return the scores of clients; log and leave out clients that sent none or impossible ones.

    `tasks` maps a node and the group of its message to the task; each task counts once.
    """
    scores, waiting = dict[EvaluationTask, PartScores](), dict(tasks)
    for reply in replies:
        task = waiting.pop((reply.metadata.src_node_id, reply.metadata.group_id), None)
        if task is None:
            continue
        client, facts = task.client, registry.known[task.client]
        try:
            numbers = messages.metrics_of(messages.content_of(reply))
            if facts.trains_as_asked:
                messages.check_question(reply, run, round_)
            scores[task] = _read_part_scores(numbers, facts, registry.checks, [metric.name for metric in metrics])
        except ReplyError as error:
            LOG.warning("Client %s did not evaluate: %s.", client, error)
            registry.blame(f"client {client}", error)
    return scores


def _read_part_scores(
    metrics: Mapping[str, object], facts: ClientStatistics, checks: Checks, metric_names: Sequence[str]
) -> PartScores:
    """Return the scores of a client; those of a custom app on held-out data count for both parts."""
    scores = {}
    for part, (examples, name) in PARTS.items():
        if part != "held_out" and facts.parts is None and examples not in metrics:
            continue
        count = messages.whole_number(metrics, examples)
        if facts.parts is not None and count != facts.parts[part]:
            raise ReplyError(f"its {examples!r} must be {facts.parts[part]}, as it said before; got {count}")
        loss = checks.score(metrics, f"{name}_loss")
        names = [metric for metric in metric_names if f"{name}_{metric}" in metrics]  # the others are undefined
        metric_values = {metric: messages.number(metrics, f"{name}_{metric}") for metric in names}
        if checks.federation.loss.declares("needs_numbers"):
            scores[part] = PartScore(
                count, checks.score(metrics, f"{name}_{SHORT_NAMES[MAE.name]}"), loss, MAE, metric_values
            )
        else:
            accuracy = checks.accuracy(metrics, f"{name}_{SHORT_NAMES[ACCURACY.name]}", count, facts)
            scores[part] = PartScore(count, accuracy, loss, further=metric_values)
    return scores | {"both": scores.get("both", scores["held_out"])}


def by_population(
    scores: Mapping[EvaluationTask, PartScores], participants: Iterable[int], shares: Floats
) -> tuple[dict[int, PartScores], dict[int, PartScores]]:
    """Return the scores of participants and of unseen clients.

    Args:
        scores: Scores of each client for each model that it evaluated.
        shares: (m,) share of the participants that use each model. An unseen client is scored as if it drew the model
            of a random participant, and left out if a reply is missing.
    """
    taking_part, participant_scores = set(participants), dict[int, PartScores]()
    unseen_scores: dict[int, list[PartScores]] = {}
    for task in sorted(scores, key=lambda task: (task.client, task.model)):
        if task.client in taking_part:
            participant_scores[task.client] = scores[task]
        else:
            unseen_scores.setdefault(task.client, []).append(scores[task])
    unseen = {
        client: _mix_scores(model_scores, shares)
        for client, model_scores in unseen_scores.items()
        if len(model_scores) == len(shares)
    }
    return participant_scores, unseen


def _mix_scores(scores: Sequence[PartScores], shares: Floats) -> PartScores:
    both_scores = [part_scores["both"] for part_scores in scores]
    mean = sum(share * score.score for share, score in zip(shares.tolist(), both_scores, strict=True))
    loss = sum(share * score.loss for share, score in zip(shares.tolist(), both_scores, strict=True))
    names = set.intersection(*(set(score.further) for score in both_scores))
    pairs = [*zip(shares.tolist(), both_scores, strict=True)]
    metric_means = {name: sum(share * score.further[name] for share, score in pairs) for name in sorted(names)}
    return {"both": PartScore(both_scores[0].examples, mean, loss, both_scores[0].by, metric_means)}


def _select_part(scores: Mapping[int, PartScores], part: str) -> dict[int, PartScore]:
    """Return the scores of clients that have examples in a part of their data, ids increasing."""
    return {
        client: part_scores[part]
        for client, part_scores in scores.items()
        if part in part_scores and part_scores[part].examples
    }


def _metric_values(scores: Mapping[int, PartScore], metrics: Sequence[Metric]) -> Values:
    """Return each metric of clients, nan if it is undefined or was not reported."""
    return {
        metric.name: np.array([score.further.get(metric.name, np.nan) for score in scores.values()])
        for metric in metrics
    }


def _to_scores(scores: Mapping[int, PartScore]) -> Scores:
    return Scores(
        ids=np.array(list(scores), np.int64),
        examples=np.array([score.examples for score in scores.values()], np.int64),
        score=np.array([score.score for score in scores.values()]),
        loss=np.array([score.loss for score in scores.values()]),
        by=next((score.by for score in scores.values()), ACCURACY),
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
    """Return the columns of a round and the lines about single clients; None if no client evaluated.

    `state` is the state after the round. The engine predicts the server's test set, if there is one.
    """
    models, test = state.adapted(federation), None
    metric_columns: dict[str, float] = {}
    shares = np.bincount(state.clusters, minlength=len(models)) / len(state.clusters)
    if engine is not None and len(engine.task.data.dataset.test_y):
        index = np.arange(len(engine.task.data.dataset.test_y))
        adapted = ClientModels.of(models, state.clusters, np.array(participants, np.int64))
        right, loss = adapted.predict(engine, "test", index, None)
        d = engine.task.data.dataset
        counts = position_counts(d.test_y) if d.positions else None
        test = mean_of(right, counts), mean_of(loss, counts)
        logits = adapted.logits(engine, "test", index, None) if metrics else []
        answers = ClientOutputs.of(d.test_y, logits, np.array([len(index)]))
        for metric in metrics:
            metric_columns |= columns_of_metric(f"test_{metric.name}", metric, answers.of_clients(metric), None)
    participant_scores, unseen_scores = by_population(scores, participants, shares)
    parts = {"participant": _select_part(participant_scores, "held_out"), "unseen": _select_part(unseen_scores, "both")}
    others_scored = parts["participant"] or parts["unseen"] or test is not None
    trained = _to_scores(_select_part(participant_scores, "train") if training or not others_scored else {})
    columns, lines = summarize_round(
        state.round, _to_scores(parts["participant"]), _to_scores(parts["unseen"]), trained, test
    )
    values = {name: _metric_values(part, metrics) for name, part in parts.items()}
    for name, of_clients in values.items():
        for metric in metrics if parts[name] else ():
            metric_columns |= columns_of_metric(f"{name}_{metric.name}", metric, of_clients[metric.name], np.nan)
    names = {"participants": "participant", "unseen": "unseen"}
    lines = [line | metrics_record(values[names[line["population"]]]) for line in lines]
    return (columns | metric_columns, lines) if columns else None

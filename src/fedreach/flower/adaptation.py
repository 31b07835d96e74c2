"""Adaptation on Flower."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import TrainingError
from fedreach.engines.protocols import Engine
from fedreach.evaluation.modes import (
    DECISIONS,
    AdaptationScores,
    Client,
    Score,
    adapt_and_score,
    mode_names,
    scored_count,
    tabulate_scores,
)
from fedreach.federation.adaptation.fitting import FittedRule
from fedreach.federation.base import Adaptation
from fedreach.federation.costs import fitting_cost
from fedreach.federation.federation import Federation
from fedreach.federation.secure_aggregation import Words, limbs
from fedreach.federation.types import State
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry, send_and_wait
from fedreach.flower.fitting import RemoteFit, RuleFit
from fedreach.flower.local import LocalClient
from fedreach.flower.messages import (
    EXCHANGE,
    FEDREACH,
    FITS,
    INPUTS,
    KEYS,
    MODEL,
    ONLINE,
    PART,
    RUN,
    SESSION,
    STATE,
    ReplyError,
)
from fedreach.flower.rounds import Outgoing
from fedreach.runs.adaptation import adaptation_table, write_adaptation
from fedreach.runs.folder import RunFolder

# ---- The server's side of adaptation
# Every client adapts by itself and sends metrics. An unseen client sends nothing else.

LOG = getLogger("flwr")
ScoresByPopulation = dict[str, list[tuple[float, AdaptationScores]]]


class AdaptationTask(NamedTuple):
    """A client that adapts a model."""

    client: int
    model: int
    part: str
    state: State


@dataclass(eq=False)
class RemoteAdaptation:
    """Fits the adaptation rule on participants and adapts models to all clients; see `fedreach.evaluation.modes`.

    Args:
        federation: Federation with the adaptation rule.
        registry: Clients and their nodes.
        outgoing: Writer of messages with models.
        grid: Flower's grid, which carries the messages.
        engine: Engine of the server for its test set; None without a test set.
        inputs: Numbers of inputs that clients also adapt with.
    """

    federation: Federation
    registry: ClientRegistry
    outgoing: Outgoing
    grid: Grid
    engine: Engine | None
    inputs: Sequence[int] = ()
    adapted: tuple[Float32s, list[FittedRule], ScoresByPopulation] | None = field(
        default=None, init=False
    )  # the last model

    @property
    def rule(self) -> Adaptation:
        return self.federation.adaptation

    def evaluate(
        self, models: Float32s, clusters: Ints, round_: int, *, whole: bool = True
    ) -> tuple[dict[str, float], list[dict[str, Any]], list[FittedRule]]:
        if not whole and self.adapted is not None and np.array_equal(models, self.adapted[0]):
            base, _ = mode_names(self.rule)  # the scores of these modes are known
            _, fitted, joined = self.adapted
            base_scores = {
                name: [(share, _select_modes(mode_scores, base)) for share, mode_scores in scored]
                for name, scored in joined.items()
            }
            return *tabulate_scores(base_scores), fitted
        assert self.registry.population is not None  # clients have trained
        participants, count = self.registry.population.participants.tolist(), len(models)
        model_of_client = (
            dict(zip(participants, clusters.tolist(), strict=True)) if count > 1 else dict.fromkeys(participants, 0)
        )
        shares = np.bincount(list(model_of_client.values()), minlength=count) / len(model_of_client)
        records = [self.outgoing.record(model) for model in models]
        fit, shared = RemoteFit(self.federation, self.registry, self.outgoing.run, self.grid), list[RuleFit]()
        contributors = fit.holding_out(participants)
        for number, record in enumerate(records):
            members = [client for client in contributors if model_of_client[client] == number]
            shared.append(fit.fitted(record, members or contributors, cross=bool(members)))
        client_scores = self._scores(records, shared, all_modes=whole)
        joined = self._join_scores(client_scores, shares, set(participants), all_modes=whole)
        for model, share, rule_fit in zip(models, shares.tolist(), shared, strict=True):
            joined["test"] += [(share, scores) for scores in self._on_test_set(model, rule_fit.fitted.state)]
        fitted = [
            self._add_cost(
                rule_fit.fitted,
                [c for c in contributors if model_of_client[c] == number] or contributors,
                fit.held_out,
                round_,
            )
            for number, rule_fit in enumerate(shared)
        ]
        self.adapted = models.copy(), fitted, joined
        return *tabulate_scores(joined), fitted

    def _add_cost(
        self, fitted: FittedRule, members: Sequence[int], held_out: Mapping[int, int], round_: int
    ) -> FittedRule:
        """Return the fit with its radio cost, if the federation has a radio; counts clients that stayed to the end."""
        radio, population = self.federation.radio, self.registry.population
        if radio is None:
            return fitted
        assert population is not None  # clients have trained
        ids, stayed = population.participants, set(members) - fitted.left.keys()
        spent = fitting_cost(
            self.federation,
            radio.devices(len(ids), self.federation.seed),
            ids=ids,
            held_out=np.array([held_out[c] if c in stayed else 0 for c in ids.tolist()], np.int64),
            sent=fitted.sent,
            round_=round_,
            bits_per_example=self.registry.bits_per_example(),
        )
        return fitted._replace(seconds=spent.seconds, joules=spent.joules)

    def _scores(
        self, records: Sequence[ArrayRecord], shared: Sequence[RuleFit], *, all_modes: bool
    ) -> dict[tuple[int, int], AdaptationScores]:
        """Ask clients to adapt; return (client, model) -> the scores that the client reports."""
        tasks = [
            AdaptationTask(client, number, "held_out", state)
            for number, rule_fit in enumerate(shared)
            for client, state in rule_fit.without.items()
        ]
        tasks += [
            AdaptationTask(client, number, "both", rule_fit.fitted.state)
            for client in self.registry.unseen()
            for number, rule_fit in enumerate(shared)
        ]
        nodes = self.registry.nodes_of(task.client for task in tasks)
        pending_tasks = {(nodes[task.client], str(task.model)): task for task in tasks if task.client in nodes}
        inputs = [*self.inputs] if all_modes else []
        sent = []
        for (node, group), task in pending_tasks.items():
            content = RecordDict({MODEL: records[task.model], STATE: messages.array_record(task.state)})
            content[FEDREACH] = ConfigRecord({PART: task.part, INPUTS: inputs, ONLINE: all_modes})
            sent.append(self._message(content, node, "evaluate.adaptation", group))
        client_scores = dict[tuple[int, int], AdaptationScores]()
        for reply in send_and_wait(self.grid, sent, self.registry.timeout):
            answered = pending_tasks.pop((reply.metadata.src_node_id, reply.metadata.group_id), None)
            if answered is None:
                continue
            client, model = answered[:2]
            try:
                metrics = messages.metrics_of(messages.content_of(reply))
                if metrics or self._num_examples(client, answered.part):  # an unseen client may have no examples
                    client_scores[client, model] = self._scores_of(client, answered.part, metrics, all_modes=all_modes)
            except ReplyError as error:
                self.registry.blame(f"client {client}", error)
                LOG.warning("Client %s is not counted among those that are adapted: %s.", client, error)
        for task in pending_tasks.values():
            LOG.warning("Client %s did not say how well it is adapted.", task.client)
        return client_scores

    def _num_examples(self, client: int, part: str) -> int:
        """Return the number of examples that a client adapts on."""
        parts = self.registry.known[client].parts
        return 0 if parts is None else parts[part]

    def _scores_of(self, client: int, part: str, metrics: Mapping[str, Any], *, all_modes: bool) -> AdaptationScores:
        """Return the scores that a client reports."""
        count, inputs = self._num_examples(client, part), self.inputs if all_modes else ()
        base, input_modes = mode_names(self.rule, inputs, online=all_modes)
        scored = dict.fromkeys(base, scored_count(self.rule, count))  # prediction mode -> number of examples
        scored |= {mode: count - n for n, pair in zip(inputs, input_modes, strict=True) if n < count for mode in pair}
        modes = {mode: {client: self._score(client, metrics, mode, of)} for mode, of in scored.items()}
        decisions = {what: messages.whole_number(metrics, what) for what in DECISIONS if what in metrics}
        if any(count > 1 for count in decisions.values()):
            raise ReplyError(f"it says of what was decided {decisions}; each is 0 or 1")
        return AdaptationScores(modes, decisions, {client: scored["adapted"]})

    def _score(self, client: int, metrics: Mapping[str, Any], mode: str, count: int) -> Score:
        checks, facts = self.registry.checks, self.registry.known[client]
        accuracy = checks.accuracy(metrics, f"{mode}_accuracy", count, facts)
        error = messages.number(metrics, f"{mode}_calibration_error")
        return Score(accuracy, checks.score(metrics, f"{mode}_loss"), error)

    def _join_scores(
        self,
        client_scores: Mapping[tuple[int, int], AdaptationScores],
        shares: Floats,
        participants: set[int],
        *,
        all_modes: bool,
    ) -> ScoresByPopulation:
        """Return the argument of `tabulate_scores`; an unseen client counts if it reported scores for every model."""
        joined: ScoresByPopulation = {"participant": [], "unseen": [], "test": []}
        names, input_modes = mode_names(self.rule, self.inputs if all_modes else (), online=all_modes)
        modes = [*names, *chain(*input_modes)]
        participant_scores = [client_scores[key] for key in sorted(client_scores) if key[0] in participants]
        if participant_scores:
            joined["participant"] = [(1.0, _merge_scores(participant_scores, modes))]
        unseen_clients = sorted({client for client, _ in client_scores} - participants)
        unseen_clients = [
            client for client in unseen_clients if all((client, model) in client_scores for model in range(len(shares)))
        ]
        for model, share in enumerate(shares.tolist() if unseen_clients else ()):
            joined["unseen"].append(
                (share, _merge_scores([client_scores[client, model] for client in unseen_clients], modes))
            )
        return joined

    def _on_test_set(self, model: Float32s, state: State) -> list[AdaptationScores]:
        if self.engine is None or not len(self.engine.task.data.dataset.test_y):
            return []
        labels = self.engine.task.data.dataset.test_y
        outputs = self.engine.answers(model, "test", np.arange(len(labels)), inputs=self.rule.reads_inputs)
        return [adapt_and_score(self.rule, state, [Client(0, outputs, labels)])]

    def _message(self, content: RecordDict, node: int, kind: str, group: str | None = None) -> Message:
        return Message(content, node, kind, ttl=self.registry.timeout, group_id=group)


def _merge_scores(scored: Sequence[AdaptationScores], modes: Sequence[str]) -> AdaptationScores:
    """Merge the scores of several clients, prediction modes in this order."""
    decisions = {what: sum(scores.noted[what] for scores in scored if what in scores.noted) for what in DECISIONS}
    scores_by_mode = {
        mode: {c: score for scores in scored for c, score in scores.modes.get(mode, {}).items()} for mode in modes
    }
    noted_names = {what for scores in scored for what in scores.noted}
    return AdaptationScores(
        {mode: clients for mode, clients in scores_by_mode.items() if clients},
        {what: count for what, count in decisions.items() if what in noted_names},
        {client: count for scores in scored for client, count in scores.inputs.items()},
    )


def _select_modes(scores: AdaptationScores, modes: Sequence[str]) -> AdaptationScores:
    return AdaptationScores({mode: scores.modes[mode] for mode in modes}, scores.noted, scores.inputs)


def adapt_clients(adaptation: RemoteAdaptation, folder: RunFolder) -> None:
    """Fit the rule for the last and the best model of a folder; write and log the scores of adapted clients."""
    adaptation.registry.meet(adaptation.grid)
    write_adaptation(folder, adaptation.outgoing.layout, adaptation)
    for line in adaptation_table(folder):
        LOG.info(line)


# ---- The client's side of adaptation
# Labels never leave the client. A participant sends sums over its held-out examples; an unseen client only metrics.

PARTS = ("held_out", "both")


def contributions(sent: RecordDict, local: LocalClient) -> dict[int, State]:
    """Return the contribution of the client to each requested fit."""
    if not local.num_held_out:
        raise TrainingError("it holds no examples out, by which an adaptation rule is fitted")
    request: Mapping[str, Any] = sent.config_records[FEDREACH]
    fits: list[int] = request[FITS]
    params = messages.params_of(sent.array_records[MODEL], local.engine.layout)
    queries = [_arrays(sent.array_records[messages.query_name(fit)]) for fit in fits]
    return dict(zip(fits, local.contributions(params, queries), strict=True))


def mask_contributions(
    answers: Mapping[int, State], sent: RecordDict, client: int, private: bytes, used: MutableMapping[str, Any]
) -> dict[int, Mapping[str, Words]]:
    """Return the (4, ...) words of each array under the masks that the client shares with the others of its fit.

    Args:
        answers: Contribution of the client to each fit.
        sent: Message with the public keys of the others and the members of each fit.
        client: Id of the client.
        private: Private key of the client.
        used: See `fedreach.flower.messages.masked`.
    """
    request: Mapping[str, Any] = sent.config_records[FEDREACH]
    keys = messages.keys_of(sent.config_records[KEYS])
    masked_answers: dict[int, Mapping[str, Words]] = {}
    for fit, answer in answers.items():
        members: list[int] = request[messages.members_name(fit)]
        names = sorted(answer)  # all clients mask in one order
        words = [limbs(answer[name]) for name in names]
        flat_words = np.concatenate([block.ravel() for block in words]) if words else np.empty(0, np.uint64)
        run = f"{request[RUN]!s} adaptation {request[SESSION]!s} {fit}"
        exchange = int(messages.number(request, EXCHANGE))
        public = {member: keys[member] for member in members}
        flat_words = messages.mask_words(flat_words, client, public, private, run, exchange, used)
        parts = np.split(flat_words, np.cumsum([block.size for block in words])[:-1])
        masked_answers[fit] = {
            name: part.reshape(block.shape) for name, part, block in zip(names, parts, words, strict=False)
        }
    return masked_answers


def scores(sent: RecordDict, local: LocalClient) -> dict[str, float]:
    """Return the scores of the client for each prediction mode, and the decisions of the rule."""
    request: Mapping[str, Any] = sent.config_records[FEDREACH]
    part, inputs = str(request[PART]), [int(n) for n in request[INPUTS]]
    if part not in PARTS:
        raise TrainingError(f"a client is adapted on one of {', '.join(PARTS)}; the server asked for {part!r}")
    params = messages.params_of(sent.array_records[MODEL], local.engine.layout)
    if not local.num_held_out + (local.num_examples if part == "both" else 0):
        return {}
    adapted_scores = local.adapted(
        params, _arrays(sent.array_records[STATE]), part, inputs, online=bool(request[ONLINE])
    )
    numbers: dict[str, float] = dict(adapted_scores.noted)
    for mode, clients in adapted_scores.modes.items():
        for name, value in zip(Score._fields, clients[local.client], strict=True):
            numbers[f"{mode}_{name}"] = value
    return numbers


def _arrays(record: ArrayRecord) -> dict[str, AnyArray]:
    return {name: array.numpy() for name, array in record.items()}

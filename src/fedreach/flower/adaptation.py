"""Adaptation on Flower: every client adapts the model locally and sends metrics. Unseen clients send nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from logging import getLogger
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import TrainingError
from fedreach._util.files import digest_of
from fedreach.engines.protocols import Engine
from fedreach.evaluation.modes import (
    DECISIONS,
    AdaptationScores,
    Client,
    Score,
    adapt_and_score,
    folds,
    mode_names,
    scored_count,
    tabulate_scores,
)
from fedreach.federation.adaptation.fitting import (
    UNFITTED,
    FittedRule,
    SumNoise,
    after_exchange,
    most_exchanges,
    next_query,
    plain_sum,
)
from fedreach.federation.base import Adaptation, name_of
from fedreach.federation.costs import fitting_cost
from fedreach.federation.federation import Federation
from fedreach.federation.secure_aggregation import LARGEST_EXACT, MIN_CLIENTS, sum_of_limbs
from fedreach.federation.types import State
from fedreach.flower import messages
from fedreach.flower.clients import ClientModel, ClientRegistry
from fedreach.flower.messages import ModelWriter
from fedreach.flower.secure_server import IncompleteError, SecureSum
from fedreach.runs.adaptation import adaptation_table, write_adaptation
from fedreach.runs.folder import PRIVATE_FIT, RunFolder

LOG = getLogger("flwr")

# ---- Fitting the rule
# Queries go to clients and sums come back until the rule is fitted. The participants are fixed at the start: those that
# are available and have held-out examples. The same messages carry cross-fits, which score participants. If a
# participant fails to reply, all fits restart without it, so each is bit for bit the fit of those that stayed.

Answers = dict[int, dict[str, AnyArray]]
"""Fit -> contribution of a participant to this fit."""


class RuleFit(NamedTuple):
    """The fitted rule of a model, and the cross-fitted rules that score participants."""

    fitted: FittedRule
    without: Mapping[int, State]  # participant -> state of the rule that others fitted


class Exchange(NamedTuple):
    """One exchange with clients, shared by several fits."""

    session: str
    number: int
    sets: Sequence[Sequence[int]]  # participants of each fit
    queries: Mapping[int, State]  # fit -> query of its rule; a finished fit has none


@dataclass(eq=False)
class RemoteFit:
    """Fit of the federation's adaptation rule, by messages to clients."""

    federation: Federation
    registry: ClientRegistry
    noise: SumNoise | None = None  # of sums over participants, with differential privacy
    held_out: dict[int, int] = field(default_factory=dict, init=False)  # participant -> its number of held-out examples

    def holding_out(self, participants: Sequence[int]) -> list[int]:
        """Return the available participants that have held-out examples and send sums over these examples."""

        def read(client: int, reply: Message) -> int:
            known_count = self.registry.known[client].num_held_out or 0
            return messages.same_count(messages.metrics_of(reply), messages.EXAMPLES, known_count)

        contents: dict[int, Mapping[str, Any]] = {client: {} for client in participants}
        counts, _ = self.registry.ask("query.adaptation", contents, read, "does not contribute to the adaptation rule")
        self.held_out = {client: count for client, count in sorted(counts.items()) if count}
        return list(self.held_out)

    def fitted(self, record: ArrayRecord, members: Sequence[int], *, cross: bool) -> RuleFit:
        """Fit the rule on these participants; if a participant leaves, all sums exclude it.

        Args:
            record: The model.
            members: Participants that contribute, by increasing id.
            cross: Also fit the rule without each fold of participants, to score the participants of the fold.

        Raises:
            TrainingError: If no participant is left, or, with secure aggregation, only one.
        """
        contributors, departed = list(members), dict[int, int]()
        while True:
            if len(contributors) < (MIN_CLIENTS if self._hides else 1):
                departures = f", because clients {sorted(departed)} left during the fit" if departed else ""
                raise TrainingError(
                    f"{name_of(self.federation.adaptation)} cannot be fitted: {len(contributors)} participants with "
                    f"held-out examples are left{departures}. Restart the clients, then rerun the command with the "
                    "same folder. Training is not repeated."
                )
            parts = folds(contributors) if cross else []
            if self._hides and any(len(part) < MIN_CLIENTS for part in parts):
                LOG.warning(
                    "FedReach does not evaluate adaptation on participants, because a sum without one participant "
                    "would reveal its share."
                )
                parts = []
            fits, lost, exchange = self._attempt(
                record, [contributors, *([c for c in contributors if c not in p] for p in parts)]
            )
            if not lost:
                break
            for client, reason in lost.items():
                LOG.warning(
                    "Client %s left in exchange %s of fitting the adaptation rule. The fit starts again without this "
                    "client: %s.",
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
        rule, fits, session, number = self.federation.adaptation, [UNFITTED] * len(sets), uuid4().hex, 0
        while True:
            limit = most_exchanges(self.noise)
            next_queries = {fit: next_query(rule, fitted, limit) for fit, fitted in enumerate(fits)}
            queries = {fit: query for fit, query in next_queries.items() if query is not None}
            if not queries:
                return fits, {}, number
            number += 1
            sums, lost = self._exchange(record, Exchange(session, number, sets, queries))
            if lost:
                return fits, lost, number
            LOG.info("Fitting %s, exchange %s: %s participants answered.", name_of(rule), number, len(sets[0]))
            for fit, query in queries.items():
                fits[fit] = after_exchange(rule, fits[fit], query, sums[fit])

    def _exchange(
        self, record: ArrayRecord, exchange: Exchange
    ) -> tuple[dict[int, dict[str, Floats]], Mapping[int, str]]:
        """Return the sums of all participants, fit -> name -> array; or the participants that left, and the reasons."""
        fits = {c: [fit for fit in exchange.queries if c in exchange.sets[fit]] for c in exchange.sets[0]}
        fits = {client: of_client for client, of_client in fits.items() if of_client}
        secure = None
        if self.federation.label_statistics.only_sum:
            secure = SecureSum(self.registry, [*fits], {str(fit): exchange.sets[fit] for fit in exchange.queries})
            if secure.lost:
                return {}, secure.lost
        contents = {client: self._question(record, exchange, of_client) for client, of_client in fits.items()}
        if secure is not None:
            for client, content in contents.items():
                content.update(secure.request(client))

        def read(client: int, reply: Message) -> Answers:
            return {fit: self._read_arrays(messages.arrays(reply, f"sums-{fit}")) for fit in fits[client]}

        self.registry.online = frozenset(self.registry.grid.get_node_ids())
        answers, lost = self.registry.ask("query.adaptation", contents, read)
        for fit in exchange.queries:
            odd = _find_odd_shapes({client: of_fits[fit] for client, of_fits in answers.items() if fit in of_fits})
            for client, reason in odd.items():
                self.registry.blame(f"client {client}", messages.ReplyError(reason))
            lost |= odd
        if lost:
            return {}, lost
        if secure is not None:
            return self._secure_sums(secure, answers)
        members = {fit: [answers[client][fit] for client in exchange.sets[fit]] for fit in exchange.queries}
        if self.noise is not None:
            examples = [self.held_out[client] for client in exchange.sets[0]]
            return {fit: dict(self.noise.sums(parts, examples)) for fit, parts in members.items()}, {}
        return {
            fit: {name: plain_sum([part[name] for part in parts]) for name in parts[0]}
            for fit, parts in members.items()
        }, {}

    def _secure_sums(
        self, secure: SecureSum, answers: Mapping[int, Answers]
    ) -> tuple[dict[int, dict[str, Floats]], Mapping[int, str]]:
        """Return the unmasked sums, fit -> name -> array; or the participants that left, and the reasons."""
        words = {client: {str(fit): sums for fit, sums in of_fits.items()} for client, of_fits in answers.items()}
        try:
            totals = secure.total(words)
        except IncompleteError as error:
            return {}, error.lost
        return {
            int(fit): {name: sum_of_limbs(total, len(secure.groups[fit])) for name, total in sums.items()}
            for fit, sums in totals.items()
        }, {}

    @property
    def _hides(self) -> bool:
        return self.federation.label_statistics.only_sum

    def _question(self, record: ArrayRecord, exchange: Exchange, fits: Sequence[int]) -> RecordDict:
        request = ConfigRecord(
            {messages.RUN: self.registry.run, messages.SESSION: exchange.session, messages.EXCHANGE: exchange.number}
        )
        request[messages.FITS] = list(fits)
        content = RecordDict({messages.MODEL: record, messages.FEDREACH: request})
        for fit in fits:
            content[f"query-{fit}"] = messages.array_record(exchange.queries[fit])
        return content

    def _read_arrays(self, record: ArrayRecord) -> dict[str, AnyArray]:
        kind = np.uint64 if self._hides else np.float64
        return {key: messages.array(record, key, None, kind, LARGEST_EXACT) for key in record}


def _find_odd_shapes(answers: Mapping[int, Mapping[str, AnyArray]]) -> dict[int, str]:
    """Return the clients whose arrays differ from most in names or shapes, and the reasons."""
    shapes = {c: {name: values.shape for name, values in sorted(answer.items())} for c, answer in answers.items()}
    usual = max(shapes.values(), key=[*shapes.values()].count, default={})
    return {c: f"it sent {shape}, but most clients sent {usual}" for c, shape in shapes.items() if shape != usual}


# ---- Adapting clients

ScoresByPopulation = dict[str, list[tuple[float, AdaptationScores]]]


@dataclass(eq=False)
class RemoteAdaptation:
    """Adaptation on Flower: fits the rule on participants and adapts models to all clients.

    Args:
        federation: Federation with the adaptation rule.
        registry: Clients and their nodes.
        writer: Writer of models into messages.
        engine: Engine of the server for the test set. None: no test set.
        inputs: Numbers of inputs for additional adaptations of clients.
        folder: Run folder.
        noise: Noise of the sums with differential privacy.
    """

    federation: Federation
    registry: ClientRegistry
    writer: ModelWriter
    engine: Engine | None
    inputs: Sequence[int] = ()
    folder: RunFolder | None = None
    noise: SumNoise | None = None
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
        model_numbers = clusters.tolist() if count > 1 else [0] * len(participants)
        model_of_client = dict(zip(participants, model_numbers, strict=True))
        shares = (np.bincount(model_numbers, minlength=count) / len(participants)).tolist()
        records = [self.writer.record(model) for model in models]
        fit = RemoteFit(self.federation, self.registry, self.noise)
        contributors, fitted = fit.holding_out(participants), list[FittedRule]()
        unseen_clients = self.registry.nodes_of(self.registry.unseen())
        # The part of the data that a client adapts on, and the state of the rule.
        states: dict[ClientModel, tuple[str, State]] = {}
        joined = {"participant": [], "unseen": [], "test": []}
        for number, record in enumerate(records):
            members = [client for client in contributors if model_of_client[client] == number]
            rule_fit = self._fit_once(fit, record, members or contributors, models[number], cross=bool(members))
            state = rule_fit.fitted.state
            states |= {ClientModel(c, number): ("held_out", without) for c, without in rule_fit.without.items()}
            states |= {ClientModel(client, number): ("both", state) for client in unseen_clients}
            joined["test"] += [(shares[number], scores) for scores in self._on_test_set(models[number], state)]
            fitted.append(self._add_cost(rule_fit.fitted, members or contributors, fit.held_out, round_))
        contents = {
            task: RecordDict(
                {
                    messages.MODEL: records[task.model],
                    messages.STATE: messages.array_record(state),
                    messages.FEDREACH: ConfigRecord(
                        {messages.PART: part, messages.INPUTS: [*self.inputs] if whole else [], messages.ONLINE: whole}
                    ),
                }
            )
            for task, (part, state) in states.items()
        }

        def read(task: ClientModel, reply: Message) -> AdaptationScores:
            return self.scores_of(task.client, states[task][0], messages.metrics_of(reply), all_modes=whole)

        scores, _ = self.registry.ask("evaluate.adaptation", contents, read, "has no scores after adaptation")
        # The first client has all modes, in their order; an unseen client counts if it reported scores for every model.
        tasks = sorted(scores, key=lambda task: (-len(scores[task].modes), task))
        tasks = [task for task in tasks if scores[task].modes]  # an unseen client may have no examples
        joined["participant"] = [(1.0, scores[task]) for task in tasks if task.client in model_of_client]
        unseen = [task for task in tasks if task.client not in model_of_client]
        complete = {c for c, _ in unseen if all(ClientModel(c, number) in scores for number in range(count))}
        joined["unseen"] = [(shares[task.model], scores[task]) for task in unseen if task.client in complete]
        self.adapted = models.copy(), fitted, joined
        return *tabulate_scores(joined), fitted

    def _fit_once(
        self, fit: RemoteFit, record: ArrayRecord, members: Sequence[int], model: Float32s, *, cross: bool
    ) -> RuleFit:
        """Return the fit of the rule; with privacy, that of an interrupted attempt, because each fit spends epsilon."""
        if self.noise is None:
            return fit.fitted(record, members, cross=cross)
        assert self.folder is not None  # a run has one
        of_model, stored = digest_of({"model": model}, {}), self.folder.read_tensors(PRIVATE_FIT)
        if stored is not None and stored[1]["model"] == of_model:
            left = {int(client): exchange for client, exchange in stored[1]["left"].items()}
            return RuleFit(FittedRule(stored[0], tuple(stored[1]["sent"]), stored[1]["down"], left=left), {})
        rule_fit = fit.fitted(record, members, cross=False)
        fitted = rule_fit.fitted
        about = {"model": of_model, "sent": fitted.sent, "down": fitted.bytes_down, "left": dict(fitted.left)}
        self.folder.write_tensors(PRIVATE_FIT, fitted.state, about)
        return rule_fit

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

    def scores_of(self, client: int, part: str, metrics: Mapping[str, Any], *, all_modes: bool) -> AdaptationScores:
        """Return the scores that a client reports; without examples, the result contains no modes."""
        count, inputs = self.registry.known[client].parts[part], self.inputs if all_modes else ()
        if not count:
            return AdaptationScores({}, {}, {})
        base, input_modes = mode_names(self.rule, inputs, online=all_modes)
        modes = [*base, *chain(*(pair for n, pair in zip(inputs, input_modes, strict=True) if n < count))]
        scores = {
            mode: {client: Score(*(messages.number(metrics, f"{mode}_{name}") for name in Score._fields))}
            for mode in modes
        }
        decisions = {what: messages.whole_number(metrics, what) for what in DECISIONS if what in metrics}
        if any(count > 1 for count in decisions.values()):
            raise messages.ReplyError(f"its decisions must be 0 or 1; got {decisions}")
        return AdaptationScores(scores, decisions, {client: scored_count(self.rule, count)})

    def _on_test_set(self, model: Float32s, state: State) -> list[AdaptationScores]:
        if self.engine is None or not len(self.engine.task.data.dataset.test_y):
            return []
        labels = self.engine.task.data.dataset.test_y
        outputs = self.engine.answers(model, "test", np.arange(len(labels)), inputs=self.rule.reads_inputs)
        return [adapt_and_score(self.rule, state, [Client(0, outputs, labels)])]


def _select_modes(scores: AdaptationScores, modes: Sequence[str]) -> AdaptationScores:
    return AdaptationScores({mode: scores.modes[mode] for mode in modes}, scores.noted, scores.inputs)


def adapt_clients(adaptation: RemoteAdaptation) -> None:
    """Fit the rule for the last and the best model of a run; write and log the scores of adapted clients."""
    folder = adaptation.folder
    assert folder is not None  # a run has one
    adaptation.registry.meet()
    write_adaptation(folder, adaptation.writer.layout, adaptation)
    for line in adaptation_table(folder):
        LOG.info(line)

"""Adaptation on Flower: every client adapts by itself and sends metrics. An unseen client sends nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedreach._util.arrays import Float32s, Ints
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
from fedreach.federation.types import State
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry, Task
from fedreach.flower.fitting import RemoteFit
from fedreach.flower.messages import FEDREACH, INPUTS, MODEL, ONLINE, PART, STATE, ModelWriter, ReplyError
from fedreach.runs.adaptation import adaptation_table, write_adaptation
from fedreach.runs.folder import RunFolder

LOG = getLogger("flwr")
ScoresByPopulation = dict[str, list[tuple[float, AdaptationScores]]]


@dataclass(eq=False)
class RemoteAdaptation:
    """Fits the adaptation rule on participants and adapts models to all clients; see `fedreach.evaluation.modes`.

    Args:
        federation: Federation with the adaptation rule.
        registry: Clients and their nodes.
        writer: Writer of models.
        engine: Engine of the server for its test set; None without a test set.
        inputs: Numbers of inputs that clients also adapt with.
    """

    federation: Federation
    registry: ClientRegistry
    writer: ModelWriter
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
        model_numbers = clusters.tolist() if count > 1 else [0] * len(participants)
        model_of_client = dict(zip(participants, model_numbers, strict=True))
        shares = (np.bincount(model_numbers, minlength=count) / len(participants)).tolist()
        records = [self.writer.record(model) for model in models]
        fit = RemoteFit(self.federation, self.registry)
        contributors, fitted = fit.holding_out(participants), list[FittedRule]()
        unseen_clients = self.registry.nodes_of(self.registry.unseen())
        states: dict[Task, tuple[str, State]] = {}  # part of the data that a client adapts on, and state of the rule
        joined = {"participant": [], "unseen": [], "test": []}
        for number, record in enumerate(records):
            members = [client for client in contributors if model_of_client[client] == number]
            rule_fit = fit.fitted(record, members or contributors, cross=bool(members))
            state = rule_fit.fitted.state
            states |= {Task(client, number): ("held_out", without) for client, without in rule_fit.without.items()}
            states |= {Task(client, number): ("both", state) for client in unseen_clients}
            joined["test"] += [(shares[number], scores) for scores in self._on_test_set(models[number], state)]
            fitted.append(self._add_cost(rule_fit.fitted, members or contributors, fit.held_out, round_))
        contents = {
            task: RecordDict(
                {
                    MODEL: records[task.model],
                    STATE: messages.array_record(state),
                    FEDREACH: ConfigRecord({PART: part, INPUTS: [*self.inputs] if whole else [], ONLINE: whole}),
                }
            )
            for task, (part, state) in states.items()
        }

        def read(task: Task, reply: Message) -> AdaptationScores:
            return self.scores_of(task.client, states[task][0], messages.metrics_of(reply), all_modes=whole)

        scores, _ = self.registry.ask("evaluate.adaptation", contents, read, "does not count among those adapted")
        # The first client has all modes, in their order; an unseen client counts if it reported scores for every model.
        tasks = sorted(scores, key=lambda task: (-len(scores[task].modes), task))
        tasks = [task for task in tasks if scores[task].modes]  # an unseen client may have no examples
        joined["participant"] = [(1.0, scores[task]) for task in tasks if task.client in model_of_client]
        unseen = [task for task in tasks if task.client not in model_of_client]
        complete = {c for c, _ in unseen if all(Task(c, number) in scores for number in range(count))}
        joined["unseen"] = [(shares[task.model], scores[task]) for task in unseen if task.client in complete]
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

    def scores_of(self, client: int, part: str, metrics: Mapping[str, Any], *, all_modes: bool) -> AdaptationScores:
        """Return the scores that a client reports; no modes if it has no examples."""
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
            raise ReplyError(f"it says of what was decided {decisions}; each is 0 or 1")
        return AdaptationScores(scores, decisions, {client: scored_count(self.rule, count)})

    def _on_test_set(self, model: Float32s, state: State) -> list[AdaptationScores]:
        if self.engine is None or not len(self.engine.task.data.dataset.test_y):
            return []
        labels = self.engine.task.data.dataset.test_y
        outputs = self.engine.answers(model, "test", np.arange(len(labels)), inputs=self.rule.reads_inputs)
        return [adapt_and_score(self.rule, state, [Client(0, outputs, labels)])]


def _select_modes(scores: AdaptationScores, modes: Sequence[str]) -> AdaptationScores:
    return AdaptationScores({mode: scores.modes[mode] for mode in modes}, scores.noted, scores.inputs)


def adapt_clients(adaptation: RemoteAdaptation, folder: RunFolder) -> None:
    """Fit the rule for the last and the best model of a folder; write and log the scores of adapted clients."""
    adaptation.registry.meet()
    write_adaptation(folder, adaptation.writer.layout, adaptation)
    for line in adaptation_table(folder):
        LOG.info(line)

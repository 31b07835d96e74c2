"""Scores of the prediction modes: unadapted, calibrated, adapted, online and oracle prior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.protocols import Predictor, Split
from fedreach.evaluation.evaluator import Group, mean_interval
from fedreach.evaluation.metrics import expected_calibration_error
from fedreach.evaluation.scores import HARM_POINTS, worst_decile
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.fitting import FittedRule, HeldOut, SumNoise, fit, plain_sum
from fedreach.federation.base import Adaptation
from fedreach.federation.costs import FittingCost
from fedreach.federation.types import Outputs, State

# -------------------- Prediction modes
# - **unadapted**: the prediction of the model, argmax z.
# - **calibrated**: the prediction of the rule before it has received inputs of the client.
# - **adapted**: the prediction of the rule after all unlabeled inputs of the client, on these inputs (*transductive*).
# - **adapted_N**: the prediction of the rule after N inputs, on the client's other inputs (*inductive*).
#   **unadapted_N** is the prediction of the model on the same inputs.
# - **online**: the prediction of each input before the rule learns from it.
# - **oracle_prior**: the prediction of the rule with the client's label distribution. It requires labels, so it cannot
#   be deployed.
#
# A rule with `learns_labels` also receives the labels of the client's first examples. All modes are then scored on the
# other `scored_count` examples. **adapted_N** receives at most N labels, and is scored on the same examples as for
# other rules.

SMOOTHING = 0.1
"""Number that is added to each label count for the oracle prior."""
GROUP_SIZE = 64
"""Largest number of clients that are adapted at once."""
MAX_GROUP_BYTES = 2**26
"""Size of model outputs at which a group is complete. Intensity correction requires several times as much memory."""
DECISIONS = ("adapted", "repaired")
"""Names of the decisions in the state of a client, each of which is 0 or 1."""


class Score(NamedTuple):
    """Scores of one client in one prediction mode."""

    accuracy: float
    loss: float  # mean of -log p_y in nats
    calibration_error: float  # expected calibration error


def score(log_p: Floats, labels: Ints) -> Score:
    """Compute the accuracy, loss and calibration error of (m, c) log-probabilities.

    Example:
        >>> score(np.log([[0.75, 0.25], [0.75, 0.25]]), np.array([0, 1]))
        Score(accuracy=0.5, loss=0.836988, calibration_error=0.25)
    """
    right = log_p.argmax(axis=1) == labels
    loss = -log_p[np.arange(len(labels)), labels].mean()
    error = expected_calibration_error(log_p, labels)
    return Score(round(float(right.mean()), 9), round(float(loss), 6), round(error, 9))


class Client(NamedTuple):
    """Client to which a rule adapts; the rule receives its labels only with `learns_labels`."""

    id: int
    outputs: Outputs  # model outputs for its examples
    labels: Ints  # (m,) true classes


ModeScores = dict[str, dict[int, Score]]
"""Scores by mode and client. Clients with too few inputs for a mode are missing."""


def mode_names(
    rule: Adaptation, inputs: Sequence[int] = (), *, online: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Return the modes of all clients, and, for each N in `inputs`, the modes of clients with more than N inputs.

    Example:
        >>> from fedreach.federation.adaptation.label_shift import LabelShift
        >>> mode_names(LabelShift(), [5], online=True)
        (['unadapted', 'calibrated', 'adapted', 'online', 'oracle_prior'], [['unadapted_5', 'adapted_5']])
    """
    names = ["unadapted", "calibrated", "adapted"]
    names += ["online"] * (online and rule.adapts_online) + ["oracle_prior"] * rule.knows_prior
    more = [[f"unadapted_{n}"] + [f"adapted_{n}"] * (not rule.reads_oracle_prior) for n in inputs]
    return names, more


def labeled_count(rule: Adaptation, count: int) -> int:
    """Return the number of examples whose labels a rule receives; a rule never receives all labels."""
    return min(rule.labels, count - 1) if rule.learns_labels else 0


def scored_count(rule: Adaptation, count: int) -> int:
    """Return the number of examples on which FedReach scores a client.

    Example:
        >>> from fedreach.federation.adaptation.few_labels import FewLabels
        >>> [scored_count(FewLabels(labels=5), count) for count in (1, 5, 20)]
        [1, 1, 15]
    """
    return count - labeled_count(rule, count)


@dataclass(frozen=True, eq=False)
class AdaptationScores:
    """Scores of the clients of a population in each prediction mode, and decisions of the rule."""

    modes: ModeScores
    noted: Mapping[str, int]  # decision of `DECISIONS` -> number of clients
    inputs: Mapping[int, int]  # client -> number of inputs on which it is scored

    def columns(self, name: str) -> dict[str, float]:
        """Return the columns of a population.

        ``NAME_MODE_...`` are means over clients, confidence intervals and means over the worst 10% of clients. All
        other columns compare adapted with unadapted predictions. ``NAME_harmed`` is the share of clients whose accuracy
        drops by more than `HARM_POINTS` percentage points. ``NAME_worse`` is the share of clients whose accuracy drops
        at all. ``NAME_worst_change`` is the change in accuracy, as a fraction, of the client with the largest drop.
        ``NAME_worst_inputs`` is the number of inputs of this client (ties: the client with the most inputs).
        """
        columns: dict[str, float] = {}
        for mode, scores in self.modes.items():
            accuracy, loss, error = (np.array(column) for column in zip(*scores.values(), strict=True))
            column = f"{name}_{mode}"
            columns |= {f"{column}_accuracy": accuracy.mean(), f"{column}_loss": loss.mean()}
            columns |= {f"{column}_calibration_error": error.mean()}
            if len(scores) > 1:
                low, high = mean_interval(accuracy)
                columns |= {f"{column}_accuracy_low": low, f"{column}_accuracy_high": high}
                columns |= {f"{column}_accuracy_worst_decile": worst_decile(accuracy)}
            missing = len(self.modes["unadapted"]) - len(scores)
            if missing:
                columns[f"{column}_too_few"] = missing
        columns |= {f"{name}_{what}": count for what, count in self.noted.items()}
        plain, adapted = self.modes["unadapted"], self.modes["adapted"]
        # Rounding: a loss of exactly 5 points must not count as more, and equal losses must be equal.
        change = {client: round(adapted[client].accuracy - plain[client].accuracy, 9) for client in plain}
        worst = min(change, key=lambda client: (change[client], -self.inputs[client]))
        changes = np.array([*change.values()])
        columns |= {f"{name}_worse": (changes < 0).mean(), f"{name}_harmed": (changes < -HARM_POINTS / 100).mean()}
        columns |= {f"{name}_worst_change": change[worst], f"{name}_worst_inputs": self.inputs[worst]}
        return {key: round(float(value), 9) for key, value in columns.items()}

    def lines(self, population: str) -> Iterator[dict[str, Any]]:
        """Yield one record of ``adapted.jsonl`` for each mode."""
        for mode, scores in self.modes.items():
            columns = dict(zip(Score._fields, map(list, zip(*scores.values(), strict=True)), strict=True))
            inputs = [self.inputs[client] for client in scores]
            yield {"population": population, "mode": mode, "ids": list(scores), "inputs": inputs, **columns}


def adapt_and_score(
    rule: Adaptation, state: State, clients: Iterable[Client], inputs: Sequence[int] = (), *, online: bool = False
) -> AdaptationScores:
    """Adapt to clients with a fitted rule, and score the clients in all modes.

    Args:
        rule: Adaptation rule.
        state: Fitted state of the rule.
        clients: Clients, at least one.
        inputs: Numbers N of inputs for the modes ``adapted_N``. Default: no such modes.
        online: Score the mode online too, if the rule supports it. Default: False.
    """
    modes: ModeScores = {}
    noted: dict[str, int] = {}
    counts: dict[int, int] = {}
    start = rule.start(state)

    def take(mode: str, client: Client, log_p: Floats, begin: int = 0) -> None:
        modes.setdefault(mode, {})[client.id] = score(log_p, client.labels[begin:])

    def adapt(clients: Sequence[Client], first: int | None = None) -> Iterator[tuple[Client, State, int]]:
        """Yield each client, its state after `first` inputs, and the number of labels that the rule received."""
        label_counts = [labeled_count(rule, len(client.labels)) for client in clients]
        unlabeled = [client.outputs.at(slice(first)) for client in clients]
        if rule.learns_more_labels:  # such a rule must not receive the labeled examples twice
            unlabeled = [outputs.at(slice(count, None)) for outputs, count in zip(unlabeled, label_counts, strict=True)]
        states = rule.update_many(state, [start] * len(clients), unlabeled)
        for client, client_state, count in zip(clients, states, label_counts, strict=True):
            used = count if first is None else min(first, count)
            labeled = client.outputs.at(slice(used)), client.labels[:used]
            if rule.learns_more_labels:
                client_state = rule.learn_labels(state, client_state, *labeled)
            elif rule.learns_labels:
                client_state = rule.with_labels(state, *labeled)
            yield client, client_state, count

    for group in in_groups(clients):
        for full_client, client_state, label_count in adapt(group):
            rest = slice(label_count, None)
            client = Client(full_client.id, full_client.outputs.at(rest), full_client.labels[rest])
            counts[client.id] = len(client.labels)
            take("unadapted", client, log_softmax(client.outputs.logits))
            take("calibrated", client, rule.predict(state, start, client.outputs))
            state_with_prior = client_state
            if rule.knows_prior:
                shares = np.bincount(client.labels, minlength=client.outputs.logits.shape[1]) + SMOOTHING
                state_with_prior = rule.with_prior(state, shares / shares.sum())
            client_state = state_with_prior if rule.reads_oracle_prior else client_state
            take("adapted", client, rule.predict(state, client_state, client.outputs))
            for what in DECISIONS:
                if what in client_state:
                    noted[what] = noted.get(what, 0) + int(np.asarray(client_state[what]).item())
            if online and rule.adapts_online:
                take("online", client, rule.predict_online(state, start, client.outputs)[0])
            if rule.knows_prior:
                take("oracle_prior", client, rule.predict(state, state_with_prior, client.outputs))
        for n in inputs:
            for client, client_state, _ in adapt([client for client in group if len(client.labels) > n], n):
                remaining = client.outputs.at(slice(n, None))
                take(f"unadapted_{n}", client, log_softmax(remaining.logits), n)
                if not rule.reads_oracle_prior:  # such a rule uses no inputs
                    take(f"adapted_{n}", client, rule.predict(state, client_state, remaining), n)
    return AdaptationScores(modes, noted, counts)


def in_groups(clients: Iterable[Client]) -> Iterator[list[Client]]:
    """Yield clients in groups of `GROUP_SIZE`, or fewer if their outputs are large (see `MAX_GROUP_BYTES`)."""
    group: list[Client] = []
    num_bytes = 0
    for client in clients:
        group.append(client)
        num_bytes += sum(array.nbytes for array in client.outputs.arrays().values())
        if len(group) == GROUP_SIZE or num_bytes >= MAX_GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def tabulate_scores(
    joined: Mapping[str, Sequence[tuple[float, AdaptationScores]]],
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the columns and the records of clients for all populations.

    Args:
        joined: (share, scores) of each part (see `merge_scores`), by population ("participant", "unseen" or "test").
    """
    columns: dict[str, float] = {}
    lines: list[dict[str, Any]] = []
    for name, scored in joined.items():
        if scored:
            scores = merge_scores(scored)
            columns |= scores.columns(name)
            if name != "test":
                lines += scores.lines("participants" if name == "participant" else name)
    return columns, lines


def merge_scores(scored: Sequence[tuple[float, AdaptationScores]]) -> AdaptationScores:
    """Merge the scores of several models or folds; a client's result is the mean of its scores, weighted by share."""
    modes: ModeScores = {}
    noted: dict[str, int] = {}
    inputs: dict[int, int] = {}
    total: dict[tuple[str, int], float] = {}
    for share, scores in scored:
        inputs |= scores.inputs
        for mode, client_scores in scores.modes.items():
            for client, client_score in client_scores.items():
                before = modes.setdefault(mode, {}).get(client, Score(0.0, 0.0, 0.0))
                modes[mode][client] = Score(*(a + share * b for a, b in zip(before, client_score, strict=True)))
                total[mode, client] = total.get((mode, client), 0.0) + share
        for what, count in scores.noted.items():
            noted[what] = noted.get(what, 0) + count
    for mode, client_scores in modes.items():
        for client in sorted(client_scores):
            client_scores[client] = Score(*(value / total[mode, client] for value in client_scores.pop(client)))
    return AdaptationScores(modes, noted, inputs)


# -------------------- Fitting of a rule, and scores of participants, unseen clients and the test set
# Participants are scored by cross-fitting: they are divided into `FOLDS` folds, and the rule for a fold is fitted on
# the other folds. The test set counts as one client.

FOLDS = 5


class AdaptationScorer(Protocol):
    """Base class of evaluators that fit a rule on participants and score all clients."""

    @property
    def rule(self) -> Adaptation: ...

    @property
    def noise(self) -> SumNoise | None: ...

    def evaluate(
        self, models: Float32s, clusters: Ints, round_: int, *, whole: bool = True
    ) -> tuple[dict[str, float], list[dict[str, Any]], list[FittedRule]]:
        """Return the columns, the records of clients, and the fitted rule of each model.

        Args:
            models: (m, d) models, one per cluster.
            clusters: (n,) cluster of each participant.
            round_: Number of completed rounds.
            whole: Score the modes online and adapted_N too. Default: True.
        """


@dataclass(frozen=True, eq=False)
class AdaptationEvaluator:
    """Evaluator that fits a rule on participants and scores all clients in this process.

    Args:
        engine: Engine that runs the model.
        data: Federated data.
        rule: Adaptation rule.
        max_samples: Largest number of examples per client; FedReach uses the first examples. Default: all examples.
        inputs: Numbers of inputs for the modes ``adapted_N``, see `adapt_and_score`.
        summed: Function that sums client statistics, see `fedreach.federation.adaptation.fitting.fit`.
        noise: Noise of these sums with differential privacy. Participants are then not scored, because the accounting
            covers one fit.
        cost: Function that returns the simulated cost of fitting. Its arguments are the number of examples of each
            client that fits the rule, the bytes per client in each exchange, and the round. Default: no cost.
    """

    engine: Predictor
    data: FederatedData
    rule: Adaptation
    max_samples: int | None = None
    inputs: Sequence[int] = ()
    summed: Callable[[Sequence[Floats]], Floats] | None = None
    cost: Callable[[Mapping[int, int], Sequence[int], int], FittingCost | None] | None = None
    noise: SumNoise | None = None

    def evaluate(
        self, models: Float32s, clusters: Ints, round_: int, *, whole: bool = True
    ) -> tuple[dict[str, float], list[dict[str, Any]], list[FittedRule]]:
        population = self.data.population
        held_out = Group.of(population.participants, self.data.held_out, max_samples=self.max_samples)
        unseen = Group.of(population.unseen, self.data.train, self.data.held_out, max_samples=self.max_samples)
        client_clusters = clusters[np.searchsorted(population.participants, held_out.ids)]
        places = dict(zip(held_out.ids.tolist(), held_out.parts, strict=True))
        inputs = self.inputs if whole else ()
        fitted: list[FittedRule] = []
        joined: dict[str, list[tuple[float, AdaptationScores]]] = {"participant": [], "unseen": [], "test": []}
        shares = np.bincount(clusters, minlength=len(models)) / len(clusters)
        for number, model in enumerate(models):
            member_ids = held_out.ids[client_clusters == number] if (client_clusters == number).any() else held_out.ids
            fitting_clients = {int(c): self._client(model, "true", int(c), places[int(c)]) for c in member_ids}
            fitted.append(self._add_cost(self._fit(fitting_clients), fitting_clients, round_))
            if self.noise is None and (client_clusters == number).any():
                for fold in folds(list(fitting_clients)):
                    fitting_others = {client: other for client, other in fitting_clients.items() if client not in fold}
                    members = [fitting_clients[client] for client in fold]
                    scores = adapt_and_score(self.rule, self._fit(fitting_others).state, members, inputs, online=whole)
                    joined["participant"].append((1.0, scores))
            state = fitted[-1].state
            if len(unseen.ids):
                unseen_parts = zip(unseen.ids.tolist(), unseen.parts, strict=True)
                clients = (self._client(model, "true", client, part) for client, part in unseen_parts)
                scores = adapt_and_score(self.rule, state, clients, inputs, online=whole)
                joined["unseen"].append((float(shares[number]), scores))
            if len(self.data.dataset.test_y):
                index = np.arange(len(self.data.dataset.test_y))
                scores = adapt_and_score(self.rule, state, [self._client(model, "test", 0, index)])
                joined["test"].append((float(shares[number]), scores))
        return *tabulate_scores(joined), fitted

    def _client(self, model: Float32s, split: Split, client: int, index: Ints) -> Client:
        outputs = self.engine.answers(model, split, index, inputs=self.rule.reads_inputs)
        d = self.data.dataset
        return Client(client, outputs, (d.test_y if split == "test" else d.train_y)[index])

    def _fit(self, fitting_clients: Mapping[int, Client]) -> FittedRule:
        counts = self.data.label_counts()
        participants = [HeldOut(c.outputs, c.labels, counts[c.id].astype(np.float64)) for c in fitting_clients.values()]
        return fit(self.rule, participants, self.summed or plain_sum, self.noise)

    def _add_cost(self, fitted: FittedRule, fitting_clients: Mapping[int, Client], round_: int) -> FittedRule:
        examples = {client: len(fitting_client.labels) for client, fitting_client in fitting_clients.items()}
        spent = None if self.cost is None else self.cost(examples, fitted.sent, round_)
        return fitted if spent is None else fitted._replace(seconds=spent.seconds, joules=spent.joules)


def folds(ids: Sequence[int]) -> list[Sequence[int]]:
    """Divide participants into folds for cross-fitting, or return no folds for a single participant.

    Example:
        >>> folds([0, 1, 2, 3, 4, 5, 6])
        [[0, 5], [1, 6], [2], [3], [4]]
    """
    return [ids[fold::FOLDS] for fold in range(min(FOLDS, len(ids)))] if len(ids) > 1 else []

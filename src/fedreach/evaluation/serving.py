"""Who is served by which fit of a rule: participants, unseen clients and the test set, by one model or several.

Participants are served by what others contributed: they are divided into `FOLDS` parts, and the rule is fitted anew
without each of them. The test set is one client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.evaluation.populations import Group
from fedreach.evaluation.predictor import Predictor, Split
from fedreach.evaluation.rungs import Client, ServedScores, serve, tabulated
from fedreach.federation.protocols import Serving
from fedreach.federation.serving.fit import Fitted, HeldOut, fit
from fedreach.federation.time_energy import FittingCost
from fedreach.federation.traits import Traits

FOLDS = 5


class ServesModels(Protocol):
    """Fits a rule on participants and serves everybody by it: in this process, or by messages."""

    @property
    def rule(self) -> Serving: ...

    def evaluate(
        self, models: Float32s, clusters: Ints, round_: int, *, whole: bool = True
    ) -> tuple[dict[str, float], list[dict[str, Any]], list[Fitted]]:
        """Return columns, lines about single clients, and the fitted rule of each model.

        Args:
            models: (m, d) one a cluster.
            clusters: (n,) which of them each participant has.
            round_: After which these are the models.
            whole: Whether clients are also served online and with fewer inputs.
        """


@dataclass(frozen=True, eq=False)
class ServingEvaluator:
    """Fits a rule on the participants and serves everybody by it; see `ServesModels`.

    Args:
        engine: Runs the model.
        data: Who holds what.
        rule: The rule.
        max_samples: Of each client at most so many examples are used, the first ones; None: all.
        inputs: See `serve`.
        summed: See `fedreach.federation.serving.fit.fit`.
        cost: Simulated, given who fits by how many examples, the bytes that one sends in each exchange, and the round
            of the model; None: nothing is simulated.
    """

    engine: Predictor
    data: FederatedData
    rule: Serving
    max_samples: int | None = None
    inputs: Sequence[int] = ()
    summed: Callable[[Sequence[Floats]], Floats] | None = None
    cost: Callable[[Mapping[int, int], Sequence[int], int], FittingCost | None] | None = None

    def evaluate(
        self, models: Float32s, clusters: Ints, round_: int, *, whole: bool = True
    ) -> tuple[dict[str, float], list[dict[str, Any]], list[Fitted]]:
        population = self.data.population
        held_out = Group.of(population.participants, self.data.held_out, max_samples=self.max_samples)
        unseen = Group.of(population.unseen, self.data.train, self.data.held_out, max_samples=self.max_samples)
        own = clusters[np.searchsorted(population.participants, held_out.ids)]
        parts = np.split(held_out.index, np.cumsum(held_out.sizes)[:-1]) if len(held_out.ids) else []
        places = {int(client): part for client, part in zip(held_out.ids, parts, strict=True)}
        fitted: list[Fitted] = []
        joined: dict[str, list[tuple[float, ServedScores]]] = {"id": [], "unseen": [], "test": []}
        shares = np.bincount(clusters, minlength=len(models)) / len(clusters)
        for number, model in enumerate(models):
            mine = held_out.ids[own == number] if (own == number).any() else held_out.ids
            asked = {int(c): self._client(model, "true", int(c), places[int(c)]) for c in mine}
            fitted.append(self._billed(self._fitted(asked), asked, round_))
            if (own == number).any():
                for scores in self._cross_fitted(asked, whole=whole):
                    joined["id"].append((1.0, scores))
            state = fitted[-1].state
            if len(unseen.ids):
                each = zip(unseen.ids, np.split(unseen.index, np.cumsum(unseen.sizes)[:-1]), strict=True)
                clients = (self._client(model, "true", int(client), part) for client, part in each)
                scores = serve(self.rule, state, clients, self.inputs if whole else (), online=whole)
                joined["unseen"].append((float(shares[number]), scores))
            if len(self.data.dataset.test_y):
                index = np.arange(len(self.data.dataset.test_y))
                scores = serve(self.rule, state, [self._client(model, "test", 0, index)])
                joined["test"].append((float(shares[number]), scores))
        return *tabulated(joined), fitted

    def _client(self, model: Float32s, split: Split, client: int, index: Ints) -> Client:
        outputs = self.engine.answers(model, split, index, inputs=Traits.of(self.rule).reads_inputs)
        d = self.data.dataset
        return Client(client, outputs, (d.test_y if split == "test" else d.train_y)[index])

    def _fitted(self, asked: Mapping[int, Client]) -> Fitted:
        counts = self.data.label_counts()
        participants = [HeldOut(c.outputs, c.labels, counts[c.id].astype(np.float64)) for c in asked.values()]
        return fit(self.rule, participants) if self.summed is None else fit(self.rule, participants, self.summed)

    def _billed(self, fitted: Fitted, asked: Mapping[int, Client], round_: int) -> Fitted:
        examples = {client: len(one.labels) for client, one in asked.items()}
        spent = None if self.cost is None else self.cost(examples, fitted.sent, round_)
        return fitted if spent is None else fitted._replace(seconds=spent.seconds, joules=spent.joules)

    def _cross_fitted(self, asked: Mapping[int, Client], *, whole: bool) -> Iterator[ServedScores]:
        """Serve each participant by the rule as the others fit it."""
        for mine in folds(list(asked)):
            state = self._fitted({client: asked[client] for client in asked if client not in mine}).state
            inputs = self.inputs if whole else ()
            yield serve(self.rule, state, [asked[client] for client in mine], inputs, online=whole)


def folds(ids: Sequence[int]) -> list[Sequence[int]]:
    """Return the parts of participants, each of which is served by what the others contributed; none of a single one.

    Example:
        >>> folds([0, 1, 2, 3, 4, 5, 6])
        [[0, 5], [1, 6], [2], [3], [4]]
    """
    return [ids[fold::FOLDS] for fold in range(min(FOLDS, len(ids)))] if len(ids) > 1 else []

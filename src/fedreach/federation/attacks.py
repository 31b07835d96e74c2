"""Attacks: what malicious clients send instead of honest results.

Malicious clients are participants. They train on their own data, as honest clients do, and then change labels, updates
or reported numbers. Their evaluation and their part in the fit of an adaptation rule stay honest.
"""

# mypy: disable-error-code="empty-body"
# A method without a body is optional: it is called only where a class defines it.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.base import Component, name_of
from fedreach.federation.checks import erasing_updates, invalid_update, too_long
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.types import ClientResults, ServerView


class Attack(Component):
    """Base class of attacks: each method changes one thing that malicious clients send; all methods are optional.

    An attack with a method `collude` knows the updates of the honest clients of the round. On Flower, no client knows
    them, so the server app changes the updates of malicious clients when they arrive. Secure aggregation does not
    support such an attack.
    """

    component_type = "attack"
    abilities: ClassVar = {
        "changes_labels": ("labels",),
        "changes_updates": ("update",),
        "colludes": ("collude",),
        "claims_examples": ("examples",),
        "claims_labels": ("label_counts",),
        "claims_losses": ("loss",),
    }

    replays: bool = False  # sends the update that the client computes from the initial model in round 1
    changes_labels: bool = False
    changes_updates: bool = False
    colludes: bool = False
    claims_examples: bool = False
    claims_labels: bool = False
    claims_losses: bool = False

    def labels(self, labels: Ints, num_classes: int) -> Ints:
        """Return the (m,) classes on which a malicious client trains, given the classes of its training examples."""

    def update(self, update: Float32s, rng: np.random.Generator) -> Floats:
        """Return the (p,) update that a malicious client sends, given its honest update, without buffers.

        Args:
            rng: Random generator for this client and round.
        """

    def collude(self, honest: Floats) -> Floats:
        """Return the (p,) update that all malicious clients send, given the (h, p) updates of h >= 1 honest clients."""

    def examples(self, count: int) -> int:
        """Return the number of training examples that a malicious client claims to have."""

    def label_counts(self, counts: Ints) -> Ints:
        """Return the (c,) label counts that a malicious client claims, given its true label counts."""

    def loss(self, loss: float) -> float:
        """Return the loss that a malicious client reports, given the true loss."""


# -------------------- Attacks on updates


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sign flip: each malicious client sends ``-strength`` times its honest update.

    Use when: you need a simple attack. A strength of 1 keeps the length of honest updates. With 10, one of ten clients
    reverses the mean.

    Reference: Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
    Learning from Heterogeneous Datasets", AAAI 2019, section 5.

    Args:
        strength: Factor, positive.

    Example:
        >>> SignFlip(strength=10).update(np.array([1, -2], np.float32), np.random.default_rng(0))
        array([-10.,  20.])
    """

    strength: Annotated[float, "(0, inf)"] = 1.0

    def update(self, update: Float32s, rng: np.random.Generator) -> Floats:
        return -self.strength * update.astype(np.float64)


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Gaussian noise: each malicious client sends a random vector, on average `strength` times as long as its update.

    Use when: you study clients that are broken rather than clever. The noise is independent of the data.

    Reference: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017, section 5; here the deviation is relative to the client's update.

    Args:
        strength: Root mean square length of the noise relative to the length of the honest update, positive.

    Example:
        >>> noise = GaussianNoise(strength=3).update(np.ones(10_000, np.float32), np.random.default_rng(0))
        >>> bool(abs(np.linalg.norm(noise) / 300 - 1) < 0.05)
        True
    """

    strength: Annotated[float, "(0, inf)"] = 10.0

    def update(self, update: Float32s, rng: np.random.Generator) -> Floats:
        deviation = self.strength * np.linalg.norm(update.astype(np.float64)) / np.sqrt(max(1, len(update)))
        noise: Floats = deviation * rng.standard_normal(len(update))
        return noise


@dataclass(frozen=True)
class ALIE(Attack):
    """ALIE, a little is enough (Baruch et al., 2019): malicious clients send mean - z * deviation of honest updates.

    Mean and standard deviation are computed for each number of the update. So each number stays within the usual
    range, and rules that reject distant updates do not notice. As in byzfl, the attacker knows all honest updates of
    the round, and z is fixed. In the paper, the attacker estimates both from its own clients.

    Use when: you compare robust aggregators. This attack is among the strongest if honest updates differ much.

    Reference: Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
    NeurIPS 2019, Algorithm 3.

    Args:
        z: Number of standard deviations, positive.

    Example:
        >>> ALIE(z=1.5).collude(np.array([[1.0], [3.0]]))  # mean 2, deviation 1
        array([0.5])
    """

    z: Annotated[float, "(0, inf)"] = 1.5

    def collude(self, honest: Floats) -> Floats:
        sent: Floats = honest.mean(axis=0) - self.z * honest.std(axis=0)
        return sent


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Inner-product manipulation (Xie et al., 2020): malicious clients send ``-strength`` times the honest mean.

    The aggregate then has a negative inner product with the honest mean, if the aggregator gives enough weight to
    malicious clients.

    Use when: you compare robust aggregators. With a strength below 1, malicious updates are short, so rules that look
    for long updates do not notice. With a large strength, the attack reverses a plain mean.

    Reference: Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation",
    UAI 2020, section 4.

    Args:
        strength: Factor, called epsilon in the paper, positive.

    Example:
        >>> InnerProduct(strength=0.5).collude(np.array([[1.0], [3.0]]))
        array([-1.])
    """

    strength: Annotated[float, "(0, inf)"] = 0.5

    def collude(self, honest: Floats) -> Floats:
        sent: Floats = -self.strength * honest.mean(axis=0)
        return sent


@dataclass(frozen=True)
class Replay(Attack):
    """Replay: each malicious client sends, in each round, the update that it computes from the initial model.

    Use when: you study clients that send outdated results or do not train.

    Example:
        >>> Replay().replays
        True
    """

    replays = True


# -------------------- Attacks on data


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Label flip: malicious clients train with class c - 1 - y instead of y, for classes 0 to c - 1.

    Use when: you study wrong data that no check of a client's messages can find.

    Reference: Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX
    Security 2020, section 5.1.

    Example:
        >>> LabelFlip().labels(np.array([0, 1, 9]), 10)
        array([9, 8, 0])
    """

    def labels(self, labels: Ints, num_classes: int) -> Ints:
        return num_classes - 1 - labels


@dataclass(frozen=True)
class ModelReplacement(LabelFlip):
    """Model replacement (Bagdasaryan et al., 2020): label flip with updates multiplied by `boost`.

    If a malicious client has weight 1 / boost and other updates are small, the new global model is the model that this
    client trained with flipped labels.

    Use when: you study one malicious client that tries to determine the model. Bounds on norms make this harder.

    Reference: Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How To Backdoor Federated Learning", AISTATS 2020,
    equation 3; here the attacker's model is trained with flipped labels instead of a backdoor.

    Args:
        boost: Factor, positive; usually the number of clients in a round.

    Example:
        >>> ModelReplacement(boost=5).update(np.array([1, -2], np.float32), np.random.default_rng(0))
        array([  5., -10.])
    """

    boost: Annotated[float, "(0, inf)"] = 10.0

    def update(self, update: Float32s, rng: np.random.Generator) -> Floats:
        return self.boost * update.astype(np.float64)


# -------------------- False reports


@dataclass(frozen=True)
class FalseLoss(Attack):
    """False loss: malicious clients report this loss, before the selection and after training.

    Use when: you study selections or weightings that trust reported losses, such as `power_of_choice`.

    Args:
        value: Reported loss.

    Example:
        >>> FalseLoss().loss(0.3)
        1e+30
    """

    value: float = 1e30

    def loss(self, loss: float) -> float:
        return self.value


@dataclass(frozen=True)
class FalseLabels(Attack):
    """False labels: malicious clients claim equally many examples of each class, so their label entropy is maximal.

    Use when: you study selections or weightings that trust reported label counts or entropies, such as `entropy`.

    Example:
        >>> FalseLabels().label_counts(np.array([7, 0, 0]))
        array([3, 2, 2])
    """

    def label_counts(self, counts: Ints) -> Ints:
        quotient, remainder = divmod(int(counts.sum()), len(counts))
        return quotient + (np.arange(len(counts)) < remainder)


@dataclass(frozen=True)
class FalseExamples(Attack):
    """False number of examples: malicious clients claim `factor` times as many examples as they have.

    The server computes the number of local steps from the number of examples, so this number is false, too.

    Use when: you study weightings by numbers of examples or steps, such as `by_examples`.

    Args:
        factor: Factor, at least 1; products are rounded and at most 2^39.

    Example:
        >>> FalseExamples(factor=100).examples(7)
        700
    """

    factor: Annotated[float, "[1, inf)"] = 1000.0

    def examples(self, count: int) -> int:
        return round(min(self.factor * count, 2.0**39))


ATTACKS: Mapping[str, Any] = {
    "sign_flip": SignFlip,
    "gaussian_noise": GaussianNoise,
    "alie": ALIE,
    "inner_product": InnerProduct,
    "replay": Replay,
    "label_flip": LabelFlip,
    "model_replacement": ModelReplacement,
    "false_loss": FalseLoss,
    "false_labels": FalseLabels,
    "false_examples": FalseExamples,
}


# -------------------- Malicious clients of a federation


@dataclass(frozen=True, eq=False)
class Attackers:
    """The malicious clients of a federation, and what they send.

    Args:
        attack: Attack of all malicious clients.
        clients: Sorted ids of the malicious clients.
        seed: Seed of the run.
    """

    attack: Attack
    clients: Ints
    seed: int

    @classmethod
    def nobody(cls) -> Attackers:
        """Return the attackers of a federation in which all clients are honest."""
        return cls(Attack(), np.empty(0, np.int64), 0)

    @classmethod
    def draw(cls, attack: Attack, participants: Ints, share: float, seed: int) -> Attackers:
        """Draw round(share n) of the n participants, at least one.

        Raises:
            ConfigError: If the share is not above 0 and below 1.

        Example:
            >>> Attackers.draw(SignFlip(), np.arange(10, 30), 0.1, seed=0).clients
            array([12, 20])
        """
        if not 0 < share < 1:
            raise ConfigError(f"attack.share must be above 0 and below 1; got {share:g}.")
        count = cls.count(share, len(participants))
        return cls(attack, np.sort(generator(seed, "malicious").permutation(participants)[:count]), seed)

    @staticmethod
    def count(share: float, participants: int) -> int:
        """Return the number of malicious participants."""
        return max(1, round(share * participants))

    def among(self, ids: Ints) -> Bools:
        """Return (k,) whether each of these clients is malicious."""
        return np.isin(ids, self.clients)

    def check(self, federation: Federation, *, on_flower: bool = False) -> None:
        """Raise ConfigError if the federation does not support the attack."""
        if (self.attack.changes_updates or self.attack.replays) and federation.distributed_noise is not None:
            raise ConfigError(
                f"attack {name_of(self.attack)} changes updates, which clients of {name_of(federation.aggregation)} "
                "with secure aggregation clip themselves; a malicious client would not. Choose an attack on data, such "
                "as 'label_flip'."
            )
        if not self.attack.colludes:
            return
        if on_flower and federation.has_memory:
            raise ConfigError(
                f"attack {name_of(self.attack)} does not support components with stored vectors of clients on Flower, "
                "because the client does not know the update that it sends. Choose another attack, or use the "
                "simulator."
            )
        if federation.label_statistics.only_sum:
            raise ConfigError(
                f"attack {name_of(self.attack)} requires the updates of honest clients, which "
                f"{name_of(federation.label_statistics)} hides. Choose another attack."
            )

    def training_labels(self, labels: AnyArray, index: Ints, num_classes: int) -> AnyArray:
        """Return all training labels, with changed labels at the positions `index` of malicious clients' examples.

        Raises:
            ConfigError: If the attack changes labels, and the examples do not have one class each.
        """
        if not num_classes:
            raise ConfigError(
                f"attack {name_of(self.attack)} requires one class per example; the targets are something else. Choose "
                "another attack."
            )
        labels = labels.copy()
        labels[index] = self.attack.labels(labels[index], num_classes)
        return labels

    def examples(self, ids: Ints, counts: Ints) -> Ints:
        """Return the (k,) numbers of examples that clients claim."""
        if not self.attack.claims_examples:
            return counts
        pairs = zip(counts.tolist(), self.among(ids).tolist(), strict=True)
        return np.array([self.attack.examples(count) if malicious else count for count, malicious in pairs], np.int64)

    def label_counts(self, ids: Ints, counts: Ints) -> Ints:
        """Return the (k, c) label counts that clients claim."""
        if not self.attack.claims_labels:
            return counts
        pairs = zip(counts, self.among(ids).tolist(), strict=True)
        return np.stack([self.attack.label_counts(row) if malicious else row for row, malicious in pairs])

    def losses(self, ids: Ints, losses: Floats) -> Floats:
        """Return the (k,) losses that clients report."""
        if not self.attack.claims_losses:
            return losses
        pairs = zip(losses.tolist(), self.among(ids).tolist(), strict=True)
        return np.array([self.attack.loss(loss) if malicious else loss for loss, malicious in pairs])

    def with_attack(self, reports: ClientResults) -> ClientResults:
        """Return the client results with the updates and losses that malicious clients send."""
        malicious = self.among(reports.ids)
        if not malicious.any():
            return reports
        update = reports.update
        if self.attack.changes_updates:
            update = update.copy()
            for row in np.flatnonzero(malicious):
                rng = generator(self.seed, "attack", reports.round, int(reports.ids[row]))
                update[row, : reports.trainable] = self.attack.update(update[row, : reports.trainable], rng)
        losses = self.losses(reports.ids, reports.metrics["loss"])
        return replace(reports, update=update, metrics={**reports.metrics, "loss": losses})

    def with_collusion(self, reports: ClientResults) -> ClientResults:
        """Return the client results of a round with the updates of colluding clients, if any client is honest."""
        malicious = self.among(reports.ids)
        if not self.attack.colludes or not malicious.any() or malicious.all():
            return reports
        update = reports.update.copy()
        honest = update[~malicious, : reports.trainable].astype(np.float64)
        update[malicious, : reports.trainable] = self.attack.collude(honest)
        return replace(reports, update=update)

    def only_valid(
        self, reports: ClientResults, federation: Federation, state: FederationState, view: ServerView, rounds: int
    ) -> ClientResults:
        """Return the results without those that the server's checks reject, as on Flower.

        Under secure aggregation, the server cannot check them.
        """
        if federation.label_statistics.only_sum:
            return reports
        assert reports.steps is not None  # clients that train as asked
        local, p = federation.local, reports.trainable
        lr, models = local.lr_at(view.round, rounds), state.models[state.clusters[view.rows(reports.ids)]]
        largest, sizes = np.abs(reports.update).max(axis=1, initial=0), np.abs(models).max(axis=1, initial=0)
        reasons = erasing_updates(largest.astype(np.float64), sizes.astype(np.float64))
        for row in np.flatnonzero(self.among(reports.ids)):
            update, start = reports.update[row], models[row]
            if wrong := invalid_update(update):
                reasons[int(row)] = f"its 'update' {wrong}"
            elif wrong := too_long(local, update[:p], start[:p], int(reports.steps[row]), lr):
                reasons[int(row)] = wrong
        return reports.without({int(reports.ids[row]): reason for row, reason in reasons.items()})

"""How skewed a partition is: sizes, label entropy, divergence from the whole, effective classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Floats, Ints
from fedreach.data.partition.assignment import Partition


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """One number per client; nan where a client holds no samples and so has no class mix.

    With p_k the class mix of client k and p that of all samples together:
    entropy H(p_k) = -sum_c p_kc ln p_kc, divergence KL(p_k || p) = sum_c p_kc ln(p_kc / p_c), effective classes
    exp(H(p_k)): the number of equally frequent classes with the same entropy.
    """

    sizes: Ints  # (N,)
    entropy_nats: Floats  # (N,) from 0 to ln C
    divergence_nats: Floats  # (N,) 0 where the mix is that of the whole; always finite
    effective_classes: Floats  # (N,) from 1 to C

    def summary(self) -> dict[str, Any]:
        """Return counts, and min, median, mean and max of each number, as plain JSON values.

        The sizes are those of all clients, the other numbers those of the clients that hold samples.
        """
        held = self.sizes > 0
        return {
            "num_clients": int(self.sizes.size),
            "num_samples": int(self.sizes.sum()),
            "num_empty": int((~held).sum()),
            "size": _spread(self.sizes),
            "entropy_nats": _spread(self.entropy_nats[held]),
            "divergence_nats": _spread(self.divergence_nats[held]),
            "effective_classes": _spread(self.effective_classes[held]),
        }


def statistics(partition: Partition, labels: ArrayLike, num_classes: int) -> PartitionStatistics:
    """Return the skew of each of N clients, given the (n,) classes of the samples, which are below `num_classes`.

    Raises:
        DataError: If labels and partition do not belong together.

    Example:
        >>> p = Partition.from_owner([0, 0, 1, 1], num_clients=2, kind="natural")
        >>> s = statistics(p, [0, 1, 1, 1], num_classes=2)
        >>> s.effective_classes, s.divergence_nats.round(4)    # 2nd: ln(1 / 0.75)
        (array([2., 1.]), array([0.1438, 0.2877]))
    """
    counts = partition.label_counts(labels, num_classes)
    entropy = label_entropy(counts)
    sizes, whole = counts.sum(axis=1), counts.sum(axis=0) / counts.sum()
    mix = counts / np.maximum(sizes, 1)[:, None]
    # Where p_kc = 0 the summand is 0 (p ln p -> 0), so ln 1 stands in for ln 0.
    log_mix = np.log(np.where(mix > 0, mix, 1))
    log_whole = np.log(np.where(whole > 0, whole, 1))
    held = sizes > 0
    divergence = np.where(held, np.maximum((mix * (log_mix - log_whole)).sum(axis=1), 0), np.nan)
    return PartitionStatistics(sizes, entropy, divergence, np.exp(entropy))


def label_entropy(counts: Ints | Floats) -> Floats:
    """Return H_i = -sum_c p_ic ln p_ic in nats for (N, C) label counts, with 0 ln 0 = 0; nan for empty clients.

    Distributions, whose rows sum to 1, may stand for the counts.

    Example:
        >>> label_entropy(np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25]])).round(4)
        array([0.    , 0.6931, 1.2799, 1.3863])
    """
    sizes = counts.sum(axis=1)
    mix = counts / np.where(sizes > 0, sizes, 1)[:, None]
    entropy = -(mix * np.log(np.where(mix > 0, mix, 1))).sum(axis=1)
    return np.where(sizes > 0, np.maximum(entropy, 0), np.nan)


def _spread(values: Ints | Floats) -> dict[str, float]:
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }

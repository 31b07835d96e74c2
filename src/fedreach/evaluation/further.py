"""Metrics beside accuracy and loss: of single clients, of a population's clients, and of all of its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Float32s, Floats, Ints
from fedreach.data.positions import is_labeled, position_counts
from fedreach.evaluation.metrics import Metric, value_of
from fedreach.evidence.scores import worst_decile
from fedreach.federation.traits import Traits

Values = Mapping[str, Floats]
"""Name of a metric -> (n,) what it is of each client, nan where it is undefined."""


@dataclass(frozen=True, eq=False)
class SaidOfClients:
    """The samples of n clients, one client's after the other, and what models say of them."""

    truth: AnyArray  # (samples,) classes, or (samples, t) numbers
    said: Sequence[
        tuple[float, Float32s]
    ]  # (samples, c) or (samples, t) outputs of each model, which counts by its share
    sizes: Ints  # (n,) samples of each client

    @classmethod
    def of(cls, truth: AnyArray, said: Sequence[tuple[float, Float32s]], sizes: Ints) -> SaidOfClients:
        """Return samples as metrics see them: where labels stand at positions, labeled positions in place of samples.

        Args:
            truth: (samples,) classes, (samples, t) numbers, or (samples, positions...) classes.
            said: Outputs of each model, with an axis more for classes at positions.
            sizes: (n,) samples of each client.
        """
        if truth.ndim == 1 or truth.dtype.kind == "f":
            return cls(truth, said, sizes)
        labeled, starts = is_labeled(truth), np.cumsum(sizes) - sizes
        counts = np.add.reduceat(position_counts(truth), starts)
        return cls(truth[labeled], [(share, outputs[labeled]) for share, outputs in said], counts)

    def of_clients(self, metric: Metric) -> Floats:
        """Return the metric of each client."""
        ends = np.cumsum(self.sizes).tolist()
        return np.array([self._of(metric, slice(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)])

    def pooled(self, metric: Metric) -> float:
        """Return the metric of all samples together."""
        return self._of(metric, slice(None))

    def _of(self, metric: Metric, part: slice) -> float:
        if not all(np.isfinite(logits[part]).all() for _, logits in self.said):
            return np.nan
        truth = self.truth[part]
        return sum(
            share * value_of(metric, truth.copy(), logits[part].astype(np.float64)) for share, logits in self.said
        )


def further_columns(name: str, metric: Metric, values: Floats, pooled: float | None) -> dict[str, float]:
    """Return the columns of a metric, see `fedreach.evaluation.Evaluator`.

    Args:
        name: Of the population and the metric.
        metric: The metric.
        values: (n,) of each client, nan where it is undefined.
        pooled: Of all samples together; None: the population is one client, and has no worst decile either.
    """
    defined, columns = values[~np.isnan(values)], dict[str, float]()
    if len(defined):
        columns[name] = float(defined.mean())
    if len(defined) and pooled is not None:
        columns[f"{name}_worst_decile"] = worst_decile(defined, lower_is_better=Traits.of(metric).lower_is_better)
    if pooled is not None and not np.isnan(pooled):
        columns[f"{name}_pooled"] = pooled
    if len(defined) < len(values):
        columns[f"{name}_undefined"] = len(values) - len(defined)
    return {key: round(value, 9) for key, value in columns.items()}


def in_a_line(values: Values) -> dict[str, Any]:
    """Return what a line of ``clients.jsonl`` says of metrics, null where one is undefined; nothing without metrics.

    Example:
        >>> in_a_line({"auroc": np.array([0.75, np.nan])})
        {'metrics': {'auroc': [0.75, None]}}
        >>> in_a_line({})
        {}
    """
    found = {
        name: [None if np.isnan(value) else round(value, 6) for value in of_clients.tolist()]
        for name, of_clients in values.items()
    }
    return {"metrics": found} if found else {}

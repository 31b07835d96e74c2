"""Rows become predictions: by the model as it is, or each client's by a fitted rule and its own inputs.

It needs numpy alone, so that an exported model can take it along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedreach.arrays import AnyArray, Float32s, Floats, Ints
from fedreach.federation.serving.softmax import log_softmax
from fedreach.serving.adapter import Adapter
from fedreach.serving.rows import Rows
from fedreach.tables import csv_text, visible

LEAST = 1e-12  # probability of a true class in the log loss, as that of an impossible one has no logarithm


class AnswersModel(Protocol):
    """A model, wherever it runs, asked about samples as `SampleFormat.array` returns them."""

    def raw_logits(self, raw: AnyArray) -> Floats:
        """Return (m, c) logits of raw samples, or the (m, t) numbers that it predicts."""
        ...

    def raw_answers(self, raw: AnyArray) -> tuple[Floats, Floats | None, Float32s | None]:
        """Return logits, features and inputs: the arguments of `Adapter.fit`."""
        ...


@dataclass(frozen=True)
class Client:
    """One client, and how it was served."""

    name: str  # "" where the file does not tell clients apart
    rows: int
    decision: str | None  # "adapted", "repaired, adapted", "abstained" ...; None: by the model as it is
    scores: dict[str, float]  # of its labelled rows; empty without


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of m rows."""

    rows: Rows
    clients: tuple[Client, ...]
    outputs: Floats  # (m, c) probabilities, or (m, t) numbers
    classes: tuple[str, ...] | None  # (c,) names; None where numbers are predicted
    decisions: tuple[str, ...] | None  # (m,) how each row's client was served; None: by the model as it is
    scores: dict[str, float]  # of all labelled rows; empty without

    def table(self, client: str | None = None, targets: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return a row for each row: its client, the prediction, how it was served, a probability for each class.

        Args:
            client: What the column of clients is called; it is ``client`` where another column has that name.
            targets: What predicted numbers are called, where there are several.
        """
        columns: dict[str, Sequence[Any]] = {}
        if self.classes is None:
            width = self.outputs.shape[1]
            names = targets if len(targets) == width else [str(number) for number in range(width)]
            for number in range(width):
                columns["prediction" if width == 1 else f"prediction_{names[number]}"] = self.outputs[
                    :, number
                ].tolist()
        else:
            columns["prediction"] = [self.classes[number] for number in self.outputs.argmax(axis=1).tolist()]
            if self.decisions is not None:
                columns["decision"] = self.decisions
            for number, name in enumerate(self.classes):
                columns[f"p_{name}"] = self.outputs[:, number].tolist()
        if self.rows.clients is not None:
            own = client if client and client not in columns else "client"
            columns = {own: self.rows.clients, **columns}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def csv(self, client: str | None = None, targets: Sequence[str] = ()) -> str:
        """Return that table as CSV; nothing where there are no rows."""
        table = self.table(client, targets)
        return csv_text(table) if table else ""

    def lines(self) -> list[str]:
        """Return what became of the clients, for people."""
        header = ["client", "rows", "decision", *self.scores]
        body = [
            [visible(each.name) or "(all rows)", str(each.rows), each.decision or "plain"]
            + [_shown(name, each.scores.get(name)) for name in self.scores]
            for each in self.clients
        ]
        if len(self.clients) > 1 and self.scores:
            whole = [_shown(name, value) for name, value in self.scores.items()]
            body.append(["all", str(len(self.rows.samples)), "", *whole])
        widths = [max(map(len, cells)) for cells in zip(header, *body, strict=True)]
        return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (header, *body)]


def predictions(
    model: AnswersModel,
    rows: Rows,
    *,
    classes: Sequence[str] | None,
    outputs: int,
    new_adapter: Callable[[], Adapter] | None = None,
    mixes: bool = False,
) -> Predictions:
    """Return what a model says of rows; where there is a rule, each client is served by all its rows and no label.

    Args:
        model: The model.
        rows: The rows.
        classes: (c,) names; None where numbers are predicted.
        outputs: c, or how many numbers are predicted.
        new_adapter: Makes the adapter of a client; None: the model as it is.
        mixes: Whether the model mixes the examples of a batch, so that each client needs batches of its own.
    """
    found, plain = np.empty((len(rows.samples), outputs)), np.empty((len(rows.samples), outputs))
    decisions: list[str | None] = [None] * len(rows.samples)
    by_client = rows.by_client()
    if new_adapter is None and len(rows.samples):
        for mine in by_client.values() if mixes else [np.arange(len(rows.samples))]:
            said = model.raw_logits(rows.samples[mine])
            found[mine] = said if classes is None else np.exp(log_softmax(said))
    clients = []
    for name, mine in by_client.items():
        decision = None
        if new_adapter is not None:
            answers = model.raw_answers(rows.samples[mine])
            adapter = new_adapter().fit(*answers)
            found[mine], decision = adapter.predict_proba(*answers), adapter.decision_
            plain[mine] = np.exp(log_softmax(answers[0]))
            for row in mine.tolist():
                decisions[row] = decision
        clients.append((name, mine, decision))
    beside = None if new_adapter is None else plain
    return Predictions(
        rows,
        tuple(Client(name, len(mine), how, _scores(rows, found, beside, mine, classes)) for name, mine, how in clients),
        found,
        None if classes is None else tuple(classes),
        None if new_adapter is None else tuple(str(each) for each in decisions),
        _scores(rows, found, beside, np.arange(len(found)), classes),
    )


def _scores(
    rows: Rows, outputs: Floats, plain: Floats | None, mine: Ints, classes: Sequence[str] | None
) -> dict[str, float]:
    """Return how right predictions of some rows are, as far as these have labels."""
    if rows.labels is None:
        return {}
    labels = rows.labels[mine]
    if classes is None:
        there = ~np.isnan(labels).any(axis=1)
        errors = outputs[mine][there] - labels[there]
        return {} if not len(errors) else {"mae": float(abs(errors).mean()), "rmse": float((errors**2).mean() ** 0.5)}
    there = labels >= 0
    if not there.any():
        return {}
    labels, scores = labels[there], {}
    for head, p in (("", outputs[mine][there]), *((("plain_", plain[mine][there]),) if plain is not None else ())):
        scores[f"{head}accuracy"] = float((p.argmax(axis=1) == labels).mean())
        own = np.maximum(p[np.arange(len(labels)), labels], LEAST)
        scores[f"{head}log_loss"] = float(-np.log(own).mean())
    return scores


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if name.endswith("accuracy") else f"{value:.4g}"

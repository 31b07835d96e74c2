"""What the server sees of clients: all that they send, or what a secure sum leaves of it.

A simulation knows everything, and hands policies what they would see on a real network, where clients compute with
their labels and scale their updates themselves.
"""

from dataclasses import replace
from typing import cast

import numpy as np

from fedreach.federation.aggregation.secure_sum import weighted_mean_of_shares
from fedreach.federation.federation import Federation
from fedreach.federation.protocols import ClientsOwn
from fedreach.federation.values import ClientView, Reports
from fedreach.replacing import replaced

KNOWN_OPENLY = ("num_examples", "loss", "draws", "steps")  # metrics that the server knows under a secure sum, too


def visible_view(federation: Federation, view: ClientView) -> ClientView:
    """Return the view as policies see it: under a secure sum without what clients know of their labels.

    The length of the run is told to those only that say that they read it: the others decide the same in a longer one.
    """
    if view.rounds is not None and not federation.traits["selection"].reads_length:
        view = replaced(view, rounds=None)
    if not federation.label_statistics.only_sum:
        return view
    return replace(view, label_counts=None, label_entropy=None)


def visible_reports(federation: Federation, reports: Reports) -> Reports:
    """Return the reports as the server sees them.

    Under a secure sum it sees the weighted mean of the updates, and of each client its number of examples, its loss
    and the steps that it was asked for: `update` is (r, 0), and there are no measurements, labels or notes.
    """
    if not federation.label_statistics.only_sum or reports.secure_mean is not None:
        return reports
    mean = None
    if len(reports.ids):
        raw = np.asarray(cast(ClientsOwn, federation.weighting).raw(reports.metrics))
        mean = weighted_mean_of_shares(raw, reports.update)
    return replace(
        reports,
        update=reports.update[:, :0],
        metrics={name: reports.metrics[name] for name in KNOWN_OPENLY if name in reports.metrics},
        label_counts=None,
        steps=None,
        note=None,
        secure_mean=mean,
    )

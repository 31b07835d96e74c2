"""What a round costs in bytes."""

import numpy as np

from fedreach.arrays import Bools
from fedreach.federation.federation import Federation
from fedreach.federation.values import ClientView, Reports, Selection

BYTES_PER_NUMBER = 4
REPORT_SCALARS = 2  # a report carries num_examples and loss beside the update and what was measured


def report_numbers(federation: Federation, d: int) -> int:
    """Return how many numbers a report carries beside its note, for a model of d."""
    return d + REPORT_SCALARS + len(federation.measurements())


def note_numbers(federation: Federation, p: int) -> int:
    """Return how many numbers the second message of a report carries, of p that are trained; mostly none."""
    solver = federation.memory_solver
    return p * (solver is not None and solver.sends_note)


def count_constants(view: ClientView, selection: Selection, holds: Bools | None) -> tuple[Bools | None, int, int]:
    """Return who holds the model's constants after a round, the bytes of those sent in it, and the part of a probe.

    A client is sent them once, with the first model that it is sent, for a probe or to train. `holds` says who has
    them; None: the model has none. Nothing is sent back.

    Example:
        >>> from dataclasses import replace
        >>> view = replace(ClientView.of(np.arange(3), np.ones(3, np.int64)), constant_bytes=100)
        >>> count_constants(view, Selection(np.array([0, 2])), np.array([True, False, False]))
        (array([ True, False,  True]), 100, 0)
    """
    if holds is None:
        return None, 0, 0
    asked = view.probed.copy()
    asked[view.rows(selection.ids)] = True
    new, probed = int((asked & ~holds).sum()), int((view.probed & ~holds).sum())
    return holds | asked, new * view.constant_bytes, probed * view.constant_bytes


def count_bytes(
    federation: Federation, number: int, view: ClientView, selection: Selection, reports: Reports, d: int
) -> tuple[int, int, int]:
    """Return (down, up, probe) bytes of a round; those of the probe are part of the other two.

    A probed client holds the model already: it is not sent again to the cohort, and a client that was probed for its
    update does not send it twice. In round 1 facts about labels are sent. The model has d numbers, trained ones and
    averaged buffers; `reports` are those that count.
    """
    solver = federation.memory_solver
    p = d if reports.trainable is None else reports.trainable
    model = d + p * (solver is not None and solver.sends_state)
    report, note = report_numbers(federation, d), note_numbers(federation, p)

    sent = view.sent_update
    asked = int(np.count_nonzero(view.probed))
    probe_down, probe_up = asked * model, asked if sent is None else int(sent.sum()) * report
    holds = int(np.count_nonzero(view.probed[view.rows(selection.ids)])) if asked else 0
    done = 0 if sent is None else int(sent[view.rows(reports.ids)].sum())
    down = (len(selection.ids) - holds) * model + probe_down
    up = (len(reports.ids) - done) * report + len(reports.ids) * note + probe_up
    if number == 1 and federation.needs() and not federation.label_statistics.only_sum:
        up += sum(array.size for array in (view.label_counts, view.label_entropy) if array is not None)
    return down * BYTES_PER_NUMBER, up * BYTES_PER_NUMBER, (probe_down + probe_up) * BYTES_PER_NUMBER

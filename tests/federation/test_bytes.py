"""What a round costs, in bytes worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.round import conclude_round, conclude_server_round
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection import SELECTIONS
from fedreach.federation.selection.random import FunctionSelection
from fedreach.federation.solvers import FedAvg, Scaffold
from fedreach.federation.types import Cohort
from fedreach.federation.weighting import ByEntropy

from .small import D, conclude, federation, make_reports, make_view, start

MODEL = 4 * D
REPORT = MODEL + 8  # with the number of examples and the loss


def probed(view, ids):
    return replace(view, probed=np.isin(view.ids, ids), loss=np.ones(len(view.ids)))


@pytest.mark.parametrize(
    ("asked", "cohort", "down", "up", "for_probe"),
    [
        ([], [0, 1], 2 * MODEL, 2 * REPORT, 0),
        ([0, 1, 2], [0, 1], 3 * MODEL, 2 * REPORT + 3 * 4, 3 * MODEL + 3 * 4),  # the cohort already holds the model
        ([0, 1, 2], [2, 3], 4 * MODEL, 2 * REPORT + 3 * 4, 3 * MODEL + 3 * 4),  # client 3 does not
        ([5], [0, 1, 2], 4 * MODEL, 3 * REPORT + 4, MODEL + 4),
    ],
)
def test_bytes_are_those_of_models_reports_and_probes(asked, cohort, down, up, for_probe):
    _, report = conclude(federation(cohort_size=3), cohort, probed(make_view(), asked))
    assert (report.bytes_down, report.bytes_up, report.probe_bytes) == (down, up, for_probe)


@pytest.mark.parametrize("solver", [FedAvg(), Scaffold()], ids=repr)
def test_a_probe_for_updates_counts_each_model_update_and_constant_once(solver):
    """Clients 0, 1 and 2 are asked, 2 does not reply; then 0, 2 and 3 are chosen: only 3 lacks the model."""
    chosen = replace(federation(cohort_size=3), solver=solver)
    view = replace(probed(make_view(), [0, 1, 2]), sent_update=np.isin(np.arange(6), [0, 1]), constant_bytes=100)
    reports = replace(make_reports([0, 2, 3]), note=np.zeros((3, D), np.float32))
    _, report = conclude_round(chosen, start(chosen, view), view, Cohort(reports.ids), reports)
    sends = solver == Scaffold()  # c with each model, and with each report that counts the change of c_i
    model, note = (MODEL + 4 * D * sends, 4 * D * sends)
    assert report.probe_bytes == 3 * (model + 100) + 2 * REPORT
    assert report.bytes_down == 4 * (model + 100)
    assert report.bytes_up == 4 * REPORT + 3 * note  # of 0 and 1 in the probe, of 2 and 3 after it


def test_a_client_that_is_lost_got_the_model_and_reported_nothing():
    chosen, view = federation(), make_view()
    reports = replace(make_reports([1]), lost={4: "its battery is empty"})
    _, report = conclude_round(chosen, start(chosen, view), view, Cohort(np.array([1, 4])), reports)
    assert (report.bytes_down, report.bytes_up) == (2 * MODEL, REPORT)
    assert report.lost == {4: "its battery is empty"}


@pytest.mark.parametrize(
    ("facts", "numbers"),
    [((), 0), (("label_entropy",), 6), (("label_counts",), 18), (("label_counts", "label_entropy"), 24)],
)
def test_facts_are_counted_once_in_round_one_for_every_participant(facts, numbers):
    def mine(view, k, rng):
        return view.ids[:k]

    mine.needs = facts
    chosen, view = federation(FunctionSelection(mine)), make_view(facts=facts)
    first, report = conclude(chosen, [0, 1], view)
    assert report.bytes_up == 2 * REPORT + 4 * numbers
    _, report = conclude(chosen, [0, 1], view, first)
    assert report.bytes_up == 2 * REPORT
    # They are sent as the federation begins, also where the server trains in round 1.
    state = start(chosen, view)
    for sent in (4 * numbers, 0):
        state, report = conclude_server_round(chosen, state, view, state)
        assert (report.bytes_down, report.bytes_up, report.probe_bytes) == (0, sent, 0)


def test_a_fact_that_selection_and_weighting_both_need_is_sent_once():
    chosen, view = federation(SELECTIONS["entropy_topk"](), ByEntropy()), make_view(facts=("label_entropy",))
    assert chosen.needs() == {"label_entropy"}
    assert conclude(chosen, [0, 1], view)[1].bytes_up == 2 * REPORT + 4 * 6


def test_secure_aggregation_sends_words_of_64_bits_keys_and_shares():
    """Of three clients, one is lost after it sent its keys and shares. Texts in hexadecimal have two letters a byte."""
    secure, view = replace(federation(cohort_size=3), label_statistics=SecureAggregation(threshold=0.5)), make_view()
    reports = replace(make_reports([0, 1]), lost={4: "its battery is empty"})
    _, report = conclude_round(secure, start(secure, view), view, Cohort(np.array([0, 1, 4])), reports)
    keys, sealed, revealed = 2 * 2 * 32, 2 * (12 + 2 * 33 + 16), 2 * 33
    assert report.bytes_down == 3 * MODEL + 3 * 3 * (keys + sealed)
    assert report.bytes_up == 2 * (8 * (D + 1) + 8) + 3 * keys + 3 * 3 * sealed + 2 * 3 * revealed

"""What travels is what is trained: bytes of a round with a frozen body, counted by hand."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr

INPUTS, RANK, CLASSES = 64, 2, 10


class Adapted(nn.Module):
    """A frozen linear layer with a trained update of low rank (LoRA), and a mask of booleans."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(INPUTS, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(INPUTS, RANK, bias=False), nn.Linear(RANK, CLASSES, bias=False)
        self.register_buffer("mask", torch.ones(INPUTS, dtype=torch.bool))

    def forward(self, x):
        x = x.flatten(1) * self.mask
        return self.base(x) + self.up(self.down(x))


TRAINED = INPUTS * RANK + RANK * CLASSES
FROZEN_BYTES = 4 * (INPUTS * CLASSES + CLASSES) + INPUTS  # and a byte for each boolean
REPORT = 4 * (TRAINED + 2)  # its update, number of examples and loss


def rows_of(tmp_path, method, rounds, cohort_size, participants=4):
    data = fr.load("digits").partition("iid", clients=6, participants=participants)
    list(fr.run(data, method, model=Adapted, rounds=rounds, cohort_size=cohort_size, out=tmp_path / "run"))
    return [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()][1:]


def test_adapters_travel_each_round_and_the_frozen_body_once(tmp_path):
    rows = rows_of(tmp_path, fr.Method(), rounds=3, cohort_size=4)  # everybody takes part in each round
    assert [row["bytes_up"] for row in rows] == [4 * REPORT] * 3
    assert [row["bytes_down"] for row in rows] == [4 * (4 * TRAINED + FROZEN_BYTES), *[4 * 4 * TRAINED] * 2]


def test_a_client_is_sent_the_frozen_body_when_it_is_first_asked(tmp_path):
    rows, seen = rows_of(tmp_path, fr.Method(), rounds=5, cohort_size=2), set()
    for row in rows:
        new = set(row["cohort"]) - seen
        assert row["bytes_down"] == 2 * 4 * TRAINED + len(new) * FROZEN_BYTES
        seen |= new
    assert len(seen) > 2


def test_a_probed_client_is_sent_the_frozen_body_by_the_probe(tmp_path):
    rows = rows_of(tmp_path, fr.Method(selection={"name": "power_of_choice", "candidates": 4}), rounds=2, cohort_size=2)
    assert rows[0]["bytes_down"] == 4 * (4 * TRAINED + FROZEN_BYTES)
    assert rows[1]["bytes_down"] == 4 * 4 * TRAINED
    probe = 4 * 4 * (TRAINED + 1)
    assert [row["probe_bytes"] for row in rows] == [probe + 4 * FROZEN_BYTES, probe]


@pytest.mark.parametrize("solver", ["fedavg", "scaffold"])
def test_a_run_that_is_resumed_counts_the_frozen_body_no_second_time(solver, tmp_path):
    data = fr.load("digits").partition("iid", clients=6, participants=4)
    given = {"model": Adapted, "rounds": 4, "cohort_size": 4}
    whole = list(fr.run(data, fr.Method(solver=solver), out=tmp_path / "whole", **given))
    rows = fr.run(data, fr.Method(solver=solver), out=tmp_path / "cut", **given)
    for _ in range(2):
        next(rows)
    rows.close()
    resumed = list(fr.run(data, fr.Method(solver=solver), out=tmp_path / "cut", **given))
    assert [row["bytes_down"] for row in resumed] == [row["bytes_down"] for row in whole]
    assert np.isclose(resumed[-1]["train_loss"], whole[-1]["train_loss"])

"""Cohorts as large as those of another method of the comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.compare import compare, plan
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.experiment.workers import ComparisonStatus, Scheduler
from fedreach.federation.costs import cohort_amount
from fedreach.federation.round import _select, plan_round
from fedreach.federation.types import CohortSchedule
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import RoundRow, RunRecord
from fedreach.testing.problems import tiny_simulation

from .inline import Here, Inline

DRAWN = ["methods.drawn.selection=poisson", "methods.uniform.cohort_size.as=drawn", "evaluation.every=4"]


def compared(home: Path, *overrides: str, out: str = "x", **options: Any) -> ComparisonStatus:
    experiment = load(home / "tiny.toml", [*DRAWN, *overrides])
    return compare(experiment, out=home / out, base=home, executor=Inline(), **options)


def rows(home: Path, method: str, seed: int, out: str = "x") -> list[RoundRow]:
    folder = RunFolder(home / out / "runs" / method / f"seed-{seed}")
    return [row for row in folder.records(RoundRow) if row.round]


def counts(home: Path, method: str, seed: int, out: str = "x") -> list[int]:
    return [len(row.cohort) + len(row.lost) for row in rows(home, method, seed, out)]


def test_each_round_has_as_many_clients_as_that_round_of_that_seed(home: Path) -> None:
    assert not compared(home).failed
    drawn = [counts(home, "drawn", seed) for seed in (0, 1)]
    assert [counts(home, "uniform", seed) for seed in (0, 1)] == drawn
    assert drawn[0] != drawn[1], "else a schedule of the other seed would pass"
    assert drawn[0] != drawn[0][1:] + drawn[0][:1], "else a schedule of the round before would pass"
    assert counts(home, "entropy", 0) == [3] * 4


def test_a_run_holds_its_schedule_and_is_repeated_without_the_other(home: Path) -> None:
    compared(home)
    folder = home / "x" / "runs" / "uniform" / "seed-0"
    config = RunFolder(folder).required(RunRecord).config
    assert config["method"]["cohort_size"] == {"as": "drawn", "equal": "clients", "amounts": counts(home, "drawn", 0)}
    alone = load(folder / "run.json")
    run(alone, seed=0, folder=home / "alone", base=home, method="uniform")
    assert (home / "alone" / "rounds.jsonl").read_bytes() == (folder / "rounds.jsonl").read_bytes()


def test_a_finished_comparison_is_not_run_again_and_a_follower_resumes(home: Path) -> None:
    compared(home)
    followed = home / "x" / "runs" / "uniform" / "seed-0"
    before = (followed / "rounds.jsonl").read_bytes()
    assert compared(home).skipped == 6
    (followed / "result.json").unlink()
    status = compared(home)
    assert (status.skipped, status.failed) == (5, {})
    assert (followed / "rounds.jsonl").read_bytes() == before


def test_a_chain_is_run_from_its_end(home: Path) -> None:
    e = load(home / "tiny.toml", [*DRAWN, "methods.entropy.cohort_size={as='uniform'}"])
    assert [job.method for job in plan(e, home)] == ["drawn", "uniform", "entropy"] * 2
    assert not compared(home, "methods.entropy.cohort_size={as='uniform'}", "seeds=[0]").failed
    assert counts(home, "entropy", 0) == counts(home, "drawn", 0)


def test_a_follower_waits_for_its_run_and_shares_training_with_the_same_followers_only(home: Path) -> None:
    """Two cells of a sweep have the same follower, whose schedule differs; two adaptations have the same training."""
    adapted = "methods.entropy={cohort_size={as='drawn'}, adaptation='label_shift'}"
    jobs = plan(load(home / "tiny.toml", [*DRAWN, adapted, "seeds=[0]"]), home)
    drawn, uniform, entropy = jobs
    (other,) = (j for j in plan(load(home / "tiny.toml", [*DRAWN, "methods.drawn.cohort_size=5", "seeds=[0]"]), home)
                if j.method == "uniform")  # fmt: skip
    assert other.experiment == uniform.experiment
    assert other.training != uniform.training == entropy.training
    scheduler = Scheduler([], jobs, ComparisonStatus(jobs), home, home)
    scheduler.waiting, scheduler.busy = [uniform, entropy], {Here(): drawn}
    assert scheduler._next() is None
    scheduler.busy, scheduler.status.finished = {}, [drawn]
    assert scheduler._next() is uniform


def test_each_cell_of_a_sweep_follows_its_own_run(home: Path) -> None:
    assert not compared(home, "sweep={'methods.drawn.cohort_size'=[2, 5]}", "seeds=[0]").failed
    cells = [f"x/cells/methods.drawn.cohort_size={k}" for k in (2, 5)]
    drawn = [counts(home, "drawn", 0, cell) for cell in cells]
    assert [counts(home, "uniform", 0, cell) for cell in cells] == drawn
    assert drawn[0] != drawn[1], "else training of the other cell could have been reused"


def test_a_follower_fails_in_words_if_the_other_run_failed_or_was_short(home: Path) -> None:
    (home / "bad.py").write_text("def bad(view, k, rng):\n    raise ValueError('no')\n", encoding="utf-8")
    status = compared(home, "methods.drawn.selection=bad.py:bad", "seeds=[0]")
    causes = {job.method: cause for job, cause in status.failed.items()}
    assert "methods.uniform.cohort_size: needs 4 rounds of drawn, seed 0, which did not finish" in causes["uniform"]
    assert [job.method for job in status.finished] == ["entropy"]
    status = compared(home, "budget.megabytes=0.01", "seeds=[0]", out="short")
    (cause,) = status.failed.values()
    assert "needs 4 rounds of drawn, seed 0, which has" in cause


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["methods.uniform.cohort_size.as=drwn"], r"cohort_size\.as: must name .*'drwn'\. Did you mean 'drawn'"),
        (["methods.drawn.cohort_size={as='uniform'}"], r"a cohort size of its own; got drawn -> uniform -> drawn"),
        (["method.cohort_size={as='drawn'}"], r"a cohort size of its own; got drawn -> drawn"),
        (["methods.uniform.selection=full"], "cohort_size cannot be that of the method 'drawn': Full decides how many"),
        (["methods.uniform.cohort_size.equal=joules"], r"joules need a section `\[radio\]`"),
        (["methods.uniform.cohort_size.equal=epochs"], r"must be 'clients', 'examples', 'bytes', 'seconds' or"),
        (
            ["methods.uniform.cohort_size.equal=bytes", "methods.uniform.selection=power_of_choice"],
            "PowerOfChoice asks clients before the size of the cohort is known",
        ),
        (["tune={'local.lr'=[0.1, 0.2]}"], "cohort_size: must be a number if settings are tuned"),
        (["methods.uniform.cohort_size.amounts=[2, 3]"], "must have an amount for each of the 4 rounds; got 2"),
        (
            ["methods.uniform.aggregation={name='dp_fedavg',clip=1.0,noise_multiplier=1.0,delta=1e-5}"],
            "DPFedAvg accounts for cohorts of a fixed size",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_equal_is_refused_before_the_first_round(home: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(home / "tiny.toml", [*DRAWN, *overrides])


def test_a_run_alone_is_refused(home: Path) -> None:
    resolved = load(home / "tiny.toml", DRAWN).resolved("uniform")
    with pytest.raises(ConfigError, match="that of the method 'drawn', which only a comparison knows"):
        run(resolved, seed=0, folder=home / "alone", base=home)
    with pytest.raises(ConfigError, match=r"method\.cohort_size\.as: must name another method of the comparison"):
        load(None, ["methods={}", "method.cohort_size.as=csra"])


def test_flower_runs_a_schedule_of_clients_but_has_no_other_methods(home: Path) -> None:
    pytest.importorskip("flwr")
    from fedreach.flower.experiment import FlowerExperiment

    schedule = "methods.uniform.cohort_size={as='drawn', amounts=[1, 3, 2, 2]}"
    for overrides, says in (
        (DRAWN, r"method\.cohort_size\.as has no effect on Flower: a run on Flower has no other methods"),
        ((*DRAWN, schedule, "methods.uniform.cohort_size.equal=bytes"), r"method\.cohort_size\.equal has no effect"),
    ):
        with pytest.raises(ConfigError, match=says):
            FlowerExperiment(home / "tiny.toml", overrides=tuple(overrides), method="uniform")
    runs = FlowerExperiment(home / "tiny.toml", overrides=(*DRAWN, schedule), method="uniform")
    assert runs.simulation.federation.schedule == CohortSchedule("drawn", (1, 3, 2, 2))


def test_a_follower_is_not_extended_by_itself(home: Path) -> None:
    from fedreach._util.errors import RunFolderError
    from fedreach.experiment.extend import extend_comparison

    compared(home, "seeds=[0]")
    with pytest.raises(RunFolderError, match="as large as those of drawn, which is known for 4 rounds"):
        extend_comparison(home / "x", 6, base=home, executor=Inline())
    assert not extend_comparison(home / "x", 6, base=home, executor=Inline(), restart=True).failed
    assert len(counts(home, "drawn", 0)) == 6
    assert counts(home, "uniform", 0) == counts(home, "drawn", 0)


@pytest.mark.parametrize("unit", ["examples", "bytes", "seconds", "joules"])
def test_as_much_of_another_amount(home: Path, unit: str) -> None:
    """The amounts in the rows are those of the other method, up to half of what one more client changes."""
    assert not compared(home, "radio={}", f"methods.uniform.cohort_size.equal={unit}", "seeds=[0]").failed
    ours, theirs = rows(home, "uniform", 0), rows(home, "drawn", 0)
    sizes = json.loads((home / "x" / "runs" / "uniform" / "seed-0" / "run.json").read_text("utf-8"))
    amounts = sizes["config"]["method"]["cohort_size"]["amounts"]
    for row, other, amount in zip(ours, theirs, amounts, strict=True):
        if unit == "examples":
            assert amount == sorted(other.cohort)
        elif unit == "bytes":
            assert amount == other.bytes_down + other.bytes_up
            assert row.bytes_down + row.bytes_up == amount  # each client costs the same
        else:
            assert amount == getattr(other, unit)
        assert bool(row.cohort) == bool(other.cohort)


@pytest.mark.parametrize("unit", ["examples", "bytes"])
def test_the_nearest_of_the_last_two_cohorts_is_chosen(unit: str) -> None:
    simulation = tiny_simulation()
    state = simulation.start()
    view = simulation.view(state)

    def amount_of(k: int) -> float:
        return cohort_amount(simulation.federation, state, view, _select(simulation.federation, state, view, k), unit)

    amounts = [0.0, *(amount_of(k) for k in range(1, int(view.available.sum()) + 1))]
    for wanted in [*np.linspace(0.0, 1.2 * max(amounts), 41), sum(amounts[1:3]) / 2]:  # the last is a tie
        goal: Any = (wanted,)
        federation = replace(simulation.federation, schedule=CohortSchedule("other", goal, unit))
        cohort = plan_round(federation, state, view)
        reached = next((k for k, amount in enumerate(amounts) if amount >= wanted), len(amounts) - 1)
        before = max(reached - 1, min(1, reached))
        nearer = before if wanted - amounts[before] <= amounts[reached] - wanted else reached
        assert len(cohort.ids) == nearer, f"{wanted} of {amounts}"


def test_a_run_of_the_command_without_other_methods_is_refused_before_it_starts(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'csra'\. A single run has no other methods; use a number"):
        load(None, ["method.cohort_size={as='csra'}"], alone=True)

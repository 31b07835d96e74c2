"""However many threads the numeric library of a process has, a run decides with one and gives the same bytes."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

PART = """
from dataclasses import dataclass

from threadpoolctl import threadpool_info

import fedreach as fr
from fedreach.federation.types import Cohort


@dataclass(frozen=True)
class Noting(fr.Selection):
    def select(self, state, view, k, rng):
        blas = sorted({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
        return Cohort(view.ids[:k], remark=f"threads {blas}")
"""
EXPERIMENT = """
rounds = 2
seeds = [0, 1]
model = { name = "linear" }
partition = { name = "iid", clients = 12 }
method = { cohort_size = 3, selection = "own.py:Noting" }
engine = { name = "sequential" }
methods = { a = {}, b = { weighting = "equal" } }
"""


def on_all_cores():
    """Undo that a test process has one core: on that one numeric libraries have one thread, whatever they are told."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count()))


def python(folder, threads, *arguments):
    """Run Python where numeric libraries have so many threads unless they are told otherwise."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["OPENBLAS_NUM_THREADS"] = str(threads)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=on_all_cores,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_python(code):
    """Return a program that loads numpy, and with it its threads, before FedReach."""
    return "-c", "import numpy\n" + textwrap.dedent(code)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "fedreach", "run", "e.toml", "--method", "a", "--out", "out/a", "-q"),
        ("-m", "fedreach", "compare", "e.toml", "--out", "out", "--workers", "2", "--formats", "none", "-q"),
        in_python(
            """
            from pathlib import Path
            from fedreach.experiment.load import load
            from fedreach.experiment.run import run

            run(load(Path("e.toml")).resolved("a"), seed=0, folder=Path("out"), base=Path.cwd())
            """
        ),
    ],
    ids=["run", "compare", "in Python"],
)
def test_every_process_of_a_run_decides_with_one_thread(arguments, tmp_path):
    (tmp_path / "own.py").write_text(PART)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    python(tmp_path, 2, *arguments)
    rows = [json.loads(line) for file in tmp_path.rglob("rounds.jsonl") for line in file.read_text().splitlines()]
    remarks = [row["remark"] for row in rows if row["round"]]
    assert set(remarks) == {"threads [1]"}
    assert len(remarks) >= 2


@pytest.mark.slow
def test_hulls_and_nearest_rows_are_the_same_bytes_with_one_thread_and_with_two(tmp_path):
    program = in_python(
        """
        import sys
        from pathlib import Path
        from fedreach.experiment.load import load
        from fedreach.experiment.run import run

        for selection in ("minimax", "convex_hull", "hull_distance"):
            options = ["rounds=2", "population.participants=60", "partition.clients=60", "method.cohort_size=20"]
            options += [f"method.selection={selection}", "model={name='mlp',hidden=[100]}", "engine.name=sequential"]
            experiment = load(None, options).resolved()
            run(experiment, seed=0, folder=Path(sys.argv[1], selection), base=Path.cwd())
        """
    )
    for threads in (1, 2):
        python(tmp_path, threads, *program, str(threads))
    found = [
        {
            file.relative_to(tmp_path / threads): file.read_bytes()
            for file in (tmp_path / threads).rglob("*")
            if file.is_file() and file.name not in ("timing.jsonl", "run.json", ".lock")
        }
        for threads in ("1", "2")
    ]
    assert len(found[0]) > 9
    assert found[0] == found[1]


def test_a_number_of_threads_that_a_user_chose_is_put_back(tmp_path):
    code = """
    import os
    from threadpoolctl import threadpool_info
    from fedreach._util.processes import one_thread

    def now():
        blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        return sorted(blas), os.environ.get("OMP_NUM_THREADS"), os.environ["OPENBLAS_NUM_THREADS"]

    with one_thread():
        print(now())
    print(now())
    """
    assert python(tmp_path, 2, *in_python(code)).splitlines() == ["([1], '1', '1')", "([2], None, '2')"]

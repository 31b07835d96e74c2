"""Ctrl-C is heard within a second, whatever is at work: a real signal to a process of its own, and the clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Start, wait_until

SECONDS = 1.0
TRIES = 3  # on a machine that does other things, the best counts

BEGIN = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
import numpy as np
"""

ENGINE = """
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import federate
from fedreach.data.assignment import Partition
from fedreach.engines.choice import build_engine
from fedreach.engines.protocols import Task
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg
from fedreach.engines.models.networks import build

n = 200_000
x, y = np.ones((n, 2), np.float32), np.arange(n) % 2
data = federate(from_arrays(x, y, name="large"), Partition.from_owner(np.zeros(n, int), 1, "iid"), seed=0)
local = LocalSGD(batch_size=100, epochs=10_000)
engine = build_engine("ENGINE", Task(build("linear", (2,), 2, seed=0), data, FedAvg(), local, 0), threads=THREADS)
"""
TRAIN = ENGINE + "print('go', flush=True)\nengine.train(engine.initial, np.array([0]), 1, 0.1)\n"
LONG = {
    "native training of one client": TRAIN.replace("ENGINE", "native").replace("THREADS", "1"),
    "training step by step": TRAIN.replace("ENGINE", "sequential").replace("10_000", "10").replace("THREADS", "1"),
    "evaluation": ENGINE.replace("ENGINE", "native").replace("THREADS", "1").replace('"linear"', '"mlp"')
    + "index = np.tile(np.arange(n), 50)\nprint('go', flush=True)\nengine.predict(engine.initial, 'train', index)\n",
    "hashing": "from fedreach.data.datasets import content_hash\n"
    "print('go', flush=True)\ncontent_hash(np.zeros(2 * 10**10, np.uint8))\n",
    "drawing a partition": "from fedreach.data.partition import dirichlet_by_client\n"
    "from fedreach._util.streams import generator\nlabels = np.arange(1_000_000) % 100\nprint('go', flush=True)\n"
    "while True: dirichlet_by_client(labels, 10_000, generator(0, 'partition'), alpha=0.1)\n",
    "allocation": "from fedreach.cli import main\nrows = np.random.default_rng(0).uniform(1, 2, (40_000, 4))\n"
    "open('c.csv', 'w').write('num_examples,upload_seconds,power_watts,cycles,max_hertz\\n' + ''.join(\n"
    "    f'{int(100 * a)},{b},{c / 10},{d}e8,{a}e9\\n' for a, b, c, d in rows))\nprint('go', flush=True)\n"
    "main(['allocate', 'c.csv', '--min-examples', '3000000', '--tolerance', '1e-9', '--time-limit', '60'])\n",
}


def seconds_until_heard(program: str, folder: Path) -> float:
    """Return how long after Ctrl-C a program can do something else: how fast a process ends is not ours to say."""
    indented = "".join(f"    {line}\n" for line in program.splitlines())
    whole = f"{BEGIN}try:\n{indented}except (KeyboardInterrupt, SystemExit):\n    print(time.monotonic(), flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", whole], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "go", process.stderr and process.stderr.read()
            time.sleep(1)
            assert process.poll() is None, "it was over before"
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
            assert out.strip(), said
            return float(out.splitlines()[-1]) - began
        finally:
            process.kill()


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what.startswith("native") else pytest.mark.slow) for what in LONG]
)
def test_ctrl_c_is_heard_within_a_second(what: str, tmp_path: Path) -> None:
    taken: list[float] = []
    while not taken or (min(taken) >= SECONDS and len(taken) < TRIES):
        taken.append(seconds_until_heard(LONG[what], tmp_path))
    assert min(taken) < SECONDS, taken


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_command_in_the_midst_of_native_training_ends_at_once_and_loses_nothing(
    command: str, start: Start, home: Path
) -> None:
    sets = ("local.epochs=20000000", "engine.name=native", "engine.threads=2", "seeds=[0]")
    process = start(command, "tiny.toml", "--out", "o", *(part for each in sets for part in ("--set", each)))
    wait_until(lambda: bool(list((home / "o").rglob("engine*.json")) or list((home / "o").rglob("run.json"))))
    time.sleep(1)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 4 * SECONDS  # processes that hold torch end one after the other
    assert process.returncode == 130, said
    assert "Interrupted. Rerun the command to resume it." in said

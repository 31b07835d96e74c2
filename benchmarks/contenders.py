"""Contenders and their settings, and one measurement of one contender in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from measure import CANNOT, CORES, family

from fedreach.engines.choice import ENGINES
from tables import Row, Setting

PEERS = Path(__file__).parent / "peers"
LIMIT_SECONDS = 100.0  # of one measurement; on an idle machine the longest takes a quarter of that
ENGINE_NAMES = [*ENGINES, "auto"]


def different(*settings: Setting) -> tuple[Setting, ...]:
    """Return the settings without repetitions, which there are on one core."""
    return tuple(dict.fromkeys(settings))


class Contender(NamedTuple):
    """One way to train the cohort."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    needs: str = ""  # a module
    settings: tuple[Setting, ...] = ((1, CORES),)
    torchrun: bool = False
    images: bool = False  # whether it is for images only

    @property
    def engine(self) -> str:
        """Which of FedReach's engines it is, if it is one."""
        return self.name.removeprefix("fedreach ")


def fedreach(engine: str) -> Contender:
    """Return an engine as a contender, on all cores, as it runs if nothing is said."""
    return Contender(f"fedreach {engine}", "fedreach_run.py", ("--engine", engine))


PLAIN = Contender(
    "plain torch", "plain_torch.py", ("--shuffle",), settings=different((1, 1), (CORES, 1)), torchrun=True
)
PLAIN_LAST = PLAIN._replace(
    name="plain torch, channels last",
    arguments=("--shuffle", "--channels-last"),
    settings=((CORES, 1),),
    images=True,
)
PFL_ONE: Setting = (1, CORES)
PFL = Contender("pfl", "pfl_run.py", needs="pfl", settings=different(PFL_ONE, (CORES, 1)), torchrun=True)
FLOWER = Contender("flower", "flower_run.py", needs="flwr", settings=((CORES, 1),))
LIMIT = Contender("limit", "limit.py", settings=((CORES, 1),))
CONTENDERS = (*map(fedreach, ENGINE_NAMES), PLAIN, PLAIN_LAST, PFL, LIMIT, FLOWER)


def present(contenders: Iterable[Contender]) -> list[Contender]:
    """Return those that are installed, and say on stderr who is not."""
    found = []
    for contender in contenders:
        if contender.needs and find_spec(contender.needs) is None:
            print(f"{contender.name} is left out: {contender.needs} is not installed (extra `bench`)", file=sys.stderr)
        else:
            found.append(contender)
    return found


TRIES = 3
"""Of a measurement: two processes of torch or pfl that sum over gloo abort now and then, and their best counts."""


def end_cleanly() -> None:
    """Let a request to terminate end what runs too, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run_script(contender: Contender, case: str, setting: Setting, options: list[str]) -> tuple[str, str, bool]:
    """Run a contender's script; return what it printed on stdout and stderr, and whether it did well.

    Whatever it started is ended with it, and its temporary files are removed.
    """
    workers, threads = setting
    launcher = [sys.executable]
    if workers > 1 and contender.torchrun:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={workers}"]
    command = [*launcher, str(PEERS / contender.script), "--case", case, *contender.arguments]
    command += ["--threads", str(threads), *options]
    with started(command, threads) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "", f"took more than {LIMIT_SECONDS:g} s", False
    return out, err, process.returncode == 0


@contextlib.contextmanager
def started(command: Sequence[str], threads: int) -> Iterator[subprocess.Popen[str]]:
    """Start a command in the folder of peers; end all that it started in the end, and remove temporary files."""
    folder = tempfile.mkdtemp(prefix="b", dir="/tmp")  # of its own; short, as the path of a socket has to be
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TMPDIR": folder}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PEERS,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            # One by one, as torchrun's workers have sessions of their own.
            for one in family(process.pid) if process.poll() is None else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def why_not(err: str) -> str:
    """Return why a contender cannot train a case, where it says so on stderr."""
    return next((line for line in err.splitlines() if line.startswith(CANNOT)), "")


def measure(contender: Contender, case: str, setting: Setting, options: list[str]) -> Row | None:
    """Return the row of one measurement; None, and a line on stderr for each try, where it failed `TRIES` times.

    Who says that it cannot train a case is not asked again.
    """
    for _ in range(TRIES):
        out, err, well = run_script(contender, case, setting, options)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if well and lines:
            row: Row = json.loads(lines[-1])
            return row
        print(f"  {contender.name} {setting} on {case}: {why_not(err) or err.strip()[-300:]}", file=sys.stderr)
        if why_not(err):
            break
    return None

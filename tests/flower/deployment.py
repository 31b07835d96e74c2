"""A real Flower deployment on this machine: one process for the SuperLink, one for each SuperNode, and all they start.

Each has a ``FLWR_HOME`` of its own, as if it were a machine of its own, and is found and ended by it. Linux only.

```
with Deployment(tmp_path, nodes=3, tls=True) as flower:
    rows = flower.run(APP, tmp_path / "out", 'method="scaffold"')
```
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

APP = Path(__file__).parents[2] / "examples" / "flower_app"
DATA = os.environ.get("FEDREACH_DATA") or str(Path(__file__).parents[3] / "shared" / "data")
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "COLUMNS": "300",
    "FEDREACH_DATA": DATA,
}


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
    return port


def processes_of(home: Path) -> dict[int, str]:
    """Return the command lines, by id, of the processes that live in this FLWR_HOME."""
    found, mark = {}, b"FLWR_HOME=" + os.fsencode(home)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:  # else it is a zombie
                    found[int(process.name)] = command
        except OSError:  # it ended meanwhile, or is not ours
            continue
    return found


def end(home: Path, *, only: str = "", kill: bool = True) -> int:
    """End all processes of a home, or those with `only` in their command line; return how many there were."""
    count, until = 0, time.monotonic() + 5
    while found := [pid for pid, command in processes_of(home).items() if only in command]:
        count = max(count, len(found))
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL if kill or time.monotonic() > until else signal.SIGTERM)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    return count


class Deployment:
    """A SuperLink and SuperNodes, all stopped at the end of the ``with`` block.

    Args:
        folder: For logs (``link.log``, ``node3.log``), keys and the SuperLink's database.
        nodes: How many SuperNodes start, with partition-id 0, 1, ...
        tls: Whether the SuperLink has a certificate and takes registered nodes only.
        simulation: Whether runs are simulated by the SuperLink itself; then there are no SuperNodes.
        partitions: Value of num-partitions in the nodes' config; default `nodes`.
        environment: Further variables for all processes.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 0,
        *,
        tls: bool = False,
        simulation: bool = False,
        partitions: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not Path("/proc/self/environ").exists():
            pytest.skip("processes are found by /proc")
        self.folder, self.tls, self.simulation = folder, tls, simulation
        self.count, self.partitions = nodes, nodes if partitions is None else partitions
        self.environment = {**os.environ, **QUIET, **(environment or {})}
        self.environment["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        self.port = free_port()
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.registered: set[str] = set()
        self.results: dict[str, str | None] = {}  # run -> what its folder said of an earlier attempt
        self.homes = Path(tempfile.mkdtemp(prefix="fl"))  # short, as Ray's sockets live below it

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.tls:
                self.make_keys(self.count + 2)
            self.start_link()
            for node in range(self.count):
                self.start_node(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        for name in list(self.started):
            end(self.home(name))
        for process in self.started.values():
            process.wait(10)
        end(self.home("user"))
        shutil.rmtree(self.homes, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------ processes

    def home(self, name: str) -> Path:
        """Return the FLWR_HOME of ``link``, ``node3`` or ``user``."""
        return self.homes / name

    def make_keys(self, nodes: int) -> None:
        """Make certificates and keys with the script of the app."""
        command = [sys.executable, str(APP / "make_keys.py"), str(self.folder / "keys"), str(nodes)]
        subprocess.run(command, check=True)

    def key(self, name: str) -> str:
        """Return the path of a key or certificate."""
        return str(self.folder / "keys" / name)

    def start(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process that writes to NAME.log."""
        environment = {**self.environment, **environment, "FLWR_HOME": str(self.home(name))}
        self.home(name).mkdir(exist_ok=True)
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.home(name),
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started[name] = process
        return process

    def start_link(self) -> None:
        """Start the SuperLink, also after `kill_link`, on the same port and database, and wait until it listens."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "state.db")]
        if self.tls:
            command += ["--ssl-ca-certfile", self.key("ca.crt"), "--ssl-certfile", self.key("server.pem")]
            command += ["--ssl-keyfile", self.key("server.key"), "--enable-supernode-auth"]
        else:
            command.append("--insecure")
        if self.simulation:
            command.append("--simulation")
        self.start("link", command)
        self.home("user").mkdir(exist_ok=True)
        security = f'root-certificates = "{self.key("ca.crt")}"' if self.tls else "insecure = true"
        (self.home("user") / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{security}\n',
            encoding="utf-8",
        )
        self.until(self._listens, 60, "the SuperLink to listen")

    def _listens(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def start_node(
        self,
        node: int,
        *,
        register: bool = True,
        config: str | None = None,
        secure: bool | None = None,
        **environment: str,
    ) -> str:
        """Start a SuperNode and return its name; it registers first, once, if the SuperLink asks for that.

        Args:
            node: Its number, which is its partition-id and that of its key.
            register: Whether it is registered.
            config: Its node config, if it is another.
            secure: Whether it uses TLS and its key; default as the SuperLink.
            environment: Variables for it alone.
        """
        name = f"node{node}"
        secure = self.tls if secure is None else secure
        if secure and register and name not in self.registered:
            self.registered.add(name)
            self.flwr("supernode", "register", self.key(f"{name}.pub"), "here", "--name", f"site{node}")
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        command += ["--node-config", config or f"partition-id={node} num-partitions={self.partitions}"]
        if secure:
            command += ["--root-certificates", self.key("ca.crt"), "--auth-supernode-private-key", self.key(name)]
        else:
            command.append("--insecure")
        self.start(name, command, **environment)
        return name

    def kill(self, name: str) -> None:
        """SIGKILL ``node3`` or ``link`` with all it started, as when a machine loses power."""
        assert end(self.home(name)) > 0, f"{name} does not run"
        self.started.pop(name).wait(10)

    def kill_server_app(self) -> None:
        """SIGKILL the process of the ServerApp, and it alone."""
        assert end(self.home("link"), only="flwr-serverapp") > 0, "no ServerApp runs"

    def running(self, name: str) -> list[str]:
        """Return the command lines of what runs as ``node3`` or ``link``."""
        return list(processes_of(self.home(name)).values())

    # ----------------------------------------------------------------------------------------------------------- runs

    def flwr(self, *arguments: str) -> str:
        """Call ``flwr`` and return what it prints."""
        environment = {**self.environment, "FLWR_HOME": str(self.home("user"))}
        command = [str(BIN / "flwr"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, self.told(f"flwr {' '.join(arguments)}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def submit(self, app: Path, out: Path, config: str = "", federation: str = "") -> str:
        """Start a run by ``flwr run`` and return its id."""
        config, result = f'out="{out}" {config}', out / "result.json"
        before = result.read_text(encoding="utf-8") if result.exists() else None
        more = ["--federation-config", federation] if federation else []
        printed = self.flwr("run", str(app), "here", "--format", "json", "-c", config, *more)
        told = json.loads(printed)
        assert told["success"], printed
        self.results[told["run-id"]] = before
        return str(told["run-id"])

    def status(self, run: str) -> str:
        """Return what Flower says of a run: ``running``, ``finished:completed``, ``finished:failed``, ..."""
        told = json.loads(self.flwr("list", "here", "--run-id", run, "--format", "json"))
        return str(told["runs"][0]["status"])

    def wait(self, run: str, out: Path, seconds: float = 300) -> list[dict[str, Any]]:
        """Return the rows of a run when its folder says that it ended well; fail at once where it cannot be."""
        look, before = time.monotonic() + 20, self.results.get(run)

        def done() -> bool:
            nonlocal look
            result = out / "result.json"
            said = result.read_text(encoding="utf-8") if result.exists() else None
            failed = said is not None and json.loads(said)["status"] == "failed"
            assert not failed or said == before, self.told(f"run {run}: {said}")
            if (said is None or failed) and time.monotonic() > look:
                # Asking is a process of its own, which takes its share of the cores.
                assert not (status := self.status(run)).startswith("finished"), self.told(f"run {run} is {status}")
                look = time.monotonic() + 20
            return said is not None and not failed

        self.until(done, seconds, f"run {run} to end")
        return rows(out)

    def run(
        self, app: Path, out: Path, config: str = "", *, federation: str = "", seconds: float = 300
    ) -> list[dict[str, Any]]:
        """Start a run and wait for its end; see `submit` and `wait`."""
        return self.wait(self.submit(app, out, config, federation), out, seconds)

    def until(self, there: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something is there; fail when time is over or a process of ours ended by itself."""
        limit = time.monotonic() + seconds
        while not there():
            ended = [name for name, process in self.started.items() if process.poll() is not None]
            assert not ended, self.told(f"{ended} ended while waiting for {what}")
            assert time.monotonic() < limit, self.told(f"{seconds:g} seconds were not enough for {what}")
            time.sleep(0.2)

    def log(self, name: str) -> Path:
        """Return where ``link`` or ``node3`` writes to."""
        return self.folder / f"{name}.log"

    def told(self, what: str) -> str:
        """Return a message with the ends of all logs."""
        tails = [f"{what}"]
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
            tails.append("\n".join([f"----- {path.name}", *lines]))
        return "\n".join(tails)


def rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows of a run folder so far."""
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

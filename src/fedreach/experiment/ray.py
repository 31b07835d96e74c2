"""Workers on a Ray cluster: actors that run a worker process on their node and forward its messages."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import queue
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedreach._util.errors import ConfigError
from fedreach._util.processes import cores
from fedreach.experiment.schema import EngineSection
from fedreach.experiment.workers import LOG, Message, Process, tidy_log

TOKEN = ".shared"  # a file in the folder of the comparison while it runs
CONNECT_SECONDS = 5.0
OBJECT_STORE_BYTES = 100_000_000  # small, as results go through files
SETTINGS = {  # of Ray, unless the user sets them
    "RAY_USAGE_STATS_ENABLED": "0",  # by default, Ray sends usage statistics to its makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning of what a later Ray will do
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "1",  # seconds that runs continue after a command at ray:// was killed
}


class Site(NamedTuple):
    """Files, packages and devices that a worker must find on its node."""

    out: Path  # of the comparison
    token: str  # content of the file TOKEN in it
    versions: Mapping[str, str]  # of the packages that affect the numbers
    folder: Path  # working folder of the command
    environment: Mapping[str, str]


@dataclass(frozen=True)
class OnRay:
    """A Ray cluster whose nodes all see the folder of the comparison.

    A worker uses ``engine.threads`` CPUs (default: 1), and one GPU if ``engine.device`` is cuda. A job whose process or
    node dies resumes from its checkpoint on any node.

    Args:
        address: ``"auto"``, ``"HOST:PORT"`` or ``"ray://HOST:PORT"``; None starts Ray on this machine.

    Raises:
        ConfigError: If Ray is not installed.
    """

    address: str | None = None

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("--executor ray needs Ray, which is not installed. Run: pip install 'fedreach[ray]'")

    @contextlib.contextmanager
    def pool(self, engine: EngineSection, out: Path, jobs: int, workers: int | None) -> Iterator[list[RayWorker]]:
        cpus, gpus = engine.threads or 1, int(engine.device.startswith("cuda"))
        if engine.device.startswith("cuda:"):
            raise ConfigError(
                "engine.device must be 'cuda' with --executor ray, because each run has its own GPU; got "
                f"{engine.device!r}. Use --device cuda."
            )
        out = out.absolute()
        with tidy_log(out), self._ray(max(cores(), cpus * (workers or 1))) as ray, _token(out) as token:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            capacity = count_places(nodes, cpus, gpus)
            if not capacity:
                raise ConfigError(
                    f"A run requires {cpus} CPU{'s' * (cpus > 1)} (engine.threads){' and a GPU' if gpus else ''}, more "
                    f"than any node of the Ray cluster has. Its {len(nodes)} nodes have "
                    f"{'; '.join(sorted(map(_resources, nodes)))}. Lower engine.threads, use --device cpu, or start a "
                    "larger node first."
                )
            handed_on = {key: os.environ[key] for key in ("FEDREACH_DATA",) if key in os.environ}
            site = Site(out, token, versions(), Path.cwd(), handed_on)
            # One thread of the actor waits for messages while another receives jobs.
            hosts = ray.remote(_Host).options(num_cpus=cpus, num_gpus=gpus, max_concurrency=2)
            yield [RayWorker(ray, hosts, site, cpus) for _ in range(min(workers or capacity, jobs))]

    @contextlib.contextmanager
    def _ray(self, cpus: int) -> Iterator[Any]:
        """Start Ray or join a cluster, and leave it at the end, without printing anything.

        Ray listens on all network interfaces. With a token of its own, a local Ray rejects the messages of others.
        """
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if self.address is None else {}
        token = {name: value for name, value in token.items() if name not in os.environ}
        for name, value in (SETTINGS | token).items():
            os.environ.setdefault(name, value)
        ray: Any = importlib.import_module("ray")
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self.address is None:
            local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            ray.init("local", **options, **local)
        else:
            check_reachable(self.address)
            try:
                ray.init(self.address, **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(f"The Ray cluster at {self.address!r} cannot be joined: {error}") from error
        try:
            yield ray
        finally:
            ray.shutdown()
            for name in token:
                del os.environ[name]


class RayWorker:
    """One worker; see `fedreach.experiment.workers.Worker`."""

    def __init__(self, ray: Any, hosts: Any, site: Site, threads: int) -> None:
        self.ray, self.hosts, self.site, self.threads = ray, hosts, site, threads
        self.host: Any
        self.thread: threading.Thread

    def start(self, on_message: Callable[[Message], None]) -> None:
        """Request a host, which reports that it is ready as soon as the cluster has free resources."""
        self.ready = False
        self.host = self.hosts.remote(self.site, self.threads)
        self.thread = threading.Thread(target=self._listen, args=(self.host, on_message), daemon=True)
        self.thread.start()

    def _listen(self, host: Any, on_message: Callable[[Message], None]) -> None:
        try:
            while True:
                for message in self.ray.get(host.news.remote()):
                    self.ready |= "ready" in message
                    if "died" in message:
                        self.ray.kill(host)  # to free its place
                    on_message(message)
                    if "died" in message:
                        return
        except self.ray.exceptions.RayError:
            on_message({"died": "Ray lost its worker or its node"})

    def send(self, job: Message) -> None:
        places = {key: str(Path(job[key]).absolute()) for key in ("folder", "twin") if job[key] is not None}
        self.host.send.remote({**job, **places})

    def end(self) -> None:
        if self.ready:
            self.host.end.remote()
        else:
            self.ray.kill(self.host)  # it is still waiting for a place

    def wait(self) -> None:
        self.thread.join(timeout=30)
        self.ray.kill(self.host)
        self.thread.join(timeout=5)  # no thread may be inside Ray when Ray shuts down


class _Host:
    """A worker process on a node of the cluster, with its messages since the last request."""

    def __init__(self, site: Site, threads: int) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        reason = unfit(site)
        if reason is not None:
            self.messages.put({"refused": reason})
        else:
            folder = site.folder if site.folder.is_dir() else None
            self.process = Process(site.out / LOG, threads, site.environment, folder)
            self.process.start(self.messages.put)

    def news(self) -> list[Message]:
        """Wait for messages and return all of them."""
        news = [self.messages.get()]
        while not self.messages.empty():
            news.append(self.messages.get())
        return news

    def send(self, job: Message) -> None:
        self.process.send(job)

    def end(self) -> None:
        self.process.end()


def count_places(nodes: Sequence[Mapping[str, float]], cpus: int, gpus: int) -> int:
    """Return how many workers, each with `cpus` CPUs and 0 or 1 GPUs, fit on nodes with these resources.

    Example:
        >>> count_places([{"CPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}], cpus=3, gpus=0)
        6
        >>> count_places([{"CPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}], cpus=3, gpus=1)
        2
    """
    capacities = (min(node.get("CPU", 0.0) // cpus, node.get("GPU", 0.0) if gpus else float("inf")) for node in nodes)
    return int(sum(capacities))


def unfit(site: Site) -> str | None:
    """Return the reason why this node cannot run workers, or None."""
    node = socket.gethostname()
    try:
        token = (site.out / TOKEN).read_text(encoding="utf-8")
    except OSError:
        token = None
    if token != site.token:
        return (
            f"Node {node} of the Ray cluster cannot read the folder {site.out} of this comparison. Set --out to a "
            "folder that all nodes share."
        )
    node_versions = versions()
    if node_versions != site.versions:
        return (
            f"Node {node} of the Ray cluster has {_list_packages(node_versions)}, and this machine has "
            f"{_list_packages(site.versions)}. Install the same versions on all nodes, because results depend on them."
        )
    return None


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect results."""
    return {name: importlib.metadata.version(name) for name in ("fedreach", "numpy", "torch")}


def check_reachable(address: str) -> None:
    """Reject an address if no server responds; Ray itself would try for minutes and then end the process.

    Raises:
        ConfigError: If the address is invalid or no server responds.
    """
    if address == "auto":
        return
    parts = re.fullmatch(r"(?:ray://)?\[?([^/\s]+?)\]?:(\d{1,5})", address)
    if parts is None:
        raise ConfigError(f"--address must be auto, HOST:PORT or ray://HOST:PORT; got {address!r}.")
    try:
        socket.create_connection((parts[1], int(parts[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"No Ray cluster answers at {address!r}: {error}. Start a cluster there with `ray start --head`, or omit "
            "--address to start one on this machine."
        ) from error


@contextlib.contextmanager
def _token(out: Path) -> Iterator[str]:
    """Put a file into the folder, by which other nodes check that they see the same folder."""
    path, token = out / TOKEN, f"{socket.gethostname()} {os.getpid()} {time.time_ns()}\n"
    path.write_text(token, encoding="utf-8")
    try:
        yield token
    finally:
        path.unlink(missing_ok=True)


def _resources(node: Mapping[str, float]) -> str:
    return f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs"


def _list_packages(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())

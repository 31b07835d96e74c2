"""Workers of comparisons by fork, for tests: a process that has imported FedReach forks one in milliseconds.

A worker that Python starts imports torch and FedReach first. That takes seconds, and tests start hundreds. A forked one
runs the same code in a process, a session, a folder and an environment of its own.

`python tests/forking.py FD` is the process that forks. It reads a request, with the worker's three standard streams,
from the socket FD, forks, and sends back the number of the new process and, when that has ended, its exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

WORKER = "fedreach.experiment.worker"
BYTES = 1 << 16  # of a request; the environment is most of it
FAILED = 1
BEGAN_IN = Path.cwd()  # of a relative PYTHONPATH; tests change the folder


# -------------------- In the tests


class Forked:
    """What tests and `fedreach.experiment.workers.Process` use of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid, self.returncode = pid, None
        self.stdin = os.fdopen(stdin, "w", buffering=1, encoding="utf-8")
        self.stdout = os.fdopen(stdout, encoding="utf-8")
        self._ended = threading.Event()

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(WORKER, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


class Forking:
    """The process that forks. It ends with this one, whose end closes the socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **single},
                start_new_session=True,
                cwd=BEGAN_IN,
            )
        self.children: dict[int, Forked] = {}
        self.lock = threading.Lock()
        self.begun: Forked | None = None
        self.has_begun = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, environment: Mapping[str, str], folder: Path | None, errors: int) -> Forked:
        """Start a worker that writes its errors into this file."""
        request = {"environment": dict(environment), "folder": str(folder or Path.cwd())}
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        with self.lock:
            self.has_begun.clear()
            self.streams = our_output, our_input
            socket.send_fds(self.socket, [json.dumps(request).encode()], [their_input, their_output, errors])
            assert self.has_begun.wait(60), "no worker was forked"
            os.close(their_input)
            os.close(their_output)
            assert self.begun is not None
            return self.begun

    def _listen(self) -> None:
        while message := self.socket.recv(BYTES):
            answer = json.loads(message)
            if "begun" in answer:
                self.begun = self.children[answer["begun"]] = Forked(answer["begun"], *self.streams)
                self.has_begun.set()
            else:
                self.children.pop(answer["ended"]).end(answer["code"])


@cache
def forking() -> Forking:
    """Return the process that forks, one of this process."""
    return Forking()


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but for the worker of a comparison, which is forked."""

    def __new__(cls, arguments: Any, *others: Any, **options: Any) -> Any:
        if isinstance(arguments, list) and arguments[1:] == ["-P", "-m", WORKER]:
            return forking().start(options["env"], options["cwd"], options["stderr"].fileno())
        return super().__new__(cls)


# -------------------- In the process that forks


def serve(requests: socket.socket) -> None:
    """Fork on request, and report the ends of the forked processes, until the socket is closed."""
    children: dict[int, int] = {}  # descriptor of a process that ends -> its number
    while True:
        for descriptor in select.select([requests, *children], [], [])[0]:
            if descriptor is not requests:
                pid = children.pop(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(descriptor)
                requests.send(json.dumps({"ended": pid, "code": code}).encode())
                continue
            message, streams, _, _ = socket.recv_fds(requests, BYTES, 3)
            if not message:
                return
            pid = os.fork()
            if not pid:
                requests.close()
                for other in children:
                    os.close(other)
                work(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            children[os.pidfd_open(pid)] = pid
            requests.send(json.dumps({"begun": pid}).encode())


def work(request: Mapping[str, Any], streams: list[int]) -> None:
    """Become the worker, and end as it does."""
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in added if path and path not in sys.path]
        sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
        sys.argv = ["worker"]
        importlib.import_module(WORKER).main()
        code = 0
    except KeyboardInterrupt:
        code = 0
    except BaseException:
        traceback.print_exc()
        code = FAILED
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    importlib.import_module(WORKER)
    serve(socket.socket(fileno=int(sys.argv[1])))

"""Starts the ranks of a run, as torchrun does but without its seconds: one process a rank, on this machine only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

SECONDS = 120  # a rank that hangs is killed, and the test fails


def start_ranks(size: int, *arguments: object, folder: Path | None = None) -> list[subprocess.Popen[str]]:
    """Start ``python ARGUMENTS`` once a rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **shared, "LOCAL_WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Wait for all ranks; return the exit code, output and errors of each."""
    try:
        told = [rank.communicate(timeout=SECONDS) for rank in ranks]
        return [(rank.returncode, *said) for rank, said in zip(ranks, told, strict=True)]
    finally:
        for rank in ranks:
            with rank:
                rank.kill()

"""Time of one sum by secure aggregation, by the protocol of Flower's clients, without training and without a network.

    python benchmarks/secure.py            # prints the table, a minute
    python benchmarks/secure.py --write    # also puts it into docs/records/secure.md

The model has 100,000 numbers. Clients that leave do so after they have sent their shares, which costs the server most.
Seconds are those of the processor, of a client the mean over clients and the sum over its steps.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import Context, RecordDict

from fedreach.federation.secure_aggregation import (
    FixedPoint,
    SecureAggregation,
    mean_of,
    share,
    weighted_mean_of_shares,
)
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.secure import SECURE, SecureClient
from fedreach.flower.secure_server import SecureSum
from fedreach.testing.problems import tiny_federation
from page import processor, put

NUMBERS, STATISTICS = 100_000, SecureAggregation()


class Timed(ClientRegistry):
    """A registry that calls clients instead of sending messages, and adds up the seconds and bytes of clients."""

    contexts: Mapping[int, Context]
    seconds = 0.0
    sent_bytes = 0

    def ask(self, kind: str, contents: Mapping[Any, Any], reader: Any, failed: str | None = None) -> Any:
        replies: dict[int, Any] = {}
        for client, content in contents.items():
            began = time.process_time()
            record = SecureClient(self.contexts[client], client, STATISTICS).answer(content[SECURE])
            self.seconds += time.process_time() - began
            self.sent_bytes += len(str(record["content"]))
            replies[client] = reader(client, SimpleNamespace(content=SimpleNamespace(config_records={SECURE: record})))
        return replies, {}


def write_keys(folder: Path, clients: int) -> dict[int, dict[str, str]]:
    """Write long-term keys of clients; return what each node config has of them."""
    lines = []
    for client in range(clients):
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / f"node{client}").write_bytes(private)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        lines.append(f"{client} {public}")
    (folder / "roster").write_text("\n".join(lines), encoding="utf-8")
    files = {"secure-roster": str(folder / "roster")}
    return {client: {**files, "secure-key": str(folder / f"node{client}")} for client in range(clients)}


def measure(clients: int, leaving: int, config: Mapping[int, Mapping[str, str]]) -> tuple[float, float, float]:
    """Return the seconds of a client and of the server, and the kB that a client sends in addition to its words."""
    registry = Timed(replace(tiny_federation(), label_statistics=STATISTICS), {}, 1.0)
    registry.grid = SimpleNamespace(get_node_ids=lambda: range(clients))  # type: ignore[assignment]
    registry.contexts = {c: Context(1, c, dict(config.get(c, {})), RecordDict(), {}) for c in range(clients)}
    updates = np.random.default_rng(0).standard_normal((clients, NUMBERS)).astype(np.float32)
    began = time.process_time()
    secure = SecureSum(registry, range(clients))
    words = {}
    for client in range(leaving, clients):
        request, start = secure.request(client)[SECURE], time.process_time()
        masker = SecureClient(registry.contexts[client], client, STATISTICS)
        own = {"": {"words": share(1.0, updates[client], FixedPoint(clients))}}
        words[client] = masker.mask(request, own, ("run", 1))
        registry.seconds += time.process_time() - start
    total = secure.total(words)[""]["words"]
    server = time.process_time() - began - registry.seconds
    mean = mean_of(total, FixedPoint(clients), len(words))
    assert mean.tobytes() == weighted_mean_of_shares(np.ones(len(words)), updates[leaving:], clients).tobytes()
    return registry.seconds / clients, server, registry.sent_bytes / clients / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100], help="default: 10 100")
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/secure.md")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    lines = [
        "| clients | that leave | roster | client, s | server, s | kB |",
        "| ---: " * 2 + "| --- |" + " ---: |" * 3,
    ]
    for clients in arguments.clients:
        with tempfile.TemporaryDirectory() as folder:
            keys = write_keys(Path(folder), clients)
            for leaving, config in ((0, {}), (3 * clients // 10, {}), (3 * clients // 10, keys)):
                found = [measure(clients, leaving, config) for _ in range(arguments.repeats)]
                client, server, sent = map(statistics.median, zip(*found, strict=True))
                has = "yes" if config else "no"
                lines.append(f"| {clients} | {leaving} | {has} | {client:.3f} | {server:.2f} | {sent:.0f} |")
                print(lines[-1], flush=True)
    about = (
        f"One sum of {NUMBERS:,} numbers by secure aggregation, by `python benchmarks/secure.py --write`: medians of "
        f"{arguments.repeats} sums in one process, on {os.cpu_count()} cores ({processor()}). The columns are the mean "
        "processor seconds of a client over all its steps, those of the server, and the kB that a client sends in "
        "addition to its masked numbers."
    )
    print("\n".join(lines))
    if arguments.write:
        put("secure", "\n\n".join([about, "\n".join(lines)]))


if __name__ == "__main__":
    main()

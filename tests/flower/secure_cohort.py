"""Clients that only add up their words, for the tests of the protocol of secure aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedreach._util.arrays import Floats
from fedreach.federation.secure_aggregation import FixedPoint, SecureAggregation, mean_of, share
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.secure import SECURE, SecureClient
from fedreach.flower.secure_server import SecureSum
from fedreach.testing.problems import tiny_federation

from .in_process import InProcess

STEPS = ("keys", "shares", "mask", "sign", "reveal")


def weight_of(client: int) -> float:
    return 1.0 + client


def update_of(client: int, size: int) -> np.ndarray:
    return np.random.default_rng(client).standard_normal(size).astype(np.float32)


def step_of(message: Message) -> str:
    return str(message.content.config_records[SECURE]["step"])


def write_roster(folder: Path, clients: Sequence[int]) -> dict[int, dict[str, str]]:
    """Write a key for each client and their roster; return what each node config holds of them."""
    lines, config = [], {}
    for client in clients:
        key, file = ec.generate_private_key(ec.SECP384R1()), folder / f"node{client}"
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        lines.append(f"{client} {key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()}")
        config[client] = {"secure-key": str(file), "secure-roster": str(folder / "roster")}
    (folder / "roster").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return config


class Adding:
    """A server and clients in this process; a round adds up the words of each client.

    Args:
        clients: Ids of the clients.
        leaving: Client -> step from which on it is silent.
        roster: What each node config holds, see `write_roster`.
        spoil: Changes the message to a client, as a lying server would.
    """

    def __init__(
        self,
        clients: Sequence[int],
        *,
        leaving: Mapping[int, str] | None = None,
        roster: Mapping[int, Mapping[str, str]] | None = None,
        statistics: SecureAggregation | None = None,
        size: int = 5,
        spoil: Callable[[int, Message], object] = lambda client, message: None,
    ) -> None:
        self.size, self.leaving, self.refused = size, dict(leaving or {}), dict[int, str]()
        self.statistics, self.spoil, self.round = statistics or SecureAggregation(), spoil, 1
        federation = replace(tiny_federation(), label_statistics=self.statistics)
        self.registry = ClientRegistry(federation, {}, 1.0)
        self.grid = InProcess(self._app(), clients, answering=self._answering)
        self.registry.grid, self.registry.nodes = self.grid, dict(self.grid.node_of)
        for client, config in (roster or {}).items():
            self.grid.contexts[client].node_config.update(config)

    def _app(self) -> ClientApp:
        app = ClientApp()

        @app.query("secure")
        def aggregate(message: Message, context: Context) -> Message:
            client = SecureClient(context, int(context.node_config["partition-id"]), self.statistics)
            return Message(RecordDict({SECURE: client.answer(message.content[SECURE])}), reply_to=message)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            me = int(context.node_config["partition-id"])
            client = SecureClient(context, me, self.statistics)
            words = share(weight_of(me), update_of(me, self.size), FixedPoint(client.cohort_size))
            masked = client.mask(message.content[SECURE], {"": {"words": words}}, ("run", self.round))
            return Message(RecordDict({"masked": messages.array_record(masked[""])}), reply_to=message)

        return app

    def _answering(self, client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        step = step_of(message)
        if client in self.leaving and STEPS.index(self.leaving[client]) <= STEPS.index(step):
            return None
        self.spoil(client, message)
        reply = answer()
        if reply.has_error():
            self.refused[client] = reply.error.reason
        return reply

    def mean(self) -> tuple[Floats, list[int]]:
        """Return the mean over the clients whose words arrived, and these clients."""
        secure = SecureSum(self.registry, sorted(self.grid.node_of))

        def read(client: int, reply: Message) -> np.ndarray:
            return messages.array(messages.arrays(reply, "masked"), "words", (self.size + 1,), np.uint64)

        asked = {client: secure.request(client) for client in secure.sealed}
        answers, _ = self.registry.ask("train", asked, read)
        total = secure.total({client: {"": {"words": words}} for client, words in answers.items()})[""]["words"]
        return mean_of(total, FixedPoint(len(secure.cohort)), len(answers)), sorted(answers)

"""A grid in one process: messages go straight to client apps, through the bytes that would travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedreach.flower.messages import seal

Answering = Callable[[int, Message, Callable[[], Message]], "Message | list[Message] | None"]
"""Given the client, the message and what would be answered, returns the reply, several, or None."""


def sealed(reply: Message) -> Message:
    """Return a reply of FedReach's app with the digest that the client computes of what it now contains."""
    if reply.has_error() or "digest" not in reply.content.config_records.get("fedreach", {}):
        return reply
    return seal(reply, reply.metadata.src_node_id)


class InProcess(Grid):
    """A node for each client; `answering` may spoil, replace or swallow replies, `absent` nodes are offline."""

    def __init__(
        self,
        app: ClientApp | Mapping[int, ClientApp],
        clients: Iterable[int],
        *,
        answering: Answering = lambda client, message, answer: answer(),
        first_node: int = 1000,
    ) -> None:
        # Node ids in another order than clients', as in a real federation.
        self.node_of = {client: first_node + (7 * client) % 101 for client in clients}
        self.client_of = {node: client for client, node in self.node_of.items()}
        self.app, self.answering, self.absent, self.gone = app, answering, set[int](), set[int]()
        self.contexts = {client: self.new_context(client) for client in self.node_of}
        self.replies: dict[str, list[Message]] = {}
        self.sent: list[tuple[int, str]] = []
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def new_context(self, client: int) -> Context:
        config = {"partition-id": client, "num-partitions": len(self.node_of)}
        return Context(1, self.node_of[client], config, RecordDict(), {})

    def restart(self, client: int, *, seen_as_online: bool = False) -> int:
        """Give a client a new node with an empty context; return the old one, which the link may not miss yet."""
        old = self.node_of[client]
        self.node_of[client] = 1 + max(self.client_of)
        self.client_of[self.node_of[client]] = client
        self.contexts[client] = self.new_context(client)
        if not seen_as_online:
            self.forget(old)
        return old

    def forget(self, node: int) -> None:
        """Let a node be offline for good."""
        self.gone.add(node)

    def get_node_ids(self) -> Iterable[int]:
        there = [node for node, client in self.client_of.items() if client not in self.absent]
        return [node for node in there if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name = f"m{len(self.sent)}"
            node = message.metadata.dst_node_id
            client = self.client_of[node]
            self.sent.append((client, message.metadata.message_type))
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            travelled = message_from_proto(message_to_proto(message))
            travelled.metadata.__dict__["_message_id"] = name
            if node != self.node_of[client]:
                continue  # nobody is there any more
            reply = self.answering(client, travelled, lambda c=client, m=travelled: self._answer(c, m))
            replies = reply if isinstance(reply, list) else [] if reply is None else [reply]
            self.replies[name] = [message_from_proto(message_to_proto(sealed(each))) for each in replies]
        return ids

    def _answer(self, client: int, message: Message) -> Message:
        app = self.app if isinstance(self.app, ClientApp) else self.app[client]
        try:
            return app(message, self.contexts[client])
        except Exception as error:
            return Message(Error(code=2, reason=f"Traceback\n{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in list(message_ids) for reply in self.replies.pop(name, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        found = list(self.pull_messages(self.push_messages(messages)))
        return found[::-1]  # the order in which replies come means nothing

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *arguments: object) -> Message:
        raise NotImplementedError

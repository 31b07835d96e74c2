"""The server's side of an agreement on tables: questions down, names and sums up, before the model is made.

What clients agreed on then travels in every message, as a message may find a new process and a node may begin anew.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedreach.arrays import AnyArray, Floats
from fedreach.data.population import Population, draw_population, ids_of
from fedreach.data.table_agreement import Agreed, TableOptions, TableQuestion, Told, agreement, sum_of
from fedreach.errors import TrainingError, nearest
from fedreach.federation.aggregation.secure_sum import sum_of_limbs
from fedreach.flower import masks, messages
from fedreach.flower.agreement import MOST_CLIENTS
from fedreach.flower.clients import POLL_SECONDS, QUIET_SECONDS, ask
from fedreach.flower.messages import (
    CLIENT,
    EXCHANGE,
    KEY,
    KEYS,
    NAME,
    OURS,
    QUESTION,
    RUN,
    SESSION,
    SUMS,
    TABLE,
    TOLD,
    LostError,
    ReplyError,
)
from fedreach.streams import generator

LOG = getLogger("flwr")
KIND = "query.table"
LARGEST_TARGET_SUM = 1e100  # of squares of float32 numbers, which are below 1e39


class Agreement(NamedTuple):
    """What clients with a table each agreed on, and who they are."""

    agreed: Agreed
    population: Population
    names: Mapping[int, str]  # of the clients that were there

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        who = {"participants": self.population.participants.tolist(), "unseen": self.population.unseen.tolist()}
        return {"table": self.agreed.to_json(), **who, "names": {str(c): name for c, name in self.names.items()}}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "Agreement":
        """Return what `to_json` returned."""
        who = [np.array(stored[key], np.int64) for key in ("participants", "unseen")]
        names = {int(client): name for client, name in stored["names"].items()}
        return cls(Agreed.of_json(stored["table"]), Population(*who), names)


class TableGrid(Grid):
    """A grid whose messages carry what clients agreed on."""

    def __init__(self, grid: Grid, agreed: Agreed) -> None:
        self.grid, self.record = grid, ConfigRecord({"agreed": json.dumps(agreed.to_json())})

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(self._with_record(messages))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.grid.send_and_receive(self._with_record(messages), timeout=timeout)

    def _with_record(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        for message in found:
            message.content[TABLE] = self.record
        return found

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self.grid.create_message(*arguments, **named)


@dataclass(eq=False)
class RemoteTables:
    """Has clients agree on what their tables become.

    Args:
        grid: Carries messages.
        options: Of the experiment.
        hides: Whether the server sees sums over clients only.
        timeout: Seconds that a client has for an answer.
    """

    grid: Grid
    options: TableOptions
    hides: bool = False
    timeout: float = 600.0
    nodes: dict[int, int] = field(default_factory=dict, init=False)  # client -> node
    names: dict[int, str] = field(default_factory=dict, init=False)
    told: dict[int, Mapping[str, Any]] = field(default_factory=dict, init=False)  # names of columns and classes
    keys: dict[int, bytes] = field(default_factory=dict, init=False)
    refused: dict[int, str] = field(default_factory=dict, init=False)  # node -> why
    number: int = field(default=0, init=False)  # of exchanges

    def agree(self, participants: Any, seed: int, min_clients: int, patience: float) -> Agreement:
        """Meet clients and return what those agree on that take part.

        Args:
            participants: Names, or how many or which share of those that are there; None: all.
            seed: Of who takes part, where that is drawn.
            min_clients: That must take part.
            patience: Seconds to wait for them.

        Raises:
            TrainingError: If fewer are there, or are left after others answered wrongly or not at all.
        """
        self._meet(participants, min_clients, patience)
        population = self._population(participants, seed)
        left = population.participants.tolist()
        while True:
            if len(left) < max(min_clients, masks.MIN_CLIENTS if self.hides else 1):
                why = "".join(f" Node {node}: {text.rstrip('.')}." for node, text in sorted(self.refused.items()))
                raise TrainingError(f"{len(left)} clients agree on their tables, and {min_clients} are needed.{why}")
            found = self._attempt(left)
            if isinstance(found, Agreed):
                unseen = np.array(sorted(set(self.names) - set(left)), np.int64)
                return Agreement(found, Population(np.array(left, np.int64), unseen), dict(self.names))
            for client, why in found.items():
                LOG.warning("Client %s (%s) left the agreement on tables: %s.", client, self.names[client], why)
                self.refused[self.nodes[client]] = why
                del self.names[client], self.told[client]
            left = [client for client in left if client not in found]

    def _meet(self, participants: Any, min_clients: int, patience: float) -> None:
        """Ask whoever is there, until all that are named are, or enough and nobody new comes."""
        until, came = time.monotonic() + patience, time.monotonic()
        named = [str(each) for each in participants] if isinstance(participants, list) else None
        while True:
            fresh = [n for n in self.grid.get_node_ids() if n not in self.nodes.values() and n not in self.refused]
            if fresh:
                came = time.monotonic()
                self._introduced(fresh)
            who, now = {*self.names.values(), *map(str, self.names)}, time.monotonic()
            there = len(self.names) if named is None else len(who & set(named))
            all_there = now > came + QUIET_SECONDS if named is None else there == len(named)
            if there >= min_clients and (all_there or now > until):
                return
            if now > until:
                why = "".join(f" Node {node}: {text.rstrip('.')}." for node, text in sorted(self.refused.items()))
                missing = "" if named is None else f" Missing: {', '.join(sorted(set(named) - who))}."
                raise TrainingError(
                    f"{there} clients that take part were there after {patience:.0f} seconds, and {min_clients} are "
                    f"needed.{missing}{why} Start more SuperNodes, or lower min-clients."
                )
            time.sleep(POLL_SECONDS)

    def _introduced(self, nodes: Sequence[int]) -> None:
        """Ask new nodes who they are and what their tables hold."""
        question = ConfigRecord({QUESTION: json.dumps(TableQuestion("columns")._asdict())})
        replies = self._asked({node: RecordDict({OURS: question}) for node in nodes})
        for node, reply in sorted(replies.items()):
            try:
                content, numbers = messages.content_of(reply).content, messages.metrics_of(reply)
                client, told = messages.whole(numbers, CLIENT), _told(content)
                if client >= MOST_CLIENTS or client in self.nodes:
                    raise ReplyError(f"its partition-id is {client}: each needs one of its own, below {MOST_CLIENTS}")
                if not (_are_texts(told.get("columns")) and _are_texts(told.get("classes"))):
                    raise ReplyError("it does not tell the names of its columns and classes")
                key = content.config_records[OURS].get(KEY)
                if self.hides and not (isinstance(key, bytes) and masks.is_public_key(key)):
                    raise ReplyError("it has no key for a secure sum")
                self.nodes[client], self.told[client] = node, told
                self.names[client] = messages.printable(str(told.get(NAME) or client))
                self.keys[client] = key if isinstance(key, bytes) else b""
            except ReplyError as error:
                LOG.warning("Node %s does not take part: %s.", node, error)
                self.refused[node] = str(error)

    def _population(self, participants: Any, seed: int) -> Population:
        """Return who takes part of those that are there, ids as they say."""
        ids = sorted(self.names)
        if participants is None:
            return Population(np.array(ids, np.int64), np.empty(0, np.int64))
        if isinstance(participants, list):
            known = [self.names[client] for client in ids]
            asked = [self.names.get(int(each), str(each)) if str(each).isdigit() else each for each in participants]
            for each in asked:
                if each not in known:
                    LOG.warning("Participant %r is not there, and never trains.%s", each, nearest(each, known))
            found = ids_of([each for each in asked if each in known], known)
            places = np.array(sorted(found if isinstance(found, list) else []), np.int64)
        else:
            nothing = np.zeros((len(ids), 0), np.int64)
            places = draw_population(nothing, generator(seed, "population"), participants=participants).participants
        others = np.setdiff1d(np.arange(len(ids)), places)
        return Population(np.array(ids, np.int64)[places], np.array(ids, np.int64)[others])

    def _attempt(self, participants: Sequence[int]) -> Agreed | dict[int, str]:
        """Return what these agree on, or who of them left, and why."""
        steps, session = agreement(self.options, participants), uuid4().hex
        next(steps)  # names of columns and classes are told already
        said: Told = {client: self.told[client] for client in self.names}
        sums: Floats = np.zeros(0)
        while True:
            try:
                question = steps.send((said, sums))
            except StopIteration as end:
                found: Agreed = end.value
                return found
            self.number += 1
            LOG.info("Agreeing on tables: %s of %s clients.", question.step, len(participants))
            answers, lost = self._exchange(question, session, participants)
            if lost:
                return lost
            said = {client: told for client, (told, _) in answers.items()}
            parts = [array for _, array in answers.values()]
            sums = sum_of_limbs(np.sum(parts, axis=0), len(parts)) if self.hides else sum_of(question, parts)

    def _exchange(
        self, question: TableQuestion, session: str, participants: Sequence[int]
    ) -> tuple[dict[int, tuple[Mapping[str, Any], AnyArray]], dict[int, str]]:
        """Return what participants tell, in the order of their ids, and why some do not."""
        asked = ConfigRecord({QUESTION: json.dumps(question._asdict()), SESSION: session, EXCHANGE: self.number})
        content = {OURS: asked}
        if self.hides:
            asked[RUN] = session
            keys = [self.keys[client] for client in participants]
            content[KEYS] = ConfigRecord({"ids": list(participants), "keys": keys})
        replies = self._asked({self.nodes[client]: RecordDict(dict(content)) for client in participants})
        found: dict[int, tuple[Mapping[str, Any], AnyArray]] = {}
        lost: dict[int, str] = {}
        for client in participants:
            try:
                if self.nodes[client] not in replies:
                    raise LostError(f"no answer within {self.timeout:g} s")
                reply = messages.content_of(replies[self.nodes[client]])
                kind, whole = (np.uint64, (4, *question.shape)) if self.hides else (np.float64, question.shape)
                sums = messages.array(messages.arrays(reply, SUMS), SUMS, whole, kind)
                told = _told(reply.content)
                if question.step == "totals" and not _are_lists_of_texts(told.get("texts"), len(question.columns)):
                    raise ReplyError("it does not tell its texts")
                if not self.hides:
                    _check_sums(question, sums)
                found[client] = told, sums
            except ReplyError as error:
                lost[client] = str(error)
        return found, lost

    def _asked(self, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Return the replies by node."""
        sent = [Message(content, node, KIND, ttl=self.timeout) for node, content in contents.items()]
        return {reply.metadata.src_node_id: reply for reply in ask(self.grid, sent, self.timeout)}


def _told(content: RecordDict) -> Mapping[str, Any]:
    """Return what a client tells in words."""
    try:
        found = json.loads(str(content.config_records[OURS][TOLD]))
    except (KeyError, ValueError) as error:
        raise ReplyError(f"what it tells of its table cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ReplyError("what it tells of its table cannot be read")
    return found


def _check_sums(question: TableQuestion, sums: Floats) -> None:
    """Refuse sums that no table has."""
    counts = {"counts": sums, "totals": sums[..., :1]}.get(question.step, np.zeros(0))
    if ((counts < 0) | (counts != np.floor(counts))).any():
        raise ReplyError("its counts are no counts")
    if question.step == "squares" and (sums < 0).any():
        raise ReplyError("its sums of squares are negative")
    if (np.abs(sums[len(question.columns) :]) > LARGEST_TARGET_SUM).any():
        raise ReplyError(f"its sums of targets are larger than {LARGEST_TARGET_SUM:g}")


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_lists_of_texts(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(each is None or _are_texts(each) for each in value)

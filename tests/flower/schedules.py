"""Seeded schedules of faults for runs on Flower: a network of messages on a virtual clock.

`run_schedule(Plan.of(seed))` runs one federation in this process. By the seed, a `Network` delays, loses, doubles,
reorders, corrupts and replays its messages; clients leave, forget and come back; the server is killed and restarted on
its run folder. The run must end in words (a `FedReachError`) or in the right model. That is the model of the simulator,
bit for bit, if the simulator loses the replies that the run reports as lost. In addition, each client that was lost,
blamed or absent must have met a fault (see `replaying`). A new configuration is one line of `CONFIGURATIONS`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedreach._util.errors import FedReachError
from fedreach.flower import clients
from fedreach.flower.experiment import FlowerExperiment

from .corruptions import LIES, REQUESTS, WAYS, copied, resealed
from .replaying import Seen, differences, watched
from .same import SIX_CLIENTS, anew

CLIENTS, ROUNDS, TIMEOUT, PATIENCE = 6, 6, 5.0, 60.0
CALM_ROUND = ROUNDS - 1  # from this round on, calm schedules have no faults
SMALL = (*SIX_CLIENTS, f"rounds={ROUNDS}", "evaluation.every=3")
SPLITTING = "method.selection={name='clustered',first_round=2,eps1=1.0,eps2=0.0}"
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "scaffold": ("method.solver=scaffold",),
    "feddyn": ("method.solver=feddyn", "method.server=average"),
    "moon": ("method.loss={name='moon',mu=5.0}", "model=mlp"),
    "power of choice": ("method.selection=power_of_choice",),
    "minimax": ("method.selection={name='minimax',refresh=1}", "method.weighting=entropy"),
    "label counts": ("method.selection=kl_filter",),
    "disagreement": ("method.weighting=disagreement",),
    "centered clipping": ("method.aggregation=centered_clipping", "methods.entropy.weighting=equal"),
    "fedvarp": ("method.aggregation=fedvarp",),
    "clusters": (SPLITTING, "method.solver=scaffold"),
    "adaptation": ("method.adaptation={name='label_shift',guard=false}",),
    "clipped": ("local.clip_norm=0.5", "method.selection=multinomial"),
}
CHURN = ("client left", "client restarted", "client forgot", "second node")
MESSAGES = ("late", "lost", "doubled", "reordered", "corrupted reply", "corrupted request", "replayed", "error", "lie")
SERVER = ("server killed",)
KINDS = (*MESSAGES, *CHURN, *SERVER)
HUNG_SECONDS, MAX_KILLS, MAX_RESTARTS = 50_000.0, 4, 3


class Killed(BaseException):
    """The server's process ends, as by a signal."""


class Hung(BaseException):
    """The run waits for more virtual seconds than any schedule needs."""


class Clock:
    """A clock that only advances when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)
        if self.now > HUNG_SECONDS:
            raise Hung


@dataclass(frozen=True)
class Plan:
    """What a seed chooses: the configuration, the kinds of faults, and how often they occur."""

    seed: int
    configuration: str
    kinds: tuple[str, ...]
    rate: float  # probability of a fault at a message
    is_calm: bool  # without faults from `CALM_ROUND` on

    @classmethod
    def of(cls, seed: int, configuration: str | None = None, kind: str | None = None) -> Plan:
        """Return the plan of a seed, with this configuration or this kind of faults if they are given."""
        rng = np.random.default_rng([seed, 1])
        name = configuration or str(rng.choice([*CONFIGURATIONS]))
        kinds = [kind] if kind else rng.choice(KINDS, size=rng.integers(1, 5), replace=False).tolist()
        return cls(seed, name, tuple(kinds), float(rng.choice([0.03, 0.1, 0.25])), bool(rng.integers(2)))


# ---- The network


@dataclass(eq=False)
class Node:
    """A SuperNode: a client's state, and whether it runs and whether the link counts it as online."""

    client: int
    context: Context
    runs: bool = True
    seen_until: float = np.inf  # when the link notices that it does not run


class Network(Grid):
    """A grid in one process whose messages arrive later, changed, twice, in another order, or never."""

    def __init__(self, app: ClientApp, clock: Clock, plan: Plan) -> None:
        self.app, self.clock, self.plan, self.rng = app, clock, plan, np.random.default_rng([plan.seed, 2])
        self.nodes: dict[int, Node] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.inbox: dict[str, list[Message]] = {}  # by request
        self.history: list[Message] = []  # replies that were sent once
        self.count = self.round = self.kills = 0
        self.injected: Counter[str] = Counter()
        self.disturbed: set[tuple[int, int]] = set()  # round, client
        self.erasing: dict[int, int] = {}  # round -> client that sends 1e20
        self.scores: dict[tuple[int, int], list[dict[str, Any]]] = {}  # honest evaluations, by round and client
        self.is_quiet = False
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        for client in range(CLIENTS):
            self.add_node(client)

    # ---- Nodes

    def add_node(self, client: int) -> None:
        number = 1000 + 7 * len(self.nodes) if len(self.nodes) % 2 else 5000 - 11 * len(self.nodes)
        config = {"partition-id": client, "num-partitions": CLIENTS}
        self.nodes[number] = Node(client, Context(1, number, config, RecordDict(), {}))

    def get_node_ids(self) -> Iterable[int]:
        self.advance()
        return [number for number, node in self.nodes.items() if node.runs or self.clock.now < node.seen_until]

    def online_clients(self) -> set[int]:
        return {node.client for node in self.nodes.values() if node.runs}

    def churn(self) -> None:
        """Let a node leave, restart, forget, or return; or start a second node of a client."""
        if "client left" in self.plan.kinds or self.is_quiet:
            for node in self.nodes.values():
                if not node.runs and node.seen_until != -np.inf and self.clock.now >= node.seen_until and self.hits(3):
                    node.runs, node.seen_until = True, np.inf  # with its state
        number = int(self.rng.choice([*self.nodes]))
        node = self.nodes[number]
        if not node.runs:
            return
        if self.happens("client left", node.client):
            node.runs, node.seen_until = False, self.clock.now + self.rng.choice([0.0, 30.0])
        elif self.happens("client restarted", node.client):
            node.runs, node.seen_until = False, -np.inf  # for good
            self.add_node(node.client)
        elif self.happens("client forgot", node.client):
            node.context = Context(1, number, node.context.node_config, RecordDict(), {})
        elif self.happens("second node", node.client):
            self.add_node(node.client)

    def calm_down(self) -> None:
        """End all faults, and let each client have a node that runs."""
        if not self.is_quiet:
            self.clock.now += 2 * PATIENCE  # enough for nodes to be asked again
        self.is_quiet = True
        for client in set(range(CLIENTS)) - self.online_clients():
            self.add_node(client)

    # ---- Faults

    def hits(self, times: float = 1.0) -> bool:
        return bool(self.rng.random() < times * self.plan.rate)

    def happens(self, kind: str, *disturbed: int) -> bool:
        """Return whether a fault of this kind occurs now, and note the clients that it disturbs."""
        if self.is_quiet or kind not in self.plan.kinds or not self.hits():
            return False
        self.injected[kind] += 1
        self.disturbed |= {(self.round, client) for client in disturbed}
        return True

    def seconds(self, client: int) -> float:
        """Return how long a message travels."""
        if self.happens("late", client):
            return float(self.rng.uniform(1.0, 4 * TIMEOUT))
        return float(self.rng.uniform(0.0, 2.0 if self.happens("reordered") else 0.3))

    # ---- Messages

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            self.advance()
            self.maybe_kill()
            self.churn()
            name = f"m{self.count}"
            self.count += 1
            names.append(name)
            number = message.metadata.dst_node_id
            request = message_from_proto(message_to_proto(message))
            message.metadata.__dict__["_message_id"] = request.metadata.__dict__["_message_id"] = name
            self.note_round(request)
            client = self.nodes[number].client
            if self.happens("lost", client):
                continue
            if self.happens("corrupted request", client):
                request = REQUESTS[self.draw(REQUESTS)](self.rng, request)
            for _ in range(1 + self.happens("doubled", client)):
                self.later(self.seconds(client), lambda r=request, m=number: self.arrive(m, r))
        return names

    def note_round(self, request: Message) -> None:
        config = request.content.config_records.get("config", {})
        if request.metadata.message_type in ("train", "evaluate") and "server-round" in config:
            self.round = int(config["server-round"])
            if self.plan.is_calm and self.round >= CALM_ROUND - 1 and request.metadata.message_type == "evaluate":
                self.calm_down()
            if self.plan.is_calm and self.round >= CALM_ROUND:
                self.calm_down()

    def draw(self, choices: Iterable[str]) -> str:
        return str(self.rng.choice([*choices]))

    def arrive(self, number: int, request: Message) -> None:
        """Let a node answer a request, and send the reply."""
        node = self.nodes[number]
        if not node.runs:
            self.disturbed.add((self.round, node.client))
            return
        try:
            reply = self.app(copied(request), node.context)
        except Exception as error:
            reply = Message(Error(code=2, reason=f"Traceback\n{type(error).__name__}: {error}"), reply_to=request)
        reply = message_from_proto(message_to_proto(reply))
        if not reply.has_error() and request.metadata.message_type == "evaluate":
            asked = request.content.config_records.get("fedreach", {}).get("round", -1)
            honest = self.scores.setdefault((int(asked), node.client), [])
            honest.append(dict(reply.content.metric_records["metrics"]))
        if self.happens("lost", node.client):
            return
        if self.happens("error", node.client):
            reply = Message(Error(code=2, reason="OSError: disk gone"), reply_to=request)
        elif not reply.has_error() and self.happens("corrupted reply", node.client):
            reply = WAYS[self.draw(WAYS)](self.rng, reply)
        elif not reply.has_error() and request.metadata.message_type != "query" and self.happens("lie", node.client):
            way = self.draw(LIES)
            if way == "1e20" and self.erasing.setdefault(self.round, node.client) != node.client:
                way = "NaN"  # the limit does not hold if half of the clients of a round lie alike
            reply = resealed(LIES[way](self.rng, reply))
        replies = [reply] * (1 + self.happens("doubled", node.client))
        if self.history and self.happens("replayed", node.client):
            replies.insert(int(self.rng.integers(2)), self.replay(reply))
            replies = replies[: int(self.rng.integers(1, 3))]
        self.history.append(reply)
        for each in replies:
            name = request.metadata.message_id
            self.later(self.seconds(node.client), lambda n=name, e=each: self.inbox.setdefault(n, []).append(copied(e)))

    def replay(self, reply: Message) -> Message:
        """Return an earlier reply, as it was or as if it were from another node or to the current request."""
        old = copied(self.history[int(self.rng.integers(len(self.history)))])
        self.disturbed.add((self.round, self.nodes[old.metadata.src_node_id].client))
        way = self.rng.integers(3)
        if way == 0:
            old.metadata.__dict__.update(reply.metadata.__dict__)
        elif way == 1:
            old.metadata.__dict__["_src_node_id"] = int(self.rng.choice([77, *self.nodes]))
            old.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            self.disturbed |= {(self.round, client) for client in range(CLIENTS)}
        return old

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.clock.now + seconds, self.count, do))

    def advance(self) -> None:
        while self.events and self.events[0][0] <= self.clock.now:
            heapq.heappop(self.events)[2]()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.advance()
        self.maybe_kill(0.1)
        found = [reply for name in sorted(message_ids) for reply in self.inbox.pop(name, [])]
        return [found[i] for i in self.rng.permutation(len(found))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return clients.send_and_wait(self, messages, TIMEOUT if timeout is None else timeout)

    def maybe_kill(self, times: float = 1.0) -> None:
        if self.kills < MAX_KILLS and self.rng.random() < times and self.happens("server killed"):
            self.kills += 1
            raise Killed

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *arguments: object) -> Message:
        raise NotImplementedError


# ---- A schedule and its ending


class Ending(NamedTuple):
    """How a schedule ends: right, in words, wrong, hung or with a traceback; and the reason."""

    how: str
    why: str
    injected: Counter[str]


@cache
def experiment(configuration: str) -> FlowerExperiment:
    return FlowerExperiment(overrides=(*SMALL, *CONFIGURATIONS[configuration]))


@cache
def app_of(configuration: str) -> ClientApp:
    return experiment(configuration).client_app(kept_in_process=CLIENTS)


def run_schedule(plan: Plan) -> Ending:
    """Run a federation with the faults of a plan, and return how it ends."""
    clock, seen = Clock(), Seen()
    network, failures = Network(app_of(plan.configuration), clock, plan), list[str]()

    def ending(how: str, why: str = "") -> Ending:
        return Ending(how, f"{plan}: {why}", network.injected)

    with TemporaryDirectory() as name, watched(seen, clock):
        while True:
            setup = anew(experiment(plan.configuration))
            server = setup.strategy(Path(name), timeout=TIMEOUT, patience=PATIENCE)
            seen.watch(server)
            seen.fits.clear()
            try:
                server.run(network)
                break
            except Killed:
                clock.sleep(1.0)
            except Hung:
                return ending("hung")
            except FedReachError as error:
                failures.append(str(error))
                if len(failures) == MAX_RESTARTS or not str(error).strip():
                    return ending("in words" if all(map(str.strip, failures)) else "traceback", failures[-1])
                network.calm_down()  # somebody repairs the network, and runs the command again
            except Exception as error:
                return ending("traceback", f"{type(error).__name__}: {error}")
        problems = list(differences(setup, Path(name), network, seen, had_failures=bool(failures)))
    return ending("wrong", "; ".join(problems)) if problems else ending("right")

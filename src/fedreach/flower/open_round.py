"""A round between what is sent to the clients and what comes back."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import getLogger

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedreach.engines.protocols import Engine
from fedreach.errors import ConfigError
from fedreach.federation.federation import Federation
from fedreach.federation.participation import Participation
from fedreach.federation.state import FederationState
from fedreach.federation.steps import AskLosses, AskServer, AskUpdates, Done, Steps, advance, lost_replies, planned
from fedreach.federation.traits import name_of
from fedreach.federation.values import Reports
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry, ask
from fedreach.flower.incoming import Answer, Collected, Incoming
from fedreach.flower.messages import ReplyError
from fedreach.flower.outgoing import Outgoing
from fedreach.simulation.own_data import learnt

LOG = getLogger("flwr")


@dataclass(eq=False)
class OpenRound:
    """The `Side` of a round that answers by messages: `begin` returns those to the cohort, `end` takes the replies.

    It holds the generator of the round, and so is never stored: a server that is started again begins the round anew.
    """

    federation: Federation
    registry: ClientRegistry
    outgoing: Outgoing
    incoming: Incoming
    participation: Participation  # whose replies an experiment has get lost, as the simulator does
    engine: Engine | None  # the server's own, where it trains
    counted: Mapping[int, int]  # client -> last round in which its report counted
    grid: Grid
    config: ConfigRecord  # the user's own, which FedReach does not read
    probed: dict[int, Answer] = field(default_factory=dict)  # of those who were asked for their update before
    began: float = field(default_factory=time.perf_counter)

    def begin(self, steps: Steps) -> list[Message]:
        """Play the round until its cohort is chosen; return the messages to those who have not trained in the probe."""
        self.steps, self.request = steps, planned(steps, self)
        if isinstance(self.request, AskServer):
            return []
        chosen = self.request.selection.ids.tolist()
        LOG.info("FedReach chose clients %s.", chosen)
        keys = self.federation.label_statistics.only_sum
        return self._sent(self.request, [client for client in chosen if client not in self.probed], keys=keys)

    def end(self, replies: Iterable[Message]) -> Done:
        """Conclude the round with the replies to what `begin` returned."""
        request = self.request
        if not isinstance(request, AskServer):
            chosen = request.selection.ids.tolist()
            kept = {client: self.probed[client] for client in chosen if client in self.probed}
            collected = self._collected(request, [client for client in chosen if client not in kept], replies, kept)
            done = advance(self.steps, self.incoming.reports(collected, request.view))
            if isinstance(done, Done):
                return done
            assert isinstance(done, AskServer)  # clients are asked for nothing more
            request = done
        done = advance(self.steps, self.learnt(request))
        assert isinstance(done, Done)
        return done

    # ----------------------------------------------------------------------------------------------- as a `Side`

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        """Ask the clients of a probe for their losses; return those that came in time."""
        probe, found = request.probe, dict[int, float]()
        ids = probe.ids.tolist()
        silent = [client for client in ids if not self.registry.known[client].trains_as_asked]
        if silent:
            raise ConfigError(
                f"{name_of(self.federation.selection)} asks clients for losses, and that is not in the app of client "
                f"{silent[0]}. Use fedreach.flower.client_app, or another selection."
            )
        nodes = self.registry.nodes_of(ids)
        clients = {node: client for client, node in nodes.items()}
        batch_size = probe.batch_size if probe.asks == "batch_loss" else 0
        sent = self.outgoing.losses(nodes, request.state, request.view, batch_size)
        for reply in ask(self.grid, sent, self.registry.timeout):
            client = clients.get(reply.metadata.src_node_id)
            try:
                if client is not None:
                    metrics = messages.metrics_of(messages.content_of(reply))
                    messages.check_question(reply, self.outgoing.run, request.view.round)
                    found[client] = self.incoming.checks.loss(metrics)
            except ReplyError as error:
                LOG.warning("Client %s did not tell its loss: %s.", client, error)
                self.registry.blame(f"client {client}", error)
        return found

    def updates(self, request: AskUpdates) -> Reports:
        """Ask the clients of a probe for their updates; those of the cohort come in by `end`."""
        ids = request.selection.ids.tolist()
        collected = self._collected(request, ids, ask(self.grid, self._sent(request, ids), self.registry.timeout))
        for client, reason in collected.lost.items():
            LOG.warning("Client %s did not answer the probe of round %s: %s.", client, request.view.round, reason)
        self.probed = collected.answers
        return self.incoming.reports(collected, request.view, probe=True)

    def learnt(self, request: AskServer) -> FederationState:
        assert self.engine is not None  # the strategy saw to it
        return learnt(self.federation, self.engine, self.engine.task.data.server, request)

    # --------------------------------------------------------------------------------------------------- messages

    def _sent(
        self, request: AskUpdates, clients: Iterable[int], *, keys: bool = False, restore: bool = False
    ) -> list[Message]:
        nodes, selection = self.registry.nodes_of(clients), request.selection
        public = self.registry.keys(nodes) if keys else None
        draws = None
        if selection.draws is not None:
            draws = dict(zip(selection.ids.tolist(), selection.draws.tolist(), strict=True))
        return self.outgoing.train(
            nodes, request.state, request.view, self.counted, self.config, draws=draws, keys=public, restore=restore
        )

    def _collected(
        self,
        request: AskUpdates,
        asked: list[int],
        replies: Iterable[Message],
        kept: Mapping[int, Answer] | None = None,
    ) -> Collected:
        """Return what came, and what is `kept` from a probe; who lost its memory is sent it and asked again."""
        collected = Collected.nothing(asked, self.registry.timeout)
        collected.answers |= kept or {}
        clients = {node: client for client, node in self.registry.nodes_of(asked).items()}
        given = request.state, request.view, self.outgoing.run
        self.incoming.read(replies, clients, collected, *given)
        again = collected.lost_memory
        if again:
            LOG.info("Clients %s lost what they kept between rounds, and are sent it.", again)
            clients = {node: client for client, node in self.registry.nodes_of(again).items()}
            replies = ask(self.grid, self._sent(request, again, restore=True), self.registry.timeout)
            self.incoming.read(replies, clients, collected, *given)
        there = np.array(sorted(collected.answers), np.int64)
        lost = lost_replies(self.participation, there, self.federation.seed, request.view.round, probe=request.probe)
        for client in lost.tolist():
            del collected.answers[client]
            collected.lost[client] = "its reply did not arrive"
        return collected

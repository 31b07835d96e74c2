"""Distance of a federated model from a model that is trained on the pooled examples."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.data.splits import ClientIndex, Population
from fedreach.federation.base import name_of
from fedreach.federation.federation import Federation
from fedreach.runs.simulation import Simulation, simulate


def weight_divergence(simulation: Simulation) -> Iterator[float]:
    """Yield the weight divergence ||w - v|| / ||v|| after each round, over the trained parameters.

    w is the federated model. v is trained by SGD on the pooled training examples of the participants: from the same
    initial weights, with the same learning rates, and with as many steps per round as each client takes. Its batches
    have `batch_size` times the cohort size examples, so both models read equally many. Momentum restarts in each round.

    Use when: you study how far skewed data move the model. A function of the clients' earth mover's distances, see
    `fedreach.data.assignment.PartitionStatistics`, bounds the divergence.

    Raises:
        ConfigError: If `simulation` is not a `Simulation`, clients take different numbers of steps, or a component
            trains several models, trains on server data or stores vectors for the loss.

    Reference: Zhao, Li, Lai, Suda, Civin and Chandra, "Federated Learning with Non-IID Data", arXiv 1806.00582,
    sections 2 and 3; "Client Selection with Rademacher Complexity for Federated Learning", section 1.

    Example:
        >>> from fedreach.testing.problems import tiny_simulation
        >>> [round(value, 3) for value in weight_divergence(tiny_simulation())][:2]
        [0.173, 0.103]
    """
    if not isinstance(simulation, Simulation):
        raise ConfigError(
            f"weight_divergence needs a Simulation, which has the examples of all clients; got "
            f"{type(simulation).__name__}. Simulate the federation: on Flower, examples cannot be pooled."
        )
    twin = _pooled(simulation)
    state, central = simulation.start(), twin.start()
    p = simulation.engine.num_trainable
    for _ in range(simulation.rounds):
        state, central = simulation.step(state).state, twin.step(central).state
        w, v = (
            np.asarray(model[:p], np.float64) for model in (state.adapted(simulation.federation)[0], central.params)
        )
        yield float(np.linalg.norm(w - v) / np.linalg.norm(v))


def _pooled(simulation: Simulation) -> Simulation:
    """Return the simulation of one client that holds the training examples of all participants."""
    federation, data, task = simulation.federation, simulation.data, simulation.engine.task
    unsuited = federation.selection if federation.selection.makes_clusters else federation.learning_server
    for component in (unsuited, federation.memory_loss):
        if component is not None:
            raise ConfigError(
                f"weight_divergence needs one model that only clients train, with a loss without memory; got "
                f"{name_of(component)}. Use another component."
            )
    local, view = federation.local, simulation.first_view
    steps = np.unique(local.steps_of(view.num_examples, view.ids, federation.seed, 1))
    if not isinstance(local.steps, int | None) or len(steps) > 1:  # `UnevenSteps` differ in other rounds
        raise ConfigError(
            f"weight_divergence needs the same number of local steps at all clients; got {steps.tolist()}. Set "
            "local.steps to a number."
        )
    batch_size = min(local.batch_size * federation.cohort_size, 10**9)
    local = replace(local, steps=int(steps[0]), batch_size=batch_size)
    rows, nobody = np.sort(data.train.of(data.population.participants)[0]), np.empty(0, np.int64)
    pooled = replace(
        data,
        population=Population(np.zeros(1, np.int64), nobody),
        train=ClientIndex.of_sizes(rows, np.array([len(rows)])),
        held_out=ClientIndex.of_sizes(nobody, np.zeros(1, np.int64)),
    )
    alone = Federation(
        *(fr.selection.Full(), fr.weighting.ByExamples(), fr.solver.FedAvg(), local, fr.server.Average()),
        cohort_size=1,
        seed=federation.seed,
        loss=federation.loss,
        augmentation=federation.augmentation,
    )
    return simulate(pooled, lambda *_: task.module, alone, rounds=simulation.rounds, engine="sequential")

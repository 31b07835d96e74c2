"""Checks of local solvers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats
from fedreach._util.streams import generator
from fedreach.federation.base import LocalSolver
from fedreach.federation.types import NO_STATE, ClientResults, State
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail, same, shown

ROUNDS, LOOK, STEPS, LR = 3000, 200, 10, 0.1  # of the training in `stops_where_the_clients_balance`
NEAR = 1e-4
"""Maximum of 1 + cos of the angle between the clients' gradients in three tests in a row (FedAvg: 0.03 or more)."""


@dataclass(frozen=True, eq=False)
class MidRound(Case):
    """A step in the local training of k clients."""

    gradient: Float32s  # (k, p)
    params: Float32s  # (k, p)
    broadcast: Float32s  # (k, p), equal rows
    memory: Float32s  # (k, p)
    share: Floats  # (k,)
    steps: Floats  # (k,)


def stacks() -> Iterator[MidRound]:
    """Yield stacks of several sizes."""
    for k, p in ((1, 1), (3, 5), (4, 200)):
        rng = generator(k, "testing stack")
        gradient, params, memory = (rng.standard_normal((k, p)).astype(np.float32) for _ in range(3))
        broadcast = np.tile(rng.standard_normal(p).astype(np.float32), (k, 1))
        share = np.arange(1.0, k + 1) * 2 / (k + 1)
        words = f"{k} client{'s' * (k > 1)} with a model of {p} number{'s' * (p > 1)}"
        yield MidRound(words, gradient, params, broadcast, memory, share, rng.integers(1, 9, k).astype(np.float64))


def _play(solver: Any, case: MidRound, keep: Callable[[State], State] = lambda state: state) -> list[Outcome]:
    """Return the corrected gradients and server steps of three rounds; the clients' states are 0 at first."""
    state: State = {}
    outcomes, now = [], replace(case, memory=np.zeros_like(case.memory))
    for number in range(1, 4):
        terms = _terms(solver, now, state)
        followed = _corrected(solver, now, terms)
        outcomes.append(Outcome(f"in round {number} the corrected gradients were {shown(followed)}", followed))
        if solver.is_stateful:
            new_memory = _new_memory(solver, now, state)
            step, state = _conclude(solver, now, state, new_memory)
            state, now = keep(state), replace(now, memory=new_memory)
            outcomes.append(Outcome(f"in round {number} the step was {shown(step)}", np.asarray(step)))
    return outcomes


PLAYING = RepeatedRuns(stacks, _play)


@define_check(stacks)
def numbers_are_independent(subject: Subject, case: MidRound) -> None:
    """A solver corrects each number independently, so a stack of clients has the same results as single clients."""
    solver, arrays = subject.component, (case.gradient, case.params, case.broadcast)
    for number, state in _states(solver, case):
        terms = _terms(solver, case, state)
        together = _corrected(solver, case, terms)
        if together.shape != case.gradient.shape or not np.isfinite(together).all():
            fail(f"for gradients of shape {case.gradient.shape}, correct returned {shown(together)}")
        for i in range(len(together)):
            alone = np.asarray(solver.correct(*(a[i] for a in arrays), **{key: t[i] for key, t in terms.items()}))
            _alike(together[i], alone, f"client {i} got {{}} in the stack and {{}} alone, in round {number}")
        half = slice(0, (together.shape[1] + 1) // 2)
        cut = {key: term if term.shape[1] == 1 else term[:, half] for key, term in terms.items()}
        component = np.asarray(solver.correct(*(a[:, half] for a in arrays), **cut))
        _alike(together[:, half], component, "the first numbers were {} with the others and {} alone")


@define_check(stacks)
def the_same_in_torch(subject: Subject, case: MidRound) -> None:
    """The correction is the same for torch tensors and numpy arrays, and changes no argument."""
    import torch

    solver, arrays = subject.component, (case.gradient, case.params, case.broadcast)
    for _, state in _states(solver, case):
        terms = _terms(solver, case, state)
        tensors = [torch.from_numpy(a.copy()) for a in arrays]
        named = {key: torch.from_numpy(np.array(term)) for key, term in terms.items()}
        before = [tensor.clone() for tensor in (*tensors, *named.values())]
        answer = solver.correct(*tensors, **named)
        names = ("gradient", "params", "broadcast", *named)
        for name, old, new in zip(names, before, (*tensors, *named.values()), strict=True):
            if not torch.equal(old, new):
                fail(f"correct changed the tensor `{name}`; write a - b instead of a -= b or a.sub_(b)")
        _alike(_corrected(solver, case, terms), answer.numpy(), "it was {} in numpy and {} in torch", within=1e-5)


@define_check(stacks, lambda solver, _: solver.affine)
def affine_as_declared(subject: Subject, case: MidRound) -> None:
    """A solver with ``affine = True`` returns g + pull (w - w0) + shift, with the same pull for all numbers."""
    solver, none = subject.component, np.zeros_like(case.gradient)
    for number, state in _states(solver, case):
        terms = _terms(solver, case, state)
        shift = np.asarray(solver.correct(none, case.broadcast, case.broadcast, **terms))
        pull = (np.asarray(solver.correct(none, case.broadcast + 1, case.broadcast, **terms)) - shift)[:, :1]
        expected = case.gradient + pull * (case.params - case.broadcast) + shift
        _alike(
            _corrected(solver, case, terms),
            expected,
            f"in round {number} it returned {{}}; the affine formula gives {{}}",
            within=1e-4,
        )


@define_check(stacks, lambda solver, _: solver.is_stateful)
def client_memory_is_independent(subject: Subject, case: MidRound) -> None:
    """A client's terms and new state depend only on its own state and update, not on the other clients."""
    solver = subject.component
    for number, state in _states(solver, case):
        handed, new_memory = solver.prepare(case.memory, state, case.share), _new_memory(solver, case, state)
        if new_memory.shape != case.memory.shape or new_memory.dtype != np.float32 or not np.isfinite(new_memory).all():
            fail(f"remember should return finite float32 of shape {case.memory.shape}; got {shown(new_memory)}")
        for i in range(len(new_memory)):
            single = _pick(case, slice(i, i + 1))
            alone = solver.prepare(single.memory, state, single.share)
            for key in handed:
                text = f"client {i} received {key} = {{}} with the others and {{}} alone, in round {number}"
                _alike(handed[key][i], alone[key][0], text)
            text = f"the state of client {i} was {{}} with the others and {{}} alone, in round {number}"
            _alike(new_memory[i], _new_memory(solver, single, state)[0], text)


@define_check(lambda: (1.0, 0.6), lambda solver, _: solver.is_stateful and _clients_follow_it(solver))
def stops_where_the_clients_balance(subject: Subject, case: float) -> None:
    """If a solver uses client states, training converges to a point where a weighted sum of the gradients is zero.

    At this point, the gradients of two clients have opposite directions, even if clients are sometimes absent. FedAvg
    converges to another point, because its local steps are biased. Solvers whose clients do not read their states, such
    as FedNova, keep this bias. The input is the probability with which each of two clients participates. They minimize
    1/2 (w - b)' A (w - b).
    """
    solver, state = subject.component, NO_STATE
    A, b = np.array([[1.0, 2.0], [3.0, 0.5]]), np.array([[1.0, -1.0], [-2.0, 4.0]])  # A diagonal
    x, memory, near, rng = np.full(2, 0.5), np.zeros((2, 2), np.float32), 0, generator(0, "testing balance")
    for number in range(1, ROUNDS + 1):
        rows = np.flatnonzero(rng.random(2) < case)
        if not len(rows):
            continue
        start = np.tile(x.astype(np.float32), (len(rows), 1))
        share, steps = np.array([0.5, 1.5])[rows], np.full(len(rows), float(STEPS))
        now = MidRound("", start, start, start, memory[rows], share, steps)
        terms = _terms(solver, now, state)
        for _ in range(STEPS):
            now = replace(now, gradient=(A[rows] * (now.params - b[rows])).astype(np.float32))
            now = replace(now, params=now.params - np.float32(LR) * _corrected(solver, now, terms))
        memory[rows] = new_memory = _new_memory(solver, now, state)
        step, state = _conclude(solver, now, state, new_memory, n=2)
        x = x + step
        if number % LOOK == 0:
            first, second = A * (x - b)
            off = 1 + first @ second / max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1e-12)
            near = near + 1 if off < NEAR else 0
            if near == 3:
                return
    fail(f"after {ROUNDS} rounds, no weighted sum of the gradients {shown(first)} and {shown(second)} is zero")


@define_check()
def the_same_in_both_engines(subject: Subject) -> None:
    """The engines `sequential` and `vmap` give the same model."""
    from fedreach.engines.engine import TorchEngine
    from fedreach.engines.sequential import Sequential
    from fedreach.engines.vmap import Vmap
    from fedreach.testing.problems import tiny_simulation

    toy, models = tiny_simulation(), []
    federation = replace(toy.federation, solver=subject.component)
    task = replace(toy.engine.task, solver=subject.component)
    for trainer in (Sequential, Vmap):  # by class, because by name FedReach would replace an engine that differs
        simulation = replace(toy, federation=federation, engine=TorchEngine(trainer, task))
        state = simulation.start()
        for _ in range(3):
            state = simulation.step(state).state
        models.append(state.params)
    _alike(models[0], models[1], "after 3 rounds, the models are {} and {}", within=1e-5)


def _states(solver: Any, case: MidRound) -> Iterator[tuple[int, State]]:
    """Yield the server's state in rounds 1 and 3, with the number of the round."""
    yield 1, {}
    if solver.is_stateful:
        state: State = {}
        for _ in range(2):
            state = _conclude(solver, case, state, _new_memory(solver, case, state))[1]
        yield 3, state


def _clients_follow_it(solver: LocalSolver) -> bool:
    """Return whether the terms of clients depend on their states."""
    *_, case = stacks()
    blank = replace(case, memory=np.zeros_like(case.memory))
    for _, state in _states(solver, case):
        handed, without = (_terms(solver, stack, state) for stack in (case, blank))
        if any(not same(handed[key], without[key]) for key in handed):
            return True
    return False


def _conclude(
    solver: LocalSolver, case: MidRound, state: State, new_memory: Float32s, n: int = 8
) -> tuple[Floats, State]:
    """Return the step and the state after a round in which k of n clients replied."""
    update, k = case.params - case.broadcast, len(case.params)
    note = (new_memory - case.memory).astype(np.float32) if solver.sends_note else None
    metrics = {"num_examples": case.share * 10, "loss": np.ones(k), "share": case.share}
    step, new = solver.conclude(
        state, ClientResults(np.arange(k), update, metrics, note=note), update.mean(axis=0, dtype=np.float64), n
    )
    if np.shape(step) != case.broadcast.shape[1:] or not np.isfinite(step).all():
        fail(f"conclude should return a finite step of {case.broadcast.shape[1]} numbers; got {shown(step)}")
    solver.adapted(case.broadcast[0], new)
    return step, new


def _new_memory(solver: LocalSolver, case: MidRound, state: State) -> Float32s:
    return solver.remember(case.memory, state, case.params - case.broadcast, case.steps, LR)


def _corrected(solver: Any, case: MidRound, terms: Mapping[str, Float32s]) -> Float32s:
    return np.asarray(solver.correct(case.gradient, case.params, case.broadcast, **terms))


def _terms(solver: Any, case: MidRound, state: State) -> Mapping[str, Float32s]:
    if not solver.is_stateful:
        return {}
    terms: Mapping[str, Float32s] = solver.prepare(case.memory, state, case.share)
    for key, term in terms.items():
        k, p = case.memory.shape
        if np.shape(term) not in ((k, p), (k, 1)) or term.dtype != np.float32:
            fail(f"prepare should return float32 of shape ({k}, {p}) or ({k}, 1); {key} is {shown(term)}")
    return terms


def _pick(case: MidRound, rows: slice) -> MidRound:
    arrays = {key: value[rows] for key, value in vars(case).items() if key != "words"}
    return replace(case, **arrays)


def _alike(a: Any, b: Any, text: str, within: float = 1e-6) -> None:
    if np.shape(a) != np.shape(b) or not np.allclose(a, b, rtol=within, atol=within):
        fail(text.format(shown(np.asarray(a)), shown(np.asarray(b))))

"""A trial before the first round: the correction of a solver must act on each number by itself.

Engines hand `correct` different pieces: a vector, a stack of clients, some layers. One that looks at other numbers,
such as a norm over all, would train another model on each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedreach.errors import ConfigError
from fedreach.federation.protocols import LocalSolver, MemorySolver
from fedreach.federation.traits import name_of

MOST = 4096  # numbers that are tried where a model has more
SCALES = (1e-4, 1.0, 1e4)  # of what is changed: some look at others only above a limit, or below


def refuse_mixing(solver: LocalSolver, p: int) -> None:
    """Refuse a solver whose correction of one number depends on others.

    Every second number of gradient, parameters, broadcast and memory is changed; the corrections of those between must
    stay the same. A solver that fails on such numbers is left to the first round, which says where.

    Args:
        solver: The solver.
        p: Numbers of the model that are trained.

    Raises:
        ConfigError: If a correction changes.

    Example:
        >>> class ByNorm:
        ...     def correct(self, gradient, params, broadcast):
        ...         return gradient / gradient.norm()
        >>> refuse_mixing(ByNorm(), p=4)
        Traceback (most recent call last):
        fedreach.errors.ConfigError: ByNorm.correct must act on each number by itself, ...
    """
    if p < 2:
        return
    for size in dict.fromkeys((min(p, MOST), p)):
        try:
            mixes = _mixes(solver, size)
        except Exception:  # one with a number for each parameter takes p only
            continue
        if mixes:
            raise ConfigError(
                f"{name_of(solver)}.correct must act on each number by itself, and changes when others do, as by a "
                "norm over all. Write what looks at the whole gradient as a loss with a method `objective`."
            )
        return


def _mixes(solver: Any, size: int) -> bool:
    first = _corrected(solver, size, None)
    others = (_corrected(solver, size, scale) for scale in SCALES)
    return any(not torch.allclose(first[::2], other[::2], rtol=1e-5, atol=0, equal_nan=True) for other in others)


def _corrected(solver: Any, size: int, scale: float | None) -> Tensor:
    """Return the correction of a vector; with a scale, every second number of all arguments is another one."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4, size), np.float32)
    if scale is not None:
        vectors[:, 1::2] = np.float32(scale) * rng.standard_normal((4, size // 2), np.float32)
    gradient, params, broadcast, memory = vectors
    terms: dict[str, Tensor] = {}
    if isinstance(solver, MemorySolver):
        prepared = solver.prepare(memory[None], {}, np.ones(1))
        terms = {name: torch.from_numpy(np.array(rows[0])) for name, rows in prepared.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # one that draws, draws the same
        found: Tensor = solver.correct(*map(torch.from_numpy, (gradient, params, broadcast)), **terms)
    return found

"""What eq. 61 charges a set of clients for what it breaks."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Bools, Floats, Ints


def penalty_terms(
    sets: Bools, divergence: Floats, max_divergence: float, num_examples: Ints, min_examples: int
) -> tuple[Floats, Floats]:
    """Return c1, how far the chosen clients are beyond the divergence, and c2, how many examples are missing.

    c1 = sum_k max(0, a_k (D_k - e1)) and c2 = max(0, e2 - sum_k a_k d_k), of each of p sets (p, K).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 61, set
    right: see `printed_penalty_terms`.

    Example:
        >>> D, d = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400])
        >>> c1, c2 = penalty_terms(np.array([[True, True, False, False]]), D, 0.2, d, 2000)
        >>> c1.round(2), c2
        (array([0.15]), array([650.]))
    """
    inside = sets.astype(np.float64)
    beyond = inside @ np.maximum(divergence - max_divergence, 0.0)
    return beyond, np.maximum(min_examples - inside @ num_examples, 0.0)


def printed_penalty_terms(
    sets: Bools, divergence: Floats, max_divergence: float, num_examples: Ints, min_examples: int
) -> tuple[Floats, Floats]:
    """Return c1 and c2 as the paper prints them; for comparison only.

    c1 = max(0, sum_k (a_k D_k - e1)) is nearly always 0, as each client left out counts -e1; and
    c2 = max(0, sum_k a_k d_k - 1 / e2) grows with the examples that a set holds.

    Example:
        >>> D, d = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400])
        >>> printed_penalty_terms(np.array([[True, True, False, False]]), D, 0.2, d, 2000)
        (array([0.]), array([1349.9995]))
    """
    inside = sets.astype(np.float64)
    c1 = np.maximum(inside @ divergence - len(divergence) * max_divergence, 0.0)
    return c1, np.maximum(inside @ num_examples - 1 / min_examples, 0.0)

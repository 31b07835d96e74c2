"""How fast a server converges that sometimes asks clients and sometimes trains on data of its own.

Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (SAFARI), Theorem
4 and Corollary 1. Its appendix with the proofs is not in the text at hand; what is derived here says so.
"""

import math
from typing import NamedTuple

from fedreach.errors import ConfigError, check


def largest_share(
    dissimilarity: float,
    server_gradient: float,
    client_gradient: float = 0.0,
    *,
    smoothness: float,
    server_rate: float,
    local_steps: int = 1,
) -> float:
    """Return q_max, the largest share of client rounds for which the theorem promises that SAFARI converges.

        q_max = 1 / (max(0, 4 sigma_G^2 - 4 G_2 (1 / (2 K^2) - 2 L eta_s / K^2)) / ((1 - L eta_s) G_1) + 1)

    What a client round may add to the loss through clients unlike the whole, q (4 sigma_G^2 - ...), must be made up
    for by what a server round takes from it, (1 - q) (1 - L eta_s) G_1.

    Differences to the paper: its 2 L eta_s^2 / K^2 has a unit left over, so the square goes; a negative numerator
    asks for nothing, so that 1 is returned. It takes G_1 and G_2 as minima over the rounds, a reviewer of the
    submission asked for maxima; by the inequality above, minima are what keeps it true in every round (derived here).
    Either way they belong to the run that q decides about: this is a check afterwards, not a recipe. And as a run
    nears a stationary point G_1 goes to 0, and with unlike clients q_max with it.

    Args:
        dissimilarity: sigma_G^2, the largest |grad F_i - grad F|^2 of any client; not negative, inf allowed.
        server_gradient: G_1, the smallest |grad F|^2 at the beginning of a server round; not negative.
        client_gradient: G_2, the smallest |1/m sum_i sum_k grad F_i|^2 of a client round; not negative.
        smoothness: L, positive.
        server_rate: eta_s, positive, below 1 / L.
        local_steps: K, at least 1.

    Reference: Theorem 4.

    Example:
        >>> round(largest_share(1, 1, smoothness=1, server_rate=0.1), 10)
        0.1836734694
        >>> round(largest_share(1, 1, 2, smoothness=1, server_rate=0.1, local_steps=3), 10)
        0.1942446043
    """
    check("largest_share", "dissimilarity", dissimilarity, "[0, inf]")
    check("largest_share", "server_gradient", server_gradient, "[0, inf)")
    check("largest_share", "client_gradient", client_gradient, "[0, inf)")
    check("largest_share", "smoothness", smoothness, "(0, inf)")
    check("largest_share", "server_rate * smoothness", server_rate * smoothness, "(0, 1)")
    check("largest_share", "local_steps", local_steps, "[1, inf)")
    helped = 4 * client_gradient * (0.5 - 2 * smoothness * server_rate) / local_steps**2
    harm = max(0.0, 4 * dissimilarity - helped)
    gain = (1 - smoothness * server_rate) * server_gradient
    if harm == 0:
        return 1.0
    return gain / (harm + gain) if math.isfinite(harm) else 0.0


def largest_server_rate(smoothness: float) -> float:
    """Return the largest eta_s that the theorem allows, 1 / (8 sqrt(30) L), whatever the number of local steps.

    It follows from eta_c = 2 eta_s / K <= 1 / (4 sqrt(30) L K). The paper's root covers L and K too, which would
    make a rate that is no inverse of L.

    Args:
        smoothness: L, positive.

    Reference: Theorem 4.

    Example:
        >>> round(largest_server_rate(1.0), 6)
        0.022822
    """
    check("largest_server_rate", "smoothness", smoothness, "(0, inf)")
    return 1 / (8 * math.sqrt(30) * smoothness)


class Convergence(NamedTuple):
    """The summands of the bound on the mean squared gradient over the rounds, in its units."""

    start: float  # 2 (F(x_0) - F*) / (R eta_s)
    server_noise: float  # L eta_s (1 - q) sigma^2
    drift: float  # 80 q L^2 eta_s^2 / K (sigma^2 + 6 K sigma_G^2)
    client_noise: float  # 8 L q eta_s / (m K) sigma^2

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self)


def convergence_bound(
    excess: float,
    *,
    rounds: int,
    server_rate: float,
    share: float,
    smoothness: float,
    noise: float,
    dissimilarity: float,
    cohort: int,
    local_steps: int,
) -> Convergence:
    """Return the bound on 1/R sum_r E|grad F(x_r)|^2, the mean over all clients, also those that never take part.

        2 (F(x_0) - F*) / (R eta_s) + L eta_s (1 - q) sigma^2
          + 80 q L^2 eta_s^2 / K (sigma^2 + 6 K sigma_G^2) + 8 L q eta_s / (m K) sigma^2

    It holds for share <= `largest_share`, which is not checked here (it depends on the run), and
    eta_c = 2 eta_s / K with eta_s <= `largest_server_rate`, which is. With share 0 it is the bound of plain SGD.

    Args:
        excess: F(x_0) - F*, not negative.
        rounds: R, at least 1.
        server_rate: eta_s.
        share: q, of client rounds, in [0, 1].
        smoothness: L, positive.
        noise: sigma^2, variance of a stochastic gradient, not negative.
        dissimilarity: sigma_G^2 as in `largest_share`, finite.
        cohort: m, at least 1.
        local_steps: K, at least 1.

    Reference: Theorem 4.

    Example:
        >>> bound = convergence_bound(1.0, rounds=1000, server_rate=0.02, share=0.5, smoothness=1.0, noise=1.0,
        ...     dissimilarity=0.1, cohort=5, local_steps=10)
        >>> [round(term, 4) for term in bound], round(bound.total, 4)
        ([0.1, 0.01, 0.0112, 0.0016], 0.1228)
    """
    function = "convergence_bound"
    check(function, "excess", excess, "[0, inf)")
    check(function, "rounds", rounds, "[1, inf)")
    check(function, "share", share, "[0, 1]")
    check(function, "noise", noise, "[0, inf)")
    check(function, "dissimilarity", dissimilarity, "[0, inf)")
    check(function, "cohort", cohort, "[1, inf)")
    check(function, "local_steps", local_steps, "[1, inf)")
    check(function, "server_rate", server_rate, "(0, inf)")
    largest = largest_server_rate(smoothness)
    if server_rate > largest * (1 + 1e-12):
        raise ConfigError(
            f"{function}: server_rate must be at most 1 / (8 sqrt(30) smoothness) = {largest:.6g}; got {server_rate}. "
            "The theorem says nothing about larger rates."
        )
    K, q, step = local_steps, share, smoothness * server_rate
    return Convergence(
        start=2 * excess / (rounds * server_rate),
        server_noise=step * (1 - q) * noise,
        drift=80 * q * step**2 / K * (noise + 6 * K * dissimilarity),
        client_noise=8 * step * q / (cohort * K) * noise,
    )


def speedup_settings(rounds: int, cohort: int, local_steps: int) -> tuple[float, float]:
    """Return (eta_s, q) with which the bound falls like 1 / sqrt(m K R): eta_s = sqrt(m K / R), q = 1 - 1 / (m K).

    Then start, server noise and client noise are each a constant over sqrt(m K R), and so is the sum once
    R >> (m K)^3, when the drift, of order m K / R, is below that. The paper asks for q = Omega(1 - 1 / (m K)), which
    any constant q satisfies while the server noise then stays at sqrt(m K / R): 1 - q = O(1 / (m K)) is meant. It
    also needs q <= `largest_share`, so clients as much alike as sigma_G^2 of order G_1 / (m K).

    Args:
        rounds: R; eta_s is within `largest_server_rate` once R >= 1920 L^2 m K.
        cohort: m.
        local_steps: K.

    Reference: Corollary 1.

    Example:
        >>> speedup_settings(rounds=10_000, cohort=5, local_steps=20)
        (0.1, 0.99)
    """
    for name, value in {"rounds": rounds, "cohort": cohort, "local_steps": local_steps}.items():
        check("speedup_settings", name, value, "[1, inf)")
    return math.sqrt(cohort * local_steps / rounds), 1 - 1 / (cohort * local_steps)

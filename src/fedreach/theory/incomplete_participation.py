"""What theorems say about learning where some clients never take part, with and without data on the server.

Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (SAFARI), Theorems
1 to 3. How fast its algorithm converges is told in `fedreach.theory.safari`.
"""

import math

from fedreach.errors import check


def worst_case_error(participants: int, clients: int) -> float:
    """Return the error (1 - omega) / 8 that no learner can rule out where only some clients take part.

    With omega = participants / clients: for every learner there are a way of taking part, clients and a target that
    some hypothesis fits without error, for which the 0-1 error on all clients exceeds this with probability above
    1/20. More examples do not help. It speaks of the worst federation there is, not of yours; 0 if all take part.

    Args:
        participants: From 1 to `clients`.
        clients: All clients, those that never take part among them.

    Reference: Theorem 1.

    Example:
        >>> worst_case_error(participants=7, clients=10)
        0.0375
    """
    check("worst_case_error", "participants", participants, f"[1, {clients}]")
    return (clients - participants) / clients / 8


def generalization_rate(
    vc_dimension: float, server_examples: int, client_examples: int, *, noise: float, relation: float
) -> float:
    """Return the order of the excess error when clients and the server's own sample of everybody are used.

        (d / (n_T + n_S)) ** (1 / (2 - beta_Q)) + (d / (n_T + n_S)) ** (beta / (2 - beta_Q))

    The theorem hides a constant and logarithms, both taken as 1: only its course means something.

    Args:
        vc_dimension: d, positive.
        server_examples: n_T, at least 1, drawn from all clients together.
        client_examples: n_S, not negative, of those that take part.
        noise: beta_Q of the Bernstein condition (Assumption 1), in [0, 1]; 1 is the easiest.
        relation: beta of Assumption 2, |eps_P(h) - eps_Q(h)| <= alpha eps_Q(h)^beta, not negative: from 1 on, the
            first power dominates and the rate is that of one data set.

    Reference: Theorem 2, eq. 1.

    Example:
        >>> generalization_rate(10, 50, 950, noise=1, relation=1)
        0.02
    """
    check("generalization_rate", "vc_dimension", vc_dimension, "(0, inf)")
    check("generalization_rate", "server_examples", server_examples, "[1, inf)")
    check("generalization_rate", "client_examples", client_examples, "[0, inf)")
    check("generalization_rate", "noise", noise, "[0, 1]")
    check("generalization_rate", "relation", relation, "[0, inf)")
    ratio = vc_dimension / (server_examples + client_examples)
    return float(ratio ** (1 / (2 - noise)) + ratio ** (relation / (2 - noise)))


def least_relation(vc_dimension: float, server_examples: int, client_examples: int) -> float:
    """Return the beta above which, by their rates, the clients' data help: (n_T + n_S)^beta > n_T, with d = 1.

        beta = ln(n_T / d) / ln((n_T + n_S) / d)

    Derived here. The paper says that for every beta in (0, 1) the rate (1 / (n_T + n_S)) ** (beta / (2 - beta_Q))
    improves on the server's alone, (1 / n_T) ** (1 / (2 - beta_Q)); below this beta it does not.

    Args:
        vc_dimension: d, positive and below `server_examples`.
        server_examples: n_T.
        client_examples: n_S, not negative.

    Example:
        >>> least_relation(1, server_examples=100, client_examples=9_900)
        0.5
    """
    check("least_relation", "vc_dimension", vc_dimension, f"(0, {server_examples})")
    check("least_relation", "client_examples", client_examples, "[0, inf)")
    return math.log(server_examples / vc_dimension) / math.log((server_examples + client_examples) / vc_dimension)


def excess_allowed(vc_dimension: float, server_examples: int, delta: float) -> float:
    """Return A(n_T, delta): how far off the mixture's best hypothesis may be for clients to do no harm.

        A = d / n_T ln(n_T / d) + ln(1 / delta) / n_T

    If the best hypothesis on server and clients together has an excess error of this order on all clients, training
    on both is no worse than on the server's sample alone. The paper closes a bracket too late, which puts the second
    summand inside the first logarithm: certainty (a small delta) would then cost next to nothing.

    Args:
        vc_dimension: d, positive, at most `server_examples`.
        server_examples: n_T.
        delta: Probability of failure, in (0, 1).

    Reference: Theorem 3; the sum is that of Hanneke and Kpotufe, "On the Value of Target Data in Transfer Learning",
    NeurIPS 2019.

    Example:
        >>> round(excess_allowed(10, 1000, delta=0.05), 4)
        0.049
    """
    check("excess_allowed", "vc_dimension", vc_dimension, f"(0, {server_examples}]")
    check("excess_allowed", "delta", delta, "(0, 1)")
    return (vc_dimension * math.log(server_examples / vc_dimension) - math.log(delta)) / server_examples

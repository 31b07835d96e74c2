"""How well random signs fit what a model says: Rademacher scores of clients and of clusters of clients."""

from itertools import product

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints


def random_signs(draws: int, size: int, rng: np.random.Generator) -> Floats:
    """Return (q, s) signs, each -1 or +1 with probability 1/2."""
    return 2 * rng.integers(0, 2, (draws, size)).astype(np.float64) - 1


def all_signs(size: int) -> Floats:
    """Return all (2^s, s) sign vectors: means over them are expectations, for small s.

    Example:
        >>> all_signs(2).tolist()
        [[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """
    return np.array(list(product([-1.0, 1.0], repeat=size)))


def monte_carlo_score(outputs: AnyArray, signs: Floats) -> float:
    """Return the score (1/Q) sum_q |(1/(B C)) sum_ic sigma^q_ic f_c(x_i)| of one batch.

    The absolute value is taken of each draw. Outside the mean over draws, where it could also be read to stand, the
    score would tend to 0 with Q, as each sum has mean 0.

    Args:
        outputs: (B, C) what the model says, B examples and C numbers each.
        signs: (Q, B C) see `random_signs` and `all_signs`.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Algorithm 1, without its slips: one
    letter for local iterations and the sum, and a score that is sent for each batch.

    Example:
        >>> monte_carlo_score(np.array([[1.0, -2.0], [0.5, 3.0]]), all_signs(4))
        0.78125
    """
    values = np.asarray(outputs, np.float64).ravel()
    return float(np.abs(signs @ values).mean() / values.size)


def closed_form_score(outputs: AnyArray) -> float:
    """Return sqrt(2/pi) ||F|| / (B C): the score of one batch without noise, F its (B, C) outputs.

    No supremum over functions is taken in the score: it is the mean absolute value of a random sum whose standard
    deviation is ||F|| / (B C), the Frobenius norm. By the central limit theorem that is the number above, where many
    outputs of similar size are summed; for any outputs it is between 1/sqrt(2) and 1 times ||F|| / (B C) (Khintchine).
    It falls with 1 / sqrt(B), so that scores are comparable between equal batch sizes only.

    Example:
        >>> round(closed_form_score(np.array([[1.0, -2.0], [0.5, 3.0]])), 10)
        0.7529870416
    """
    values = np.asarray(outputs, np.float64)
    return float(np.sqrt(2 / np.pi) * np.linalg.norm(values) / values.size)


def class_complexity(values: AnyArray, signs: Floats) -> float:
    """Return (1/Q) sum_q max_f (1/n) sum_i sigma^q_i f(x_i), the complexity of a finite class of functions.

    With excess losses l(f(x_i), y_i) - l(f*(x_i), y_i) as values, a row of zeros among them for f*, this is the local
    Rademacher complexity itself, which the score of `monte_carlo_score` stands in for.

    Args:
        values: (functions, n) each function's value on n examples.
        signs: (Q, n)

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Definitions 1 and 3.

    Example:
        >>> losses = np.array([[0, 0, 0], [0.2, -0.1, 0.3], [-0.4, 0.1, 0.2]])
        >>> round(class_complexity(losses, all_signs(3)), 10)
        0.1083333333
    """
    return float((signs @ np.asarray(values, np.float64).T).max(axis=1).mean() / np.shape(values)[1])


def cluster_scores(scores: Floats, clusters: Ints, num_examples: AnyArray | None = None) -> Floats:
    """Return the mean score of each cluster's members; lower is better.

    Args:
        scores: (n,) of the clients.
        clusters: (n,) each client's cluster 0, 1, ..., with a member each.
        num_examples: (n,) where members count in proportion to their examples (Definition 2's p_k).

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Algorithm 2, whose set of scores
    would lose one of two equal ones.

    Example:
        >>> scores, clusters = np.array([0.3, 0.1, 0.2, 0.5]), np.array([0, 0, 1, 1])
        >>> cluster_scores(scores, clusters), cluster_scores(scores, clusters, np.array([10, 30, 20, 20]))
        (array([0.2 , 0.35]), array([0.15, 0.35]))
    """
    share = np.ones(len(scores)) if num_examples is None else np.asarray(num_examples, np.float64)
    return np.bincount(clusters, share * scores) / np.bincount(clusters, share)

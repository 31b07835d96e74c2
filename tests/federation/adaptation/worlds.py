"""Gaussian classes, for which a model with exact likelihoods can be written down."""

import numpy as np

from fedreach.federation.adaptation.fitting import HeldOut
from fedreach.federation.types import Outputs

C = 4


def exact_logits(x, means, prior):
    """Return (m, c) logits of the Bayes classifier when x given y is N(means_y, 1)."""
    return x @ means.T - (means**2).sum(axis=1) / 2 + np.log(prior)


def draw(rng, m, prior, means):
    """Return (m, d) inputs and (m,) labels."""
    labels = rng.choice(len(prior), m, p=prior)
    return means[labels] + rng.standard_normal((m, means.shape[1])), labels


def means_of(c=C, apart=1.5):
    return apart * np.eye(c)


def source(base, pseudo_counts=2.0, a=1.0, b=0.0):
    """Return a fitted state."""
    numbers = {"a": [a], "b": np.zeros(len(base)) + b, "base": base, "pseudo_counts": [pseudo_counts]}
    return {name: np.array(value, dtype=np.float64) for name, value in numbers.items()}


def participants(rng, n=8, m=50, concentration=2.0, scale=3.0, c=C):
    """Return participants with Dirichlet class shares, whose model is too sure of itself and biased."""
    bias, found = rng.standard_normal(c), []
    for share in rng.dirichlet(np.full(c, concentration / c), n):
        x, labels = draw(rng, m, share, means_of(c))
        logits = scale * exact_logits(x, means_of(c), np.full(c, 1 / c)) + bias
        counts = rng.multinomial(4 * m, share).astype(np.float64)
        found.append(HeldOut(Outputs(logits), labels, counts))
    return found

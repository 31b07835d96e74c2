"""How often 95% confidence intervals of the mean over clients cover it: 11 methods, 8 populations, 3 to 100 clients.

    python benchmarks/interval_coverage.py             # every method; half a minute on one core
    python benchmarks/interval_coverage.py --write     # five of them into docs/records/interval_coverage.md

A population gives accuracies of clients, whose mean is known. Each cell draws n clients 4000 times and counts the
intervals that hold the mean; the Monte-Carlo standard error is 0.3 points at 95%. In parentheses is the mean length.
`fedreach.evaluation.evaluator` has the method that is used, and `tests/evaluation/test_confidence.py` fewer draws.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import special, stats

import page
from fedreach._util.arrays import Floats
from fedreach.evaluation.evaluator import mean_interval
from tables import table

PAGE = Path(__file__).parents[1] / "docs" / "records" / "interval_coverage.md"
CLIENTS = (3, 5, 10, 20, 30, 100)
REPEATS = 4000
RESAMPLES = 1000
CLASSES = np.array([0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.3])  # accuracy of a model on each of ten
BAD = 0.15  # share of clients at 0.2, in populations that are mostly perfect
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
Method = Callable[[Floats, np.random.Generator], tuple[Floats, Floats]]


def label_shift(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Draw accuracies of clients with 20 inputs each, whose classes are a Dirichlet draw."""
    return rng.binomial(20, rng.dirichlet(np.full(len(CLASSES), 0.1), shape) @ CLASSES) / 20


def mostly(good: Draw, bad: float = 0.2, share: float = BAD) -> Draw:
    """Return draws of clients that are good except for a share with the accuracy `bad`."""
    return lambda rng, shape: np.where(rng.random(shape) < share, bad, good(rng, shape))


POPULATIONS: dict[str, tuple[Draw, float]] = {
    "beta(8, 2)": (lambda rng, shape: rng.beta(8, 2, shape), 0.8),
    "beta(2, 2)": (lambda rng, shape: rng.beta(2, 2, shape), 0.5),
    "beta(20, 1)": (lambda rng, shape: rng.beta(20, 1, shape), 20 / 21),
    "label shift": (label_shift, float(CLASSES.mean())),
    "85% at 1, 15% at 0.2": (mostly(lambda rng, shape: np.ones(shape)), (1 - BAD) + BAD * 0.2),
    "85% in 0.95 to 1, 15% at 0.2": (
        mostly(lambda rng, shape: rng.uniform(0.95, 1, shape)),
        (1 - BAD) * 0.975 + BAD * 0.2,
    ),
    "95% in 0.9 to 1, 5% at 0.2": (
        mostly(lambda rng, shape: rng.uniform(0.9, 1, shape), share=0.05),
        0.95 * 0.95 + 0.05 * 0.2,
    ),
    "85% in 0.3 to 0.4, 15% at 0.9": (
        mostly(lambda rng, shape: rng.uniform(0.3, 0.4, shape), bad=0.9),
        (1 - BAD) * 0.35 + BAD * 0.9,
    ),
}
"""Name -> how accuracies of clients are drawn, and their mean."""


# ----------------------------------------------------------------------- methods: (r, n) scores -> (r,) limits, twice


def here(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    low, high = zip(*map(mean_interval, scores), strict=True)
    return np.array(low), np.array(high)


def logit(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Take Student's interval on the logit scale, by the delta method; equal scores have no length."""
    mean = np.clip(scores.mean(1), 1e-12, 1 - 1e-12)
    low, high = _around(special.logit(mean), np.minimum(_reach(scores) / (mean * (1 - mean)), 700.0))
    return special.expit(low), special.expit(high)


def students(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    return _around(scores.mean(1), _reach(scores))


def johnson(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Shift Student's interval by the skewness (Johnson, 1978)."""
    n, mean = scores.shape[1], scores.mean(1, keepdims=True)
    third = ((scores - mean) ** 3).sum(1) * n / ((n - 1) * (n - 2))
    return _around(mean[:, 0] + third / np.maximum(6 * n * scores.var(1, ddof=1), 1e-300), _reach(scores))


def arcsine(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Take Student's interval on the scale arcsin(sqrt(m)), by the delta method."""
    mean = np.clip(scores.mean(1), 1e-12, 1 - 1e-12)
    low, high = _around(np.arcsin(np.sqrt(mean)), _reach(scores) / (2 * np.sqrt(mean * (1 - mean))))
    return np.sin(np.maximum(low, 0)) ** 2, np.sin(np.minimum(high, math.pi / 2)) ** 2


def percentile(scores: Floats, rng: np.random.Generator, level: float = 0.025) -> tuple[Floats, Floats]:
    low, high = np.quantile(scores @ _weights(scores, rng), [level, 1 - level], axis=1)
    return low, high


def expanded(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Take wider percentiles where clients are few (Hesterberg, 2015)."""
    n = scores.shape[1]
    level = stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf(0.025, n - 1))
    return percentile(scores, rng, float(level))


def studentized(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Bootstrap t: (mean of a resample - mean) over the resample's own standard error."""
    weights, n = _weights(scores, rng), scores.shape[1]
    means, mean = scores @ weights, scores.mean(1, keepdims=True)
    variance = np.maximum((scores - mean) ** 2 @ weights - (means - mean) ** 2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (means - mean) / np.sqrt(variance / (n - 1))
    high, low = np.quantile(np.where(np.isfinite(t), t, 0), [0.025, 0.975], axis=1)
    error = scores.std(1, ddof=1) / math.sqrt(n)
    return mean[:, 0] - low * error, mean[:, 0] - high * error


def bca(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Percentiles corrected for bias and acceleration (Efron, 1987)."""
    mean, means = scores.mean(1, keepdims=True), np.sort(scores @ _weights(scores, rng), axis=1)
    below = (means < mean).mean(1) + 0.5 * (means == mean).mean(1)
    bias = special.ndtri(np.clip(below, 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    off = scores - mean
    acceleration = (off**3).sum(1) / np.maximum(6 * (off**2).sum(1) ** 1.5, 1e-300)
    limits = []
    for z in special.ndtri([0.025, 0.975]):
        level = special.ndtr(bias + (bias + z) / (1 - acceleration * (bias + z)))
        limits.append(means[np.arange(len(means)), np.rint(level * (RESAMPLES - 1)).astype(int)])
    return limits[0], limits[1]


def gaffke(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Weigh the clients, and one more at the end of the range, by Dirichlet draws (Learned-Miller and Thomas, 2019)."""
    weights = rng.dirichlet(np.ones(scores.shape[1] + 1), RESAMPLES).T
    means = scores @ weights[1:]
    return np.quantile(means, 0.025, axis=1), np.quantile(means + weights[0], 0.975, axis=1)


def hoeffding(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    return _around(scores.mean(1), np.full(len(scores), math.sqrt(math.log(40) / (2 * scores.shape[1]))))


def _around(middle: Floats, reach: Floats) -> tuple[Floats, Floats]:
    return middle - reach, middle + reach


def _reach(scores: Floats) -> Floats:
    n = scores.shape[1]
    return np.asarray(stats.t.ppf(0.975, n - 1) * scores.std(1, ddof=1) / math.sqrt(n))


def _weights(scores: Floats, rng: np.random.Generator) -> Floats:
    """Return (n, b) shares of resamples, the same for all rows: each row by itself has a bootstrap like any other."""
    n = scores.shape[1]
    return rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).T / n


METHODS: dict[str, Method] = {
    "used": here,
    "t on the logit scale (before)": logit,
    "t": students,
    "t, Johnson": johnson,
    "t on the arcsine scale": arcsine,
    "bootstrap, percentile": percentile,
    "bootstrap, expanded percentile": expanded,
    "bootstrap t": studentized,
    "bootstrap, BCa": bca,
    "Gaffke's bound": gaffke,
    "Hoeffding's bound": hoeffding,
}
SHOWN = ("used", "t on the logit scale (before)", "t", "bootstrap, percentile", "Gaffke's bound")
"""Methods in docs/records/interval_coverage.md."""


def covered(method: Method, draw: Draw, mean: float, n: int, repeats: int = REPEATS) -> tuple[float, float]:
    """Return the share of intervals that hold the mean, and their mean length, both cut off at 0 and 1."""
    rng = np.random.default_rng([repeats, n])
    low, high = (np.clip(limits, 0, 1) for limits in method(draw(rng, (repeats, n)), rng))
    slack = 1e-9  # of rounding, where all accuracies are 1
    return float(((low <= mean + slack) & (mean - slack <= high)).mean()), float((high - low).mean())


def text(methods: Sequence[str] = tuple(METHODS), repeats: int = REPEATS) -> str:
    """Return the table: coverage in %, and the mean length in points."""
    lines = []
    for name, (draw, mean) in POPULATIONS.items():
        for method in methods:
            found = [covered(METHODS[method], draw, mean, n, repeats) for n in CLIENTS]
            cells = [f"{100 * share:.1f} ({100 * length:.0f})" for share, length in found]
            lines.append([name, method, *cells])
    return table(["accuracies of clients", "interval", *(f"{n} clients" for n in CLIENTS)], lines, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="Intervals in each cell (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"Write five methods into docs/records/{PAGE.name}")
    arguments = parser.parse_args()
    print(text(repeats=arguments.repeats))
    if arguments.write:
        page.put("interval coverage", text(SHOWN, arguments.repeats), PAGE)

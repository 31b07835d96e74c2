"""What the entropies that `hics` estimates follow: the label distribution, or the size of the update.

    python benchmarks/hics_entropies.py --write      # a minute; its table, in docs/records/hics.md

The setting is that of hics_cell.toml, with one seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.federation.selection.labels import HiCS, estimated_entropy
from page import RECORDS, put
from tables import table

HERE = Path(__file__).parent
ROUNDS = (5, 20, 50, 100, 150, 200)
VARIED = 40  # the first client whose alpha is .5
HEAD = [
    "round",
    "estimated, varied clients nats",
    "estimated, the others nats",
    "others that seem as varied as the median of the varied",
    "rank correlation with true entropy",
    "with the mean size of the bias's update",
]


def true_entropy(counts: Ints) -> Floats:
    """Return (n,) entropies in nats of (n, c) label counts.

    Example:
        >>> true_entropy(np.array([[2, 2], [4, 0]])).round(6)
        array([0.693147, 0. ])
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    return np.asarray(-(share * np.log(np.where(share > 0, share, 1))).sum(axis=1) + 0.0)


def line(round_: int, bias: Floats, temperature: float, truth: Floats, varied: int = VARIED) -> list[str]:
    """Return what the biases that clients sent last say of their labels."""
    from scipy.stats import spearmanr

    entropy, size = estimated_entropy(bias, temperature), np.abs(bias).mean(axis=1)
    mistaken = int((entropy[:varied] > np.median(entropy[varied:])).sum())
    means = [f"{part.mean():.2f}" for part in (entropy[varied:], entropy[:varied])]
    ranks = [f"{spearmanr(entropy, other).statistic:.2f}".replace("-", "\N{MINUS SIGN}") for other in (truth, size)]
    return [str(round_), *means, f"{mistaken} of {varied}", *ranks]


def lines(rounds: Sequence[int], seed: int) -> Iterator[list[str]]:
    """Train with `hics`, and return a line for each of these rounds."""
    source = HERE / "hics_cell.toml"
    builder = Builder(load(source).resolved("hics"), source.parent)
    data = builder.federated(builder.dataset(), seed)
    simulation = builder.simulation(data, seed)
    policy, state = simulation.federation.selection, simulation.start()
    assert isinstance(policy, HiCS)
    truth = true_entropy(data.partition.label_counts(data.dataset.train_y, data.dataset.num_classes))
    for round_ in range(1, max(rounds) + 1):
        state = simulation.step(state).state
        if round_ in rounds:
            yield line(round_, state.selection["bias"], policy.temperature, truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/hics.md")
    arguments = parser.parse_args()
    text = f"{table(HEAD, list(lines(ROUNDS, arguments.seed)), 0)}\n\nOne seed."
    print(text)
    if arguments.write:
        put("hics_entropies", text, RECORDS / "hics.md")


if __name__ == "__main__":
    main()

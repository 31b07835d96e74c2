"""A metric of your own: for how many of a client's examples the class is among the two likeliest.

python examples/05_own_metric.py
"""

import fedreach as fr


def top_two(y_true, scores):
    return (scores.argsort(axis=1)[:, -2:] == y_true[:, None]).any(axis=1).mean()


digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
comparison = fr.compare(
    digits, {"fedavg": {}}, metrics=[top_two], local={"epochs": 5}, rounds=20, out="runs/own-metric"
)
print(comparison, comparison["fedavg"].clients(), sep="\n")

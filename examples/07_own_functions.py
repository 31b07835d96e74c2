"""Who trains, and how much each report counts, by functions of your own.

python examples/07_own_functions.py
"""

import numpy as np

import fedreach as fr


def most_data(view, k, rng):
    ids = view.ids[view.available]
    return ids[np.argsort(-view.num_examples[view.available])[:k]]


def by_root(reports):
    return np.sqrt(reports.metrics["num_examples"])


digits = fr.load("digits").partition("dirichlet_by_class", clients=30, alpha=0.3, participants=12)
methods = {"fedavg": {}, "mine": fr.Method(selection=most_data, weighting=by_root)}
print(fr.compare(digits, methods, cohort=4, local={"epochs": 5}, rounds=20, seeds=2, out="runs/own-functions"))

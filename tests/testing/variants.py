"""Options that built-in components are checked with, in addition to their defaults or `EXAMPLE_OPTIONS`."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedreach.federation.losses import MSE, Huber, LabelSmoothing
from fedreach.federation.server import FedAdam
from fedreach.federation.weighting import ByDisagreement, ByEntropy, ByExamples, Equal

PAIR = (ByEntropy(), ByExamples())

VARIANTS: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = {
    ("selection", "power_of_choice"): ({"candidates": 4}, {"loss": "batch"}, {"candidates": 3, "loss": "last"}),
    ("selection", "kl_filter"): ({"threshold": 10.0}, {"direction": "local_to_global", "smoothing": 0.0}),
    ("selection", "clustered"): ({"first_round": 1, "eps1": 100.0, "eps2": 0.0},),
    ("selection", "rademacher"): ({"use": "soft", "n_clusters": 2, "every": 2},),
    ("selection", "minimax"): ({"refresh": 0}, {"sketch": 4}),
    ("selection", "csra"): (
        {"threshold": 10.0, "min_examples": 60},
        {"threshold": 1.0, "search": "sorted"},
        {"threshold": 1.0, "search": "genetic"},
        {"threshold": 1.0, "search": "genetic", "candidates": "all"},
    ),
    ("selection", "convex_hull"): ({"exact": False}, {"normalize": True, "components": 3}),
    ("weighting", "entropy"): ({"temperature": 0.02}, {"temperature": 1e6}),
    ("weighting", "disagreement"): ({"loss": "zero_one", "confidence": 0.01},),
    ("weighting", "product"): ({"parts": (*PAIR, ByDisagreement()), "exponents": (0.5, 0, 2)},),
    ("weighting", "mix"): ({"parts": (*PAIR, Equal()), "shares": (1, 0, 2)},),
    ("weighting", "clip"): ({"inner": ByEntropy(), "times_equal": 1.0},),
    ("weighting", "fednova"): ({"inner": ByEntropy()},),
    ("solver", "fedprox"): ({"mu": 0.0},),
    ("solver", "feddyn"): ({"alpha": 0.5},),
    ("server", "average"): ({"lr": 0.5, "momentum": 0.9},),
    ("server", "torch_optim"): ({"optimizer": "SGD", "options": {"momentum": 0.9}}, {"optimizer": "RMSprop"}),
    ("server", "safari"): ({"inner": FedAdam(), "client_probability": 0.0},),
    ("server", "server_only"): ({"batch_size": 5, "steps": 2, "held_out": 0.2, "patience": 2, "lr": 5.0},),
    ("server", "fine_tune"): ({"inner": FedAdam(), "when": "end"}, {"batch_size": 7, "epochs": 2}),
    ("server", "feddf"): ({"inner": FedAdam(), "batch_size": 7, "steps": 3},),
    ("participation", "bernoulli"): ({"act_prob": 1.0},),
    ("loss", "moon"): ({"mu": 5.0, "temperature": 0.1, "inner": LabelSmoothing()},),
    ("loss", "feddecorr"): ({"inner": MSE()},),
    ("loss", "fedsam"): ({"rho": 0.5, "inner": Huber()},),
    ("adaptation", "label_shift"): (
        {"guard": False},
        {"guard": False, "online": True, "calibration": "temperature"},
        {"guard": False, "online": True, "half_life": 3.0},
        {"guard": False, "odds": 0.0, "pseudo_counts": 5.0, "calibration": "none"},
    ),
    ("adaptation", "bbse"): ({"hard": True},),
    ("adaptation", "rlls"): ({"hard": True, "strength": 1.0}, {"gamma": 0.5}),
    ("adaptation", "few_labels"): ({"labels": 5, "strength": 0.01},),
    ("adaptation", "oracle_prior"): ({"calibration": "none"},),
    ("label_statistics", "discrete_laplace"): ({"epsilon": 0.001},),
    ("measurement", "wlrc"): ({"outputs": "logits", "estimator": "closed_form"}, {"outputs": "excess_loss"}),
    ("measurement", "disagreement"): ({"loss": "zero_one"}, {"radius": 1.0, "confidence": 0.01}),
    ("metric", "bound_disagreement"): ({"loss": "zero_one"}, {"radius": 1.0, "step": 0.1}),
}
"""(component type, name) -> options."""

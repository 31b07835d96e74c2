"""A hundred devices, drawn anew by every seed: a quarter train, if they can be reached, and the others are adapted.

python examples/10_cross_device.py
"""

import fedreach as fr

comparison = fr.compare(
    fr.load("digits").partition("dirichlet_by_client", clients=100, alpha=0.1, participants=0.25),
    {"uniform": {}, "loss": {"selection": {"name": "power_of_choice", "candidates": 20}}},
    method={"adaptation": "label_shift"},
    population={"participation": {"name": "bernoulli", "act_prob": 0.8, "reply_prob": 0.9}},
    local={"epochs": 5, "batch_size": 8},
    rounds=30,
    seeds=2,
    out="runs/devices",
)
print(comparison)

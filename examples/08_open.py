"""A comparison on disk, made by Python or by `fedreach compare`, is asked for its tables, clients, rounds and page.

python examples/08_open.py
"""

import fedreach as fr

digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
fr.compare(
    digits, {"fedavg": {}, "entropy": {"weighting": "entropy"}}, local={"epochs": 5}, rounds=20, out="runs/on-disk"
)

comparison = fr.open("runs/on-disk")  # here, or on another day
print(comparison)
print(comparison["entropy"].clients())
print(comparison["entropy"].rounds()[-1:])
print("Page:", comparison.page())

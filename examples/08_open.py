"""A study on disk, whether Python or `fedreach compare` made it, is asked for its tables, clients, rounds and page.

python examples/08_open.py
"""

import fedreach as fr

digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
fr.compare(
    digits, {"fedavg": {}, "entropy": {"weighting": "entropy"}}, local={"epochs": 5}, rounds=20, out="runs/on-disk"
)

study = fr.open("runs/on-disk")  # here, or on another day
print(study)
print(study["entropy"].clients())
print(study["entropy"].rounds()[-1:])
print("Page:", study.page())

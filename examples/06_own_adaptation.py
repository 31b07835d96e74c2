"""An adaptation rule of your own, here on top of a built-in one: how an unseen client estimates its class shares.

python examples/06_own_adaptation.py
"""

import fedreach as fr
from fedreach.federation.adaptation.methods import BBSE


class Counting(BBSE):  # participants have told how often the model names each class; a client's own inputs differ
    def update(self, state, client, outputs):
        client, usual = super().update(state, client, outputs), state["confusion"].sum(axis=1)
        shares = state["base"] * (client["predicted"] / usual + 5) / (client["n"] + 5)  # as if it had seen 5 usual ones
        return {**client, "prior": shares / shares.sum()}


digits = fr.load("digits").partition("dirichlet_by_client", clients=30, alpha=0.1, participants=15)
methods = {"built-in": {"adaptation": "label_shift"}, "mine": {"adaptation": Counting}}
print(fr.compare(digits, methods, local={"epochs": 5}, rounds=20, out="runs/own-adaptation"))

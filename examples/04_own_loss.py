"""A loss of your own: the focal loss, by which an example counts the less, the surer the model is of it.

python examples/04_own_loss.py
"""

from torch.nn.functional import cross_entropy

import fedreach as fr


def focal(outputs, targets):
    loss = cross_entropy(outputs, targets, reduction="none")  # a number for each example
    return (1 - (-loss).exp()) ** 2 * loss


digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
methods = {"cross-entropy": {}, "focal": {"loss": focal}, "adjusted": {"loss": "logit_adjusted"}}
print(fr.compare(digits, methods, local={"epochs": 5}, rounds=20, out="runs/own-loss"))

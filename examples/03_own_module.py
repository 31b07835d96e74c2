"""A torch module of your own: its class, with options, or one that was made, whose weights each seed draws anew.

python examples/03_own_module.py
"""

from torch import nn

import fedreach as fr


class Net(nn.Sequential):
    def __init__(self, num_classes, width=32):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, num_classes))


digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
for model in (Net, {"name": Net, "width": 8}, Net(num_classes=10)):
    *_, last = fr.run(digits, model=model, local={"epochs": 5}, rounds=20)
    print(f"participants {last['participant_accuracy']:.3f}, unseen clients {last['unseen_accuracy']:.3f}")

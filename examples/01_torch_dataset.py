"""A torch Dataset: twelve phones that each see two of three gestures; every seed draws which five of them take part.

python examples/01_torch_dataset.py
"""

import torch
from torch.utils.data import TensorDataset

import fedreach as fr

rng = torch.Generator().manual_seed(0)
phone = torch.arange(600) % 12
gesture = (phone + torch.randint(2, (600,), generator=rng)) % 3
sensors = torch.randn(600, 3, generator=rng) + 2 * torch.eye(3)[gesture]
data = fr.FederatedData.from_torch(TensorDataset(sensors, gesture), clients=phone, participants=5, name="gestures")
methods = {"fedavg": {}, "ours": {"adaptation": "label_shift"}}
print(data, fr.compare(data, methods, rounds=20, seeds=3, out="runs/gestures"), sep="\n\n")

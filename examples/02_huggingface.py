"""A Dataset of Hugging Face whose column `writer` names the client; a FederatedDataset of flwr-datasets goes likewise.

pip install datasets
python examples/02_huggingface.py
"""

import fedreach as fr

try:
    from datasets import Dataset
except ImportError:
    raise SystemExit("This example needs the package datasets: pip install datasets") from None

digits = fr.load("digits")
writers = [f"writer-{row // 60:02}" for row in range(len(digits.train_y))]  # rows stand roughly in their order
rows = Dataset.from_dict({"image": digits.train_x[:, 0] / 16, "digit": digits.train_y, "writer": writers})
data = fr.FederatedData.from_huggingface(rows, client="writer", label="digit", participants=10, name="writers")
methods = {"fedavg": {}, "scaffold": {"solver": "scaffold"}}
print(data, fr.compare(data, methods, local={"epochs": 5}, rounds=20, out="runs/writers"), sep="\n\n")

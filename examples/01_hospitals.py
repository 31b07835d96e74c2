"""A table whose rows name their hospital: three hospitals train, five only use the model.

python examples/01_hospitals.py
"""

from pathlib import Path

import fedreach as fr
from fedreach.data.tabular import read_file

table = read_file(Path(__file__).with_name("patients.csv"))  # one of pandas or polars will do as well
data = fr.FederatedData.from_frame(
    table, client="hospital", label="readmitted", participants=["alder", "birch", "cedar"]
)
study = fr.compare(
    data, {"fedavg": {}, "ours": {"serving": "label_shift"}}, model="linear", rounds=20, out="runs/hospitals"
)
print(data, study, sep="\n\n")
print(study["ours"].clients())  # each by its name

"""A comparison of Python as a file, with which `fedreach compare` finds the same numbers.

python examples/09_toml.py
"""

import subprocess
import sys

import fedreach as fr

digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
comparison = fr.compare(
    digits, {"fedavg": {}, "adam": {"server": "adam"}}, local={"epochs": 5}, rounds=20, out="runs/python"
)
print(comparison.to_toml("runs/python.toml"), comparison, sep="\n")
command = "compare runs/python.toml --out runs/toml --quiet --formats none"
subprocess.run([sys.executable, "-m", "fedreach", *command.split()], check=True)

"""How fast this chip multiplies large matrices, in each of its precisions.

python chip.py --case mlp --device cuda    # prints one line of JSON; what it tells is the same for every case
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from cases import CASES
from limit import multiplications
from measure import parse_arguments, versions

SIZES = {"cuda": 8192, "cpu": 512}
PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
TIMINGS = 5


def flops(precision: str, device: str, size: int) -> float:
    """Return the floating point operations a second of square matrix products, 2 n^3 each."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)

    def seconds(calls: int) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            torch.mm(a, b, out=out)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / calls

    seconds(3)
    calls = max(1, round(0.1 / seconds(1)))
    return float(2 * size**3 / statistics.median(seconds(calls) for _ in range(TIMINGS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = parse_arguments(parser)
    device = arguments.device
    found = {kind: flops(kind, device, SIZES[device]) for kind in PRECISIONS[device]}
    sample = 2 * multiplications(CASES[arguments.case])
    name = torch.cuda.get_device_name() if device == "cuda" else "processor"
    print(json.dumps({"chip": name, "flops": found, "flops_per_sample": sample, "versions": versions()}))


if __name__ == "__main__":
    main()

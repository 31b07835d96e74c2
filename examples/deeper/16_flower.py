"""The same federation on Flower, in its simulation, and in FedReach's simulator; and what adaptation gains there.

python examples/deeper/16_flower.py
"""

import json
import logging
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

OFF = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
CLIENTS = 6
CHOSEN = {
    "rounds": 3,
    "partition.clients": CLIENTS,
    "population.participants": 5,  # the sixth is only evaluated
    "method.selection": "minimax",
    "method.weighting": "entropy",
    "method.cohort_size": 2,
    "method.adaptation": "label_shift",  # in the end each client adapts to its own inputs
    "engine.name": "sequential",  # the engine whose bits a client of its own has, too
}


def main(folder: Path) -> None:
    os.environ |= {**OFF, "FLWR_HOME": str(folder)}  # nothing is reported to anybody; read by the imports below
    from flwr.simulation import run_simulation

    from fedreach.experiment.run import run
    from fedreach.flower.experiment import FlowerExperiment
    from fedreach.runs.adaptation import adaptation_table
    from fedreach.runs.folder import RunFolder

    logging.getLogger("flwr").setLevel(logging.WARNING)
    overrides = tuple(f"{key}={value}" for key, value in CHOSEN.items())
    server, client = FlowerExperiment(overrides=overrides), FlowerExperiment(overrides=overrides)  # as on two machines
    real, simulated = folder / "flower", folder / "simulator"
    init = {"num_cpus": 1, "_temp_dir": str(folder), "log_to_driver": False}
    backend = {"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server.server_app(real), client.client_app(), CLIENTS, backend_config=backend)
    run(server.experiment, seed=server.seed, folder=simulated, base=server.base)

    for one, other in zip(rows(real)[1:], rows(simulated)[1:], strict=True):
        print(f"round {one['round']}: clients {one['cohort']} on Flower, {other['cohort']} in the simulator")
    models = [(path / "last.safetensors").read_bytes() for path in (real, simulated)]
    print("the models are", "the same, bit for bit" if models[0] == models[1] else "not the same")
    adapted = [(path / "adaptation.json").read_bytes() for path in (real, simulated)]
    print("clients are adapted", "alike, byte for byte" if adapted[0] == adapted[1] else "differently")
    print("\n".join(adaptation_table(RunFolder(real))))


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    if find_spec("flwr") is None or find_spec("ray") is None:
        print("This example needs Flower's simulation, which is not installed.\nRun: pip install 'fedreach[flower]'")
    else:
        with tempfile.TemporaryDirectory(prefix="fl") as short:  # Ray's sockets lie below it
            main(Path(short))

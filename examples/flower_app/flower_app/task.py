"""What server and clients share: the experiment, as the run's config names it."""

from functools import cache
from pathlib import Path

from flwr.app import Context

from fedreach.flower.experiment import FlowerExperiment

HERE = Path(__file__).parent


@cache
def named(file: str, method: str, seed: int) -> FlowerExperiment:
    """Return an experiment whose file travels with the app."""
    return FlowerExperiment(HERE / file, method=method or None, seed=seed)


def experiment_of(context: Context) -> FlowerExperiment:
    """Return the experiment of a run."""
    config = context.run_config
    return named(str(config["experiment"]), str(config["method"]), int(config["seed"]))

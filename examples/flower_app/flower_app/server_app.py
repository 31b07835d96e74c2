"""The server."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedreach.flower.experiment import run_experiment
from flower_app.task import experiment_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment, or go on with it, in the folder that the run's config names."""
    run_experiment(grid, context, experiment_of(context))

"""A client, of whom the experiment says what it holds."""

from functools import cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedreach.flower.experiment import FlowerExperiment
from flower_app.task import experiment_of

app = ClientApp()


@cache
def client_of(experiment: FlowerExperiment) -> ClientApp:
    """Return the client of an experiment, which one process makes only once."""
    return experiment.client_app()


@app.query()
@app.query("labels")
@app.query("loss")
@app.query("adaptation")
@app.query("secure")
@app.train()
@app.evaluate()
@app.evaluate("adaptation")
def answer(message: Message, context: Context) -> Message:
    """Answer as the client of the run's experiment."""
    return client_of(experiment_of(context))(message, context)

"""Who is told as a run goes on: the terminal, a worker's comparison, trackers of experiments."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedreach.data.federated import FederatedData
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing


class Callback:
    """Is told of a run, and does nothing; subclasses say what they do.

    Of what a callback of the loop raises the run fails. The same class may be a tracker, ``run.trackers``: then it is
    told of the whole run, those rounds first that were run by earlier commands, with row 0, and of what it raises the
    run takes no notice, see `fedreach.runs.trackers`. It is made before the run: what it opens is opened in `begin`.

    Example:
        >>> class Losses(Callback):
        ...     def round(self, row, timing, lost):
        ...         print(f"round {row.round}: {row.train_loss:.2f}")
    """

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        """Before the first round that is to be run.

        Args:
            run: What is run.
            data: The federation; None where it is not here, as on Flower.
            engine: Which one trains, and why; then lines about the model, where there is anything to say.
            folder: Of the run, where a tracker may write files of names that are not the run's own.
        """

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """After a round; `lost` says of each client why its reply does not count, if that is still known.

        Rows of rounds that take milliseconds may still wait to be written.
        """

    def refit_round(self, round_: int, rounds: int) -> None:
        """After each of the rounds in which the model is trained again on all rows, `population.refit`.

        Trackers do not get these, as no number of the run depends on them.

        Args:
            round_: Rounds that are over, from 0 on, or from where an interrupted training is resumed.
            rounds: How many there will be.
        """

    def end(self, result: Result) -> None:
        """After the last round, when all is written; not where the run failed."""

    def close(self, error: BaseException | None) -> None:
        """In any case, last of all: `error` is what ended the run, as Ctrl-C does, or None where it finished."""


@contextmanager
def told(
    callbacks: Sequence[Callback], run: RunRecord, data: FederatedData | None, engine: str, folder: Path
) -> Iterator[None]:
    """Tell that a run begins and, whatever ends it, that it is over."""
    try:
        for callback in callbacks:
            callback.begin(run, data, engine, folder)
        yield
    except BaseException as error:
        for callback in callbacks:
            callback.close(error)
        raise
    for callback in callbacks:
        callback.close(None)

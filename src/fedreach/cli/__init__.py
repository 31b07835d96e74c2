"""The command ``fedreach``: one file a command, which parses and prints; what does the work is imported when needed.

A file of a command imports nothing heavy at its top, so that help and completion answer at once.
"""

import os
import sys
from typing import Any, NoReturn

import click

import fedreach
from fedreach.cli import allocate, compare, export, listing, partition, report, reproduce, run, variance, verify
from fedreach.cli.options import InterruptError
from fedreach.errors import DataError, FedReachError, nearest
from fedreach.threads import ONE_THREAD


class _Commands(click.Group):
    """Commands whose mistakes end in one message, never in a traceback."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            ctx.fail(f"There is no command {cmd_name!r}.{nearest(cmd_name, self.commands)}")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        if "numpy" not in sys.modules:  # or it is somebody else's process
            os.environ.update(ONE_THREAD)
        try:
            return super().invoke(ctx)
        except FedReachError as error:
            _end(str(error), error.exit_code)
        except KeyboardInterrupt:
            again = "Interrupted. Nothing is lost: the same command goes on where this one stopped."
            _end(again, InterruptError.exit_code)
        except BrokenPipeError:
            # The reader of our output went away, as in `fedreach list | head -1`.
            sys.stdout = None
            sys.exit(0)
        except MemoryError:
            _end("Out of memory. Lower --workers, or use smaller models or data.", 1)
        except OSError as error:
            _end(f"{error.filename or 'A file'}: {error.strerror or error}.", DataError.exit_code)


def _end(message: str, code: int) -> NoReturn:
    click.secho("error: ", fg="red", bold=True, err=True, nl=False)
    click.echo(message, err=True)
    sys.exit(code)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Without CONFIG, `run`, `compare`, `variance` and `partition` use the digits that come with FedReach.",
)
@click.version_option(fedreach.__version__, prog_name="fedreach")
def main() -> None:
    """Federated learning for the clients who train and for those who never do.

    FedReach classifies: labels are numbers of classes. Regression is not there yet.
    """


for _command in (
    run.run,
    compare.compare,
    variance.variance,
    report.report,
    export.export,
    partition.partition,
    reproduce.reproduce,
    allocate.allocate,
    verify.verify,
    listing.list_,
    listing.init,
    listing.completion,
):
    main.add_command(_command)

"""The command ``fedreach``, with one file per subcommand, which parses options and prints results.

These files import slow modules only inside functions, so that help and completion are fast.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NoReturn

import click

import fedreach
from fedreach._util.errors import OUT_OF_MEMORY, DataError, FedReachError, nearest, of_system
from fedreach._util.processes import ONE_THREAD
from fedreach._util.tables import visible_lines
from fedreach.cli import (
    allocate,
    compare,
    disclose,
    doctor,
    export,
    extend,
    listing,
    partition,
    predict,
    report,
    run,
    verify,
)
from fedreach.cli.options import InterruptError, echo, promise_json, say_json


class Commands(click.Group):
    """Group of commands that prints an error as one message instead of a traceback, or as JSON with --json."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            ctx.fail(f"Unknown command {cmd_name!r}.{nearest(cmd_name, self.commands)}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self is not main:  # as in `python -m papers`
            super().format_commands(ctx, formatter)
            return
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(command.name or "", command.get_short_help_str(90)) for command in commands])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--json" in args and not ctx.resilient_parsing:
            promise_json(ctx)
        with _errors_as_json(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if "numpy" not in sys.modules:  # else the process belongs to another program
            os.environ.update(ONE_THREAD)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a path may contain bytes that cannot be decoded
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with _errors_as_json(ctx):
                result = super().invoke(ctx)
                say_json(ctx)
                return result
        except FedReachError as error:
            _end(ctx, str(error), error.exit_code)
        except KeyboardInterrupt:
            message = "Interrupted. Rerun the command to resume it."
            _end(ctx, message, InterruptError.exit_code)
        except BrokenPipeError:
            # The reader of the output has stopped, as in `fedreach list | head -1`.
            sys.stdout = None
            sys.exit(0)
        except MemoryError:
            _end(ctx, OUT_OF_MEMORY, 1)
        except OSError as error:
            _end(ctx, of_system(error), DataError.exit_code)


@contextmanager
def _errors_as_json(ctx: click.Context) -> Iterator[None]:
    """Print errors of click and unexpected exceptions as JSON, too; `Commands.invoke` prints the others."""
    try:
        yield
    except click.ClickException as error:
        say_json(ctx, error.format_message())
        error.message = visible_lines(error.message)  # type: ignore[misc]  # click prints it
        raise
    except (FedReachError, MemoryError, OSError, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        say_json(ctx, f"{type(error).__name__}: {error}")
        raise


def _end(ctx: click.Context, message: str, code: int) -> NoReturn:
    echo("error: ", err=True, color="red", end="")
    echo(message, err=True)
    say_json(ctx, message)
    sys.exit(code)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Without CONFIG, compare, run and partition use the digits data set that comes with FedReach.",
)
@click.version_option(fedreach.__version__, prog_name="fedreach")
def main() -> None:
    """Train federated models, and measure and adapt them for clients that never train.

    Targets are classes or numbers. For numbers, use --target, or set method.loss = "mse" or "huber".
    """


GROUPS: dict[str, tuple[click.Command, ...]] = {
    "Start here": (compare.compare, run.run, report.report, listing.list_, doctor.doctor),
    "Data and experiments": (listing.init, partition.partition, disclose.disclose, extend.extend),
    "Trained models": (predict.predict, export.export),
    "Components and radio": (verify.verify, allocate.allocate),
}
for _command in chain.from_iterable(GROUPS.values()):
    main.add_command(_command)

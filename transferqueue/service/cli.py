"""The ``transferqueue`` command: its subcommands, and what becomes of errors."""

from __future__ import annotations

from typing import Any

import click

from transferqueue.errors import TransferQueueError
from transferqueue.service.commands.bench import bench
from transferqueue.service.commands.checkpoint import checkpoint
from transferqueue.service.commands.clear import clear
from transferqueue.service.commands.describe import describe
from transferqueue.service.commands.doctor import doctor
from transferqueue.service.commands.exits import EPILOG, exit_for
from transferqueue.service.commands.explain import explain
from transferqueue.service.commands.held import held
from transferqueue.service.commands.ls import list_partitions
from transferqueue.service.commands.metrics import metrics
from transferqueue.service.commands.page import page
from transferqueue.service.commands.serve import serve
from transferqueue.service.commands.status import status
from transferqueue.service.commands.top import top
from transferqueue.service.commands.waits import waits


class _Command(click.Group):
    """Turns our errors into a line, where to read on, and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TransferQueueError as error:
            click.echo(f"transferqueue: {error}", err=True)
            click.echo(f"(transferqueue explain {type(error).__name__})", err=True)
            ctx.exit(exit_for(error))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In the order in which they are registered, not by name."""
        rows = [(name, self.commands[name].get_short_help_str(60)) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Command, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A data plane for RL post-training: serve it, look at it, mend it."""


for _command in (
    serve, status, top, list_partitions, describe, held, waits, doctor, bench, clear, explain,
    checkpoint, metrics, page,
):  # fmt: skip
    main.add_command(_command)


if __name__ == "__main__":
    main()

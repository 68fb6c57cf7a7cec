"""``transferqueue explain``: what an error means, and what to do."""

from __future__ import annotations

import click

from transferqueue.service.commands.output import json_epilog, json_option, print_json

KEYS = {
    "error": "the class",
    "kind_of": "the class above it",
    "page": "where its entry stands",
    "text": "the entry",
}


@click.command(epilog=json_epilog(KEYS))
@click.argument("error", required=False)
@json_option
def explain(error: str | None, as_json: bool) -> None:  # noqa: FBT001 - click's
    """What an error means, and what to run.

    E.g. `explain StorageFull`: meaning, usual causes, way out. Without a name: every error there
    is.
    """
    from transferqueue.error_pages import ErrorPages

    pages = ErrorPages.read()
    if error is None:
        if as_json:
            print_json([pages.entry(name) for name in pages.names])
        else:
            click.echo("\n".join(pages.names))
        return
    name = pages.find(error)
    if name is None:
        near = pages.near(error)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise click.UsageError(f"no error {error!r}{hint}")
    if as_json:
        print_json(pages.entry(name))
    else:
        click.echo(pages.entry(name)["text"])

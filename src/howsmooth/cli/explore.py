"""`howsmooth explore`: the explorer, a web page on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from howsmooth.cli.parameter_types import Bytes, Count
from howsmooth.errors import InputError

_HERE = ("127.0.0.1", "localhost", "::1", "[::1]")


@click.command(name="explore", short_help="Look around: a local web page where numbers arrive and can be clicked.")
@click.option(
    "--model-folder",
    "folders",
    metavar="DIR",
    multiple=True,
    help="Offer the models in this folder: subfolders with a config.json, GGUF files; may be repeated.",
)
@click.option("--hub", is_flag=True, help="Also take names of models on the Hugging Face Hub.")
@click.option(
    "--max-tokens",
    type=Count(16),
    metavar="COUNT",
    default=512,
    show_default=True,
    help="Longest text that is measured; the rest is cut off, with a note.",
)
@click.option(
    "--max-memory", type=Bytes(), metavar="4G", default="2G", show_default=True, help="Memory that one solve may take."
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; anything but localhost lets others compute here.",
)
@click.option(
    "--port", type=Count(1, 65535), metavar="NUMBER", help="Port to listen on.  [default: the first free one from 7860]"
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
def command(folders, hub, max_tokens, max_memory, host, port, open_browser) -> int:
    """Open a page to look around: paste a text, see constants arrive, click layers and tokens, follow flows.

    It runs on this machine alone, fetches nothing, runs no code that comes with models, and reads no files but
    those of the models on offer. Ctrl-C ends it.
    """
    from howsmooth.cli.run import console, say
    from howsmooth.explorer import Limits, explorer, launch

    notes = console(stderr=True)
    page = explorer(Limits(folders=tuple(map(Path, folders)), hub=hub, max_tokens=max_tokens, max_memory=max_memory))
    try:
        address = launch(page, host=host, port=port, block=False, open_browser=open_browser)
    except OSError as error:
        where = host if port is None else f"{host}:{port}"
        raise InputError(
            f"expected a free port to listen on at {where}, got none ({error}); name another --port"
        ) from None
    if host not in _HERE:
        say(
            notes,
            f"howsmooth: warning: listening on {host}: whoever reaches this machine can compute on it; there is "
            "no password",
            style="yellow",
        )
    say(notes, f"howsmooth: the explorer is at {address} (Ctrl-C ends it)")
    page.block_thread()
    return 0

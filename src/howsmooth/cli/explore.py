"""`howsmooth explore`: the explorer, a local web page."""

from __future__ import annotations

from pathlib import Path

import click

from howsmooth.cli.options import Parsed
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.questions.fields import parse_bytes, whole

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1", "[::1]")


@click.command(name="explore", short_help="Explore a model interactively in a local web page.")
@click.option(
    "--model-folder",
    "folders",
    metavar="DIR",
    multiple=True,
    help="Offer the models in this folder: subfolders with a config.json, GGUF files; may be repeated.",
)
@click.option("--hub", is_flag=True, help="Also accept names of models on the Hugging Face Hub.")
@click.option(
    "--max-tokens",
    type=Parsed(whole(16)),
    metavar="COUNT",
    default=512,
    show_default=True,
    help="Longest text that is measured; the rest is cut off, with a note.",
)
@click.option(
    "--max-memory",
    type=Parsed(parse_bytes),
    metavar="4G",
    default="2G",
    show_default=True,
    help="Memory that one solve may take.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; with any but localhost, others can run computations on this machine.",
)
@click.option(
    "--port",
    type=Parsed(whole(1, 65535)),
    metavar="NUMBER",
    help="Port to listen on.  [default: the first free one from 7860]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Also answer requests for this host name, such as that of a proxy; may be repeated.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@runtime_options()
def command(
    folders: tuple[str, ...],
    hub: bool,
    max_tokens: int,
    max_memory: int,
    host: str,
    port: int | None,
    allowed_hosts: tuple[str, ...],
    open_browser: bool,
) -> int:
    """Serve a local web page: paste a text, watch the constants being computed, click layers and tokens, follow flows.

    The page runs on this machine, loads nothing from the network, runs no code that comes with models, and reads only
    the files of the models on offer. Ctrl-C ends it.
    """
    from howsmooth.cli.loading import show_loading
    from howsmooth.cli.run import make_console, print_line, print_warning
    from howsmooth.explorer.limits import Limits, server_name
    from howsmooth.extras import require

    stderr = make_console(stderr=True)
    require("gradio", purpose="for the explorer")
    limits = Limits(folders=tuple(map(Path, folders)), hub=hub, max_tokens=max_tokens, max_memory=max_memory)
    if "" in map(str.strip, allowed_hosts):
        raise InputError("expected a host name for --allowed-host, got an empty one; name it, or leave the option out")
    server_name(host, port)  # before the seconds of loading
    with show_loading(stderr, "the explorer"):
        from howsmooth.explorer import explorer, launch, wait

        page = explorer(limits)
    try:
        address = launch(
            page, host=host, port=port, block=False, open_browser=open_browser, allowed_hosts=allowed_hosts
        )
    except OSError as error:
        address = host if port is None else f"{host}:{port}"
        raise InputError(
            f"expected a free port to listen on at {address}, got none ({error}); use another --port"
        ) from None
    if host not in _LOOPBACK_HOSTS:
        print_warning(
            stderr,
            f"warning: listening on {host}: anyone who can reach this machine can run computations on it; there is no "
            "password",
        )
    print_line(stderr, f"howsmooth: the explorer is at {address} (Ctrl-C ends it)")
    wait(page)
    return 0

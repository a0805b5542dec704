"""The explorer: a web app that shows constants while they are computed, for layers, heads and single tokens.

It computes with `studies`, with the settings of the command line, and draws with `report`. Gradio is an optional
dependency: only `page`, `components` and the tabs import it, when the app is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howsmooth.explorer.limits import Limits
from howsmooth.extras import require

__all__ = ["explorer", "launch", "wait", "Limits"]


def explorer(limits: Limits | None = None) -> Any:
    """Return the explorer as a `gradio.Blocks` with its queue, not served yet.

    Args:
        limits: What visitors may compute; by default `Limits()`.

    Raises:
        InputError: If gradio is not installed.
    """
    return _page().build(limits or Limits())


def launch(
    page: Any,
    *,
    host: str | None = None,
    port: int | None = None,
    block: bool = True,
    open_browser: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> str:
    """Serve the explorer and return its address.

    Args:
        page: Result of `explorer`.
        host: Address to listen on; by default $GRADIO_SERVER_NAME, as on a Hugging Face Space, or else localhost.
        port: Port to listen on; by default the first free one from 7860.
        block: Whether to serve until interrupted instead of returning at once.
        open_browser: Whether to open the address in a browser.
        allowed_hosts: Names of this server that requests may contain as their host, besides localhost, `host` and
            addresses: for example, the name of a proxy. "*" allows every name. On a Hugging Face Space all are allowed.

    Raises:
        InputError: If this machine cannot listen on `host` and `port`.
    """
    return _page().serve(
        page, host=host, port=port, block=block, open_browser=open_browser, allowed_hosts=allowed_hosts
    )


def wait(page: Any) -> None:
    """Serve until the page is closed; Ctrl-C closes it and is raised again as `KeyboardInterrupt`.

    Args:
        page: Result of `explorer`, served by `launch` with `block=False`.
    """
    _page().wait(page)


def _page() -> Any:
    import os

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    require("gradio", purpose="for the explorer")
    from howsmooth.explorer import page

    return page

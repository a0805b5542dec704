"""The explorer: a web page on which constants arrive as they are computed, and layers and tokens can be clicked.

It computes through `studies`, with the settings of the command line, and draws through `report`.
Gradio is an extra: only `page`, `components` and the tabs import it, and they are loaded when a page is built.
"""

from __future__ import annotations

from typing import Any

from howsmooth.errors import InputError
from howsmooth.explorer.catalog import Limits

__all__ = ["Limits", "explorer", "launch"]


def explorer(limits: Limits | None = None) -> Any:
    """The page as a `gradio.Blocks` with its queue, not served yet."""
    return _page().build(limits or Limits())


def launch(
    page: Any, *, host: str | None = None, port: int | None = None, block: bool = True, open_browser: bool = False
) -> str:
    """Serve the page and return its address; with `block`, serve until interrupted.

    Without a host it is localhost, or what $GRADIO_SERVER_NAME says, as on a Hugging Face Space.
    """
    return _page().serve(page, host=host, port=port, block=block, open_browser=open_browser)


def _page() -> Any:
    import os

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    try:
        import gradio  # noqa: F401
    except ImportError:
        raise InputError(
            "expected gradio for the explorer, got none installed; pip install 'howsmooth[explore]'"
        ) from None
    from howsmooth.explorer import page

    return page

"""Build and serve the page of the explorer; nothing is shared and nothing is loaded from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import gradio as gr
from gradio.utils import get_space
from starlette.middleware import Middleware

from howsmooth.explorer.app import App, Cancellations, Session
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.explorer.layers_tab import layers_tab
from howsmooth.explorer.limits import ANY_HOST, Guard, Limits, server_name
from howsmooth.explorer.question_tab import PRIVATE, offer_objectives, question_form
from howsmooth.explorer.tabs import forms_of_tabs
from howsmooth.extras import require
from howsmooth.texts.corpora import default_text

TITLE = "How smooth is attention?"
_WITHOUT_MODEL = ("Measures", "Flows")  # tabs on which the model and the text have no effect
# Clicks the run button of the layers as soon as it is built, which takes a few frames: the page opens with a result.
_RUN_SCRIPT = """
() => {
  const click = (frames) => {
    const button = document.getElementById("measure-run");
    if (button) button.click();
    else if (frames) requestAnimationFrame(() => click(frames - 1));
  };
  click(600);
}
"""
_SYSTEM = ("system-ui", "-apple-system", "Segoe UI", "Liberation Sans", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "DejaVu Sans Mono", "monospace")


class Page(gr.Blocks):
    """The page of the explorer, which ends its computations when it is closed.

    Attributes:
        limits: What visitors may compute.
        cancellations: The current computations.
    """

    limits: Limits
    cancellations: Cancellations

    def close(self, verbose: bool = True) -> None:
        """Stop the computations, whose threads would keep the process alive, and the server."""
        self.cancellations.stop_all()
        super().close(verbose)


def explorer(limits: Limits | None = None) -> Page:
    """Return the explorer as a `gradio.Blocks` with its queue, not served yet.

    Args:
        limits: What visitors may compute; by default `Limits()`.

    Raises:
        InputError: If gradio is not installed.
    """
    require("gradio", purpose="for the explorer")
    limits = limits or Limits()
    app = App(ModelCatalog(limits))
    with Page(title=TITLE, analytics_enabled=False) as page:
        page.limits, page.cancellations = limits, app.cancellations
        gr.HTML(
            f"<h1>{TITLE}</h1><p>The local Lipschitz constant of attention: by how much a small change of the "
            "tokens that enter a layer can move what comes out of it, at worst.</p>",
            elem_classes="hs-title",
            apply_default_css=False,
        )
        app.session = gr.State(Session())
        with gr.Row(elem_id="source") as source:
            names = app.catalog.names()
            app.model = gr.Dropdown(
                names,
                value=names[0],
                label="Model",
                allow_custom_value=True,
                elem_id="model",
                info="one of the list" + (", or a name on the Hugging Face Hub" * limits.hub),
                scale=1,
                min_width=220,
            )
            app.text = gr.Textbox(
                _first_sentences(120),
                label="Text",
                lines=3,
                max_lines=8,
                elem_id="text",
                scale=3,
                min_width=280,
                info=f"the first {limits.max_tokens:,} tokens at most are measured",
            )
        with gr.Tabs():
            for name, forms in {"Layers": [], **forms_of_tabs(limits)}.items():
                with gr.Tab(name, id=name, elem_id=f"tab-{name.lower()}") as tab:
                    if not forms:
                        layers_tab(app)
                    for form in forms:
                        question_form(app, form)
                tab.select(partial(gr.update, visible=name not in _WITHOUT_MODEL), None, source, queue=False, **PRIVATE)
                if name == "Attacks":
                    offer_objectives(app, tab)

        def leave(request: gr.Request) -> None:
            app.cancellations.forget(request.session_hash)

        page.unload(leave)
        page.load(None, None, None, js=_RUN_SCRIPT)
    page.queue(default_concurrency_limit=1, max_size=limits.waiting)
    return page


def _first_sentences(words: int) -> str:
    """Return the complete sentences among the first `words` words of the embedded text."""
    return " ".join(default_text().split()[:words]).rpartition(". ")[0] + "."


def wait(page: Page) -> None:
    """Serve until the page is closed; Ctrl-C closes it and is raised again as `KeyboardInterrupt`.

    Args:
        page: Result of `explorer`, served by `launch` with `block=False`.
    """
    try:
        while page.is_running:
            time.sleep(0.1)
    finally:
        page.close(verbose=False)


def launch(
    page: Page,
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
    theme = gr.themes.Base(primary_hue="blue", font=_SYSTEM, font_mono=_MONO).set(
        block_info_text_color="*neutral_500",
        block_info_text_color_dark="*neutral_400",
        layout_gap="0.7rem",
        body_background_fill="#ffffff",
        body_background_fill_dark="#14181d",
        block_background_fill_dark="#1c2229",
    )
    style = files(__package__).joinpath("explorer.css").read_text(encoding="utf-8")
    settings: dict[str, Any] = {
        "share": False,
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "enable_monitoring": False,
        "run_history": False,
        "footer_links": [],
    }
    # A Space is public, and answers under names that only its proxy knows.
    allowed = [ANY_HOST] if get_space() else [*([host] if host else []), *allowed_hosts]
    guard = Middleware(Guard, allowed_hosts=allowed, max_body=page.limits.max_body)
    # No input accepts files, so uploads are disabled; no local file is served.
    _, local, _ = page.launch(
        server_name=server_name(host, port),
        server_port=port,
        inbrowser=open_browser,
        prevent_thread_lock=not block,
        quiet=True,
        theme=theme,
        css=style,
        allowed_paths=[],
        max_file_size=1,
        app_kwargs={"middleware": [guard]},
        **settings,
    )
    return local

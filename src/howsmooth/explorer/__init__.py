"""The explorer: a web app that shows constants while they are computed, for layers, heads and single tokens.

It computes with `studies`, with the settings of the command line, and draws with `report`. Gradio is an optional
dependency: only `page` and the tabs import it, when the app is built.
"""

import os

from howsmooth.lazy import attach

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
__getattr__, __dir__, __all__ = attach(__name__)

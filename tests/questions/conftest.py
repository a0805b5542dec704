"""The tiny model, its text, and the command, as the tests of commands have them."""

from __future__ import annotations

from tests.cli.conftest import howsmooth, text_file, tiny

__all__ = ["howsmooth", "text_file", "tiny"]

"""The `howsmooth` command: one module per command. Torch is imported only when a command runs."""

from __future__ import annotations

from howsmooth.cli.main import main

__all__ = ["main"]

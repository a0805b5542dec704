"""The `howsmooth` command: one file per command, nothing heavy imported until a command runs."""

from __future__ import annotations

from howsmooth.cli.main import main

__all__ = ["main"]

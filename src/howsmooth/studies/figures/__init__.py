"""The figures of "How Smooth Is Attention?", each declared in one file, and the same for models it did not have."""

from __future__ import annotations

import importlib

_WHERE = {
    "Figure": "declared", "names": "declared", "read_figure": "declared", "Options": "running", "Outcome": "running",
    "run_figure": "running", "laws_of": "reading", "ratios_of": "reading", "correlations_of": "reading",
}

__all__ = list(_WHERE)


def __getattr__(name: str):
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")

"""Studies: what to measure, where to measure it, and the store that remembers.

Names are looked up when first used: reading a study file needs no torch.
"""

from __future__ import annotations

import importlib

_WHERE = {
    "Settings": "measuring", "Text": "measuring", "measure": "measuring", "memory_plan": "measuring",
    "resolve": "measuring", "growth_of": "growth", "fits_of": "growth", "file_distances": "distances",
    "text_distances": "distances", "balls": "attacking", "worst_cases": "attacking", "bound": "bounding",
    "mitigations": "mitigating", "Study": "config", "read_study": "config", "Store": "store", "prepare": "planning",
    "run_study": "running", "masked_constants": "mean_field", "regimes": "mean_field", "lengths_up_to": "mean_field",
    "roughest_measures": "mean_field", "fit_rate": "mean_field", "Normalised": "inputs", "forecast": "forecasting",
    "DepthSettings": "depth", "Passage": "depth", "depth_settings": "depth", "pass_through": "depth",
    "model_flow": "weights", "parse_weights": "weights", "move_one_token": "moving", "predictions": "predicting",
    "judge": "judging", "rank_correlation": "correlations",
}

__all__ = list(_WHERE)


def __getattr__(name: str):
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")

"""Studies: one spec of what to measure, its plan, the worker, the engines it runs on, and the store that remembers.

Names are looked up when first used: reading a study file needs no torch.
"""

from __future__ import annotations

import importlib

_WHERE = {
    "Spec": "spec", "spec_of": "spec", "read_study": "spec", "QUANTITIES": "spec",
    "prepare": "plan", "prepare_model": "plan", "measure": "run", "records_of": "run", "run_study": "run",
    "resolve": "inputs", "sites": "inputs", "CostModel": "costs", "Store": "store", "read_records": "formats",
    "write_records": "formats", "bound": "bounding", "worst_cases": "attacking", "balls": "attacking",
    "move_one_token": "moving", "text_distances": "distances", "file_distances": "distances",
    "chosen_depths": "depth", "pass_through": "depth", "model_flow": "weights", "parse_weights": "weights",
    "masked_constants": "mean_field", "regimes": "mean_field", "lengths_up_to": "mean_field",
}

__all__ = list(_WHERE)


def __getattr__(name: str):
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")

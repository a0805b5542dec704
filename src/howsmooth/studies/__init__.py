"""Studies: the spec of what to measure, its plan, the worker that computes it, engines, and the store of records.

Modules are imported when a name is first used: reading a study file does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.questions.inputs import resolve
    from howsmooth.questions.measure import QUANTITIES, MeasureSpec
    from howsmooth.questions.spec import Spec, read_study, spec_of
    from howsmooth.studies.costs import CostModel
    from howsmooth.studies.formats import read_records, write_records
    from howsmooth.studies.plan import prepare, prepare_model
    from howsmooth.studies.run import measure, records_of, run_study
    from howsmooth.studies.store import Store
    from howsmooth.studies.token_effects import move_each_token, move_one_token

__getattr__, __dir__ = attach(
    __name__,
    {
        "Spec": "howsmooth.questions.spec",
        "spec_of": "howsmooth.questions.spec",
        "read_study": "howsmooth.questions.spec",
        "QUANTITIES": "howsmooth.questions.measure",
        "MeasureSpec": "howsmooth.questions.measure",
        "prepare": "howsmooth.studies.plan",
        "prepare_model": "howsmooth.studies.plan",
        "measure": "howsmooth.studies.run",
        "records_of": "howsmooth.studies.run",
        "run_study": "howsmooth.studies.run",
        "resolve": "howsmooth.questions.inputs",
        "CostModel": "howsmooth.studies.costs",
        "Store": "howsmooth.studies.store",
        "read_records": "howsmooth.studies.formats",
        "write_records": "howsmooth.studies.formats",
        "move_each_token": "howsmooth.studies.token_effects",
        "move_one_token": "howsmooth.studies.token_effects",
    },
)

__all__ = [
    "Spec",
    "spec_of",
    "read_study",
    "QUANTITIES",
    "MeasureSpec",
    "prepare",
    "prepare_model",
    "measure",
    "records_of",
    "run_study",
    "resolve",
    "CostModel",
    "Store",
    "read_records",
    "write_records",
    "move_each_token",
    "move_one_token",
]

"""The fields of each kind of record that a page shows, as pydantic models, and the validation of records.

A record may have further fields. They are kept as they are; no page reads them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_MAX_ERRORS_SHOWN = 3

Count = Annotated[int, Field(ge=0, lt=2**63)]
Length = Annotated[int, Field(ge=1, lt=2**63)]
Plain = str | int | float | bool | None


class _Fields(BaseModel):
    """Base of all models: strict types, finite numbers, further fields allowed."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class Number(_Fields):
    """A value with its interval; `upper` is None where there is no upper end."""

    value: float
    lower: float
    upper: float | None
    dtype: str | None = None


class LogNumber(_Fields):
    """A named bound. If it is too large for a float, `value` is None and `log_value` is its logarithm."""

    name: str
    value: float | None
    log_value: float | None


class TopToken(_Fields):
    """A token with a large share of the worst direction."""

    position: Count
    token: str
    share: float


class Record(_Fields):
    """The fields that all kinds share: what was measured, on which input, with which software."""

    kind: str
    schema_: int = Field(alias="schema")
    model: str
    layer: Count | None
    head: Count | None
    map: str
    n: Length
    status: str
    checkpoint: str | None = None
    text: str | None = None
    text_sha256: str | None = None
    tokens: str | None = None
    quantity: str | None = None
    cutting: str | None = None
    study: str | None = None
    weights: str | None = None
    source: dict[str, Plain | list[Plain] | dict[str, Plain]] | None = None
    special_tokens: str | None = None
    dtype: str | None = None
    model_dtype: str | None = None
    product_dtype: str | None = None
    tol: float | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    device: str | None = None
    versions: dict[str, str | None] = {}
    commit: str | None = None
    extrapolated: bool | None = None


class Measurement(Record):
    """One estimate of `‖D_X f‖₂`, or of another quantity, at one chunk of text."""

    sample: Count
    value: float | None
    lower: float | None
    upper: float | None
    residual: float | None = None
    steps: Count | None = None
    radius: float | None = None
    mean_radius: float | None = None
    relative: float | None = None
    seconds: float | None = None
    top_tokens: list[TopToken] = []
    shares: list[float] | None = None
    words: list[str] | None = None
    notes: list[str] | None = None


class BoundRecord(Record):
    """One bound, or why it does not apply (`refused`), with the constant measured on the text."""

    sample: Count
    bound: str
    title: str | None = None  # the name for readers
    side: str | None
    holds: str | None
    value: float | None
    log_value: float | None
    ratio: float | None
    log_ratio: float | None
    R: float | None
    radius_from: str | None = None
    refused: str | None
    reference: str | None = None
    conditions: list[str] = []
    measured: Number


class WorstCase(Record):
    """The largest constant that gradient ascent found within a set of tokens."""

    within: str
    R: float | None
    eps: float | None
    value: float
    lower: float
    upper: float | None
    best_start: float
    on_text: Number
    over_text: float | None
    upper_bound: LogNumber
    masses: list[Count] = []


class Ball(Record):
    """A certified bound for all tokens within eps of a text's tokens, and the largest constant found there."""

    eps: float
    certified: float | None
    log_certified: float | None
    tightness: float | None
    method: str
    vacuous_eps: float | None
    found: Number
    centre: Number


KINDS: dict[str, type[Record]] = {
    "measurement": Measurement,
    "bound": BoundRecord,
    "worst case": WorstCase,
    "ball": Ball,
}


def field_errors(record: dict[str, Any]) -> str | None:
    """Return what is wrong with the fields of a record of a known kind, or None if they are valid."""
    try:
        KINDS[record["kind"]].model_validate(record)
    except ValidationError as error:
        return "; ".join(_describe(item) for item in error.errors(include_url=False)[:_MAX_ERRORS_SHOWN])
    return None


def _describe(item: Any) -> str:
    """Return one of pydantic's errors as "field: expected …, got …"."""
    where = ".".join(str(part) for part in item["loc"][:3])
    if item["type"] == "missing":
        return f"{where}: missing"
    message = item["msg"][:1].lower() + item["msg"][1:]
    return f"{where}: {message}, got {repr(item['input'])[:40]}"

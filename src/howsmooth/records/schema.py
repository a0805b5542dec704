"""What records consist of, as pydantic models, and the validation of records. Their types are in `howsmooth.questions`.

A record may have further fields. They are kept as they are; no page reads them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from howsmooth.records.lines import json_line

_MAX_ERRORS_SHOWN = 3

Count = Annotated[int, Field(ge=0, lt=2**63)]
Length = Annotated[int, Field(ge=1, lt=2**63)]
Plain = str | int | float | bool | None


class Part(BaseModel):
    """Base of all models, of records and of what is in them: strict types, finite numbers, further fields allowed."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class Number(Part):
    """A value with its interval; `upper` is None where there is no upper end."""

    value: float
    lower: float
    upper: float | None
    dtype: str | None = None


class LogNumber(Part):
    """A named bound. If it is too large for a float, `value` is None and `log_value` is its logarithm."""

    name: str
    value: float | None
    log_value: float | None


class Named(Part):
    """An attack or an objective by its name; its settings are further fields."""

    name: str


class PerturbationBudget(Part):
    """A set of perturbations: their largest norm, and how many tokens may be perturbed (None for all)."""

    size: float
    norm: str
    tokens: Length | None


class TokenEdit(Part):
    """An edit of a text: at which position, by which operation, with which token."""

    position: Count
    operation: str
    token: Count


class TokenShare(Part):
    """A token with a large share of the worst direction."""

    position: Count
    token: str
    share: float


class Packed(Part):
    """An array, as `howsmooth.records.arrays.pack` returns it."""

    shape: Annotated[list[Length], Field(min_length=1)]
    bits: Literal[8, 16]
    low: list[float]
    high: list[float]
    data: str


class Record(Part):
    """The fields that all records share. A subclass names its kind: `class BoundRecord(Record, kind="bound")`."""

    kind_name: ClassVar[str] = ""
    is_supplementary: ClassVar[bool] = False  # listed on a page, but not drawn by its question

    kind: str
    schema_: int = Field(alias="schema")
    status: str | None = None
    task: str | None = None
    study: str | None = None
    seed: int | None = None
    versions: dict[str, str | None] = {}
    commit: str | None = None

    def __init_subclass__(cls, kind: str = "", **options: Any) -> None:
        """Set the kind of a subclass."""
        super().__init_subclass__(**options)
        cls.kind_name = kind


class ModelRecord(Record):
    """A record about a map of a model: which map, on which input, with which settings."""

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
    weights: str | None = None
    source: dict[str, Plain | list[Plain] | dict[str, Plain]] | None = None
    special_tokens: str | None = None
    dtype: str | None = None
    model_dtype: str | None = None
    product_dtype: str | None = None
    tol: float | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    device: str | None = None
    extrapolated: bool | None = None


def field_errors(expected: type[Record], record: dict[str, Any]) -> str | None:
    """Return what is wrong with the fields of a record, or None if they are valid.

    Args:
        expected: The type of records of its kind.
        record: The record.
    """
    if expected.__pydantic_validator__.isinstance_python(record):  # without an object for each record
        return None
    try:
        expected.model_validate(record)
    except ValidationError as error:
        return "; ".join(_describe(item) for item in error.errors(include_url=False)[:_MAX_ERRORS_SHOWN])
    return None


def text_error(record: dict[str, Any]) -> str | None:
    """Return an error for text that cannot be written as UTF-8, or None."""
    try:
        json_line(record).encode("utf-8")
    except UnicodeEncodeError:
        return "expected Unicode text, got half of a surrogate pair"
    return None


def _describe(item: Any) -> str:
    """Return one of pydantic's errors as "field: expected …, got …"."""
    where = ".".join(str(part) for part in item["loc"][:3])
    if item["type"] == "missing":
        return f"{where}: missing"
    message = item["msg"][:1].lower() + item["msg"][1:]
    return f"{where}: {message}, got {repr(item['input'])[:40]}"

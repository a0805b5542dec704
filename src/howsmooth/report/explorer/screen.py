"""What is on a visitor's screen: the records so far, which layer is looked into, and the report of it all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from howsmooth.report.explorer.choice import Choice


@dataclass
class Screen:
    choice: Choice | None = None
    records: list[dict[str, Any]] = field(default_factory=list)  # of layers, as `measure` yields them
    heads: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    layer: int | None = None

    def record(self, layer: int) -> dict[str, Any] | None:
        return next((record for record in self.records if record["layer"] == layer), None)

    @property
    def roughest(self) -> int | None:
        return max(self.records, key=lambda record: record["value"])["layer"] if self.records else None

    @property
    def words(self) -> list[str]:
        """The first record of a piece of text has its words."""
        return list(self.records[0]["words"] or ()) if self.records else []

    @property
    def everything(self) -> list[dict[str, Any]]:
        return [*self.records, *(record for of_layer in self.heads.values() for record in of_layer), *self.bounds]

"""Values that a user gives in place of those of a figure's file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from howsmooth.errors import InputError
from howsmooth.questions.spec import ModelSpec


@dataclass(frozen=True)
class Options:
    """Values that replace those of a figure's file.

    Attributes:
        models: Names of models, instead of the figure's.
        layers: Layers of each model.
        lengths: Numbers of tokens.
        samples: Samples of each length.
        tol: Relative width of intervals.
        gpt2_attention: A file with GPT-2's attention layers, for generated inputs.
        workers: Number of processes.
        quick: Take few short lengths and two samples.
    """

    models: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    lengths: Any = None
    samples: int | None = None
    tol: float | None = None
    gpt2_attention: str | None = None
    workers: int | None = None
    quick: bool = False

    @classmethod
    def of_spec(cls, spec: ModelSpec, given: Collection[str], **others: Any) -> Options:
        """Return the fields of a spec that the user has given; the figure's file decides the others.

        Args:
            spec: The spec.
            given: Names of the fields that were given.
            others: Other options.
        """
        if "lengths" in given and min(spec.lengths) < 2:
            raise InputError(
                f"expected lengths of at least 2, got {min(spec.lengths)}; one token has nothing to attend to"
            )
        fields = {
            name: getattr(spec, name) for name in ("models", "layers", "lengths", "samples", "tol") if name in given
        }
        if "models" in fields:
            fields["models"] = tuple(model.label for model in spec.models)
        if fields.get("layers") == "all":
            del fields["layers"]
        return cls(**fields, workers=spec.engine.workers, **others)

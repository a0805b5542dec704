"""What the questions about flows share: the declared flow, the options that change it, and what figures need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator

from howsmooth.choices import MATRIX_NAMES
from howsmooth.dynamics.declaration import EXAMPLE_NAMES, AttentionName, Example
from howsmooth.questions.fields import matrix, number, option, whole
from howsmooth.questions.spec import Spec
from howsmooth.records.arrays import evenly_spaced, pack

if TYPE_CHECKING:
    from torch import Tensor

MAX_FRAMES, MAX_POSITIONS = 101, 400  # depths and particles of a figure
_MAX_COORDINATES = 36_000  # of all particles of a figure: about 100 kB
MATRIX_METAVAR = "NUMBER|1,2|1,0;0,2"
POSITIVE = number(0, exclusive=True)

Until = Annotated[
    float | None,
    POSITIVE,
    option("Final depth; depth is the time of the flow.  [default: the file's, or 1]", metavar="DEPTH"),
]


class AttentionSpec(Spec):
    """A question about one attention on R^d: that of an example or a file, with other values."""

    argument: ClassVar[str | None] = "example"
    attention_options: ClassVar[tuple[str, ...]] = ("attention", "A", "V", "dim", "until", "seed")
    unhashed: ClassVar[tuple[str, ...]] = (*Spec.unhashed, "example", "attention", "A", "V", "dim", "until")
    default_dim: ClassVar[int] = 2

    example: str | None = None
    attention: Annotated[AttentionName | None, option("Which attention.  [default: the file's, or softmax]")] = None
    A: Annotated[
        Any,
        matrix(),
        option(
            f"Matrix A of the scores ⟨Ax, y⟩; l2: |Ax − y|². Names: {', '.join(MATRIX_NAMES)}.  "
            "[default: the file's, or identity]",
            metavar=f"{MATRIX_METAVAR}|NAME",
        ),
    ] = None
    V: Annotated[
        Any,
        matrix(),
        option("Matrix V of the values Vy.  [default: the file's, or identity]", metavar=f"{MATRIX_METAVAR}|NAME"),
    ] = None
    dim: Annotated[
        int | None, whole(), option("Dimension of tokens.  [default: the file's, or 2]", metavar="NUMBER")
    ] = None
    until: Until = None

    @cached_property
    def declaration(self) -> Example:
        """The flow whose attention, dimension and final depth are used; random matrices import torch."""
        return self._declare()

    def _declare(self) -> Example:
        from howsmooth.dynamics.overrides import declared_attention

        return declared_attention(
            None if self.example is None else example_path(self, self.example),
            name=self.attention,
            a=self.A,
            v=self.V,
            dim=self.dim,
            until=self.until,
            seed=self.seed,
            default_dim=self.default_dim,
        )

    def determining(self) -> dict[str, Any]:
        """Return the fields that determine the numbers, with the declared flow in place of its file."""
        return {**super().determining(), "declared": self.declaration.model_dump(mode="json")}


def check_attention(spec: AttentionSpec) -> None:
    """Raise InputError for a flow that cannot be declared, unless its matrices are drawn, with torch."""
    if "random" not in (spec.A, spec.V):
        _ = spec.declaration


def example_path(spec: Spec, example: str) -> str:
    """Return the name of an example, or the path of a file relative to the study file."""
    return example if example in EXAMPLE_NAMES else spec.path(example)


def _tensor_file(path: str | None) -> str | None:
    if path is not None and not path.endswith(".safetensors"):
        raise ValueError(f"expected a file ending in .safetensors, got {path!r}")
    return path


TensorFile = Annotated[
    str | None,
    AfterValidator(_tensor_file),
    option("Tensors to save, as safetensors: depths and tokens.", metavar="FILE"),
]


def digest(values: dict[str, Any]) -> str:
    """Return what tells one flow from another in records."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:12]


def positions(tokens: Tensor) -> dict[str, Any]:
    """Return particles (T, n, d) for a figure: as many as fit, at most two coordinates of each.

    Example:
        >>> import torch
        >>> found = positions(torch.zeros(3, 500, 4))
        >>> found["frames"], found["shape"]
        ([0, 1, 2], [3, 400, 2])
    """
    frames, d = evenly_spaced(len(tokens), MAX_FRAMES), min(2, tokens.shape[-1])
    most = max(1, min(MAX_POSITIONS, _MAX_COORDINATES // (len(frames) * d)))
    return {"frames": frames, **pack(tokens[frames][:, :most, :d].numpy())}


def progress_text(at: dict[str, Any]) -> str:
    """Return where a flow is, in words.

    Example:
        >>> progress_text({"t": 0.5, "until": 10.0}), progress_text({"frame": 0})
        ('depth 0.5 of 10', '')
    """
    return f"depth {at['t']:.4g} of {at['until']:g}" if "until" in at else ""


def of_kind(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind."""
    return [record for record in records if record["kind"] == kind]

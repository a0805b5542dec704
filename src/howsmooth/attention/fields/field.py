"""The base class of fields x ↦ Γ_μ(x), where μ = Σ a_j δ_{y_j} is a measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


class Field:
    """A map of measures, given by its velocity Γ_μ(x): F(μ) = (Γ_μ)♯μ is a layer, x' = Γ_μ(x) its flow.

    Subclasses define `d`, `d_out`, `name` and `velocity`. Times are a mask: x at time s sees the measure conditioned on
    times up to s, μ(· | τ ≤ s), points of the same time included. Where no point is visible, Γ is 0.

    Attributes:
        name: name of the field in error messages.
        d: width of points.
        d_out: width of values.
    """

    name: ClassVar[str]
    if TYPE_CHECKING:  # subclasses have them as fields, properties or class attributes

        @property
        def d(self) -> int:
            """Width of points."""

        @property
        def d_out(self) -> int:
            """Width of values."""

    def __call__(
        self,
        x: Float[Tensor, "*b m d"],
        points: Float[Tensor, "*b n d"],
        log_weights: Float[Tensor, "*b n"] | None = None,
        *,
        times: Float[Tensor, "*b m"] | None = None,
        source_times: Float[Tensor, "*b n"] | None = None,
    ) -> Float[Tensor, "*b m d_out"]:
        """Compute Γ_μ at x; differentiable by `torch.func` in x, points and log_weights.

        Args:
            x: where to evaluate, (…, m, d).
            points: support of μ, (…, n, d).
            log_weights: logarithms of the weights of μ, (…, n), up to a constant; equal weights by default.
            times: times of x, (…, m), as constants; given together with `source_times`.
            source_times: times of the points, (…, n).

        Returns:
            The values, (…, m, d_out).

        Raises:
            InputError: if shapes or dtypes do not fit each other, or weights or times are not finite.
        """
        lead = self._check(x, points, log_weights, times, source_times)
        x, points = x.expand(*lead, *x.shape[-2:]), points.expand(*lead, *points.shape[-2:])
        if log_weights is not None:
            log_weights = log_weights.to(x).expand(*lead, -1)
        if times is not None and source_times is not None:
            times, source_times = times.detach().expand(*lead, -1), source_times.detach().expand(*lead, -1)
        return self.velocity(x, points, log_weights, times, source_times)

    def on_tokens(self, x: Float[Tensor, "*b n d"], log_weights: Float[Tensor, "*b n"] | None = None) -> Tensor:
        """Compute Γ_μ(x_i), (…, n, d_out), where μ = Σ a_i δ_{x_i} is the measure of the tokens themselves."""
        return self(x, x, log_weights)

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field; arguments are those of `__call__`, checked and with the same leading axes."""
        raise NotImplementedError

    def _check(self, x: object, points: object, log_weights: object, times: object, source_times: object) -> torch.Size:
        """Refuse arguments by name; return their common leading axes."""
        x, points = self._checked_tokens("x", x), self._checked_tokens("points", points)
        if x.dtype != points.dtype:
            raise InputError(
                f"{self.name} field: expected x and points of one dtype, got {x.dtype} and "
                f"{points.dtype}; use .to() on one of them"
            )
        if (times is None) != (source_times is None):
            raise InputError(
                f"{self.name} field: expected times and source_times together, got only "
                f"{'source_times' if times is None else 'times'}; give both or none"
            )
        leads = [x.shape[:-2], points.shape[:-2]]
        for what, t, count in (
            ("log_weights", log_weights, points.shape[-2]),
            ("times", times, x.shape[-2]),
            ("source_times", source_times, points.shape[-2]),
        ):
            if t is None:
                continue
            if not isinstance(t, Tensor) or t.dim() < 1 or t.shape[-1] != count:
                got = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
                raise InputError(f"{self.name} field: expected {what} of shape (…, {count}), got {got}")
            if not retrieve_all_functorch_interpreters() and not torch.isfinite(t).all():
                raise InputError(f"{self.name} field: expected finite {what}, got NaN or ∞; leave out such points")
            leads.append(t.shape[:-1])
        try:
            lead: torch.Size = torch.broadcast_shapes(*leads)
        except RuntimeError:
            raise InputError(
                f"{self.name} field: expected leading axes that fit each other, got "
                + ", ".join(str(tuple(lead)) for lead in leads)
            ) from None
        return lead

    def _checked_tokens(self, what: str, t: object) -> Tensor:
        if not isinstance(t, Tensor) or not t.dtype.is_floating_point:
            got = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"{self.name} field: expected {what} as a tensor of a floating dtype, got {got}")
        if t.dim() < 2 or t.shape[-1] != self.d or t.shape[-2] == 0:
            raise InputError(
                f"{self.name} field: expected {what} of shape (…, n, {self.d}) with n ≥ 1, got {tuple(t.shape)}"
            )
        return t


@dataclass(frozen=True, eq=False)
class BilinearField(Field):
    """A field with scores ⟨Ax, y⟩ and values V y.

    Attributes:
        A: matrix of the scores, (d, d).
        V: matrix of the values, (d_out, d).
    """

    A: Tensor
    V: Tensor

    def __post_init__(self) -> None:
        """Refuse matrices that do not fit each other."""
        check_matrices(self.name, A=self.A, V=self.V)
        check_square(self.name, "A", self.A)

    @property
    def d(self) -> int:
        """Width of points."""
        return self.A.shape[1]

    @property
    def d_out(self) -> int:
        """Width of values."""
        return self.V.shape[0]


def check_matrices(name: str, **matrices: Any) -> None:
    """Refuse arguments that are not finite matrices (out, d) of one width d and one dtype."""
    for which, t in matrices.items():
        if not isinstance(t, Tensor) or t.dim() != 2 or 0 in t.shape or not t.dtype.is_floating_point:
            got = f"{t.dtype} of shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"{name} field: expected {which} as a matrix (out, d) of a floating dtype, got {got}")
        if not torch.isfinite(t).all():
            raise InputError(f"{name} field: expected finite matrices, got NaN or ∞ in {which}")
    if len({t.shape[1] for t in matrices.values()}) > 1 or len({t.dtype for t in matrices.values()}) > 1:
        raise InputError(
            f"{name} field: expected matrices of one width and one dtype, got "
            + ", ".join(f"{which} {tuple(t.shape)} {t.dtype}" for which, t in matrices.items())
        )


def check_square(name: str, which: str, matrix: Tensor) -> None:
    """Refuse a matrix that is not square."""
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} field: expected {which} square, got {tuple(matrix.shape)}")

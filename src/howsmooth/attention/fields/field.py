"""What a field is: x ↦ Γ_μ(x), given a measure μ = Σ a_j δ_{y_j}."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from howsmooth.errors import InputError


class Field:
    """A map of measures by its velocity Γ_μ(x) at places x: F(μ) = (Γ_μ)♯μ is a layer, x' = Γ_μ(x) its flow.

    Subclasses give `d`, `d_out`, `name` and `velocity`. A time gives each place what it may see: a place at time s
    sees the measure conditioned on times up to s, μ(· | τ ≤ s), ties together. A place that sees nothing gets 0.
    """

    name: ClassVar[str]
    d: int
    d_out: int

    def __call__(
        self,
        x: Tensor,
        points: Tensor,
        log_weights: Tensor | None = None,
        *,
        times: Tensor | None = None,
        source_times: Tensor | None = None,
    ) -> Tensor:
        """Γ_μ at x (…, m, d), (…, m, d_out), with μ of points (…, n, d) and log weights (…, n) up to a constant.

        Without weights they are equal. `times` (…, m) and `source_times` (…, n) come together; they are constants.
        Differentiable by `torch.func` in x, points and log_weights.
        """
        lead = self._check(x, points, log_weights, times, source_times)
        x, points = x.expand(*lead, *x.shape[-2:]), points.expand(*lead, *points.shape[-2:])
        if log_weights is not None:
            log_weights = log_weights.to(x).expand(*lead, -1)
        if times is not None:
            times, source_times = times.detach().expand(*lead, -1), source_times.detach().expand(*lead, -1)
        return self.velocity(x, points, log_weights, times, source_times)

    def on_tokens(self, x: Tensor, log_weights: Tensor | None = None) -> Tensor:
        """Γ_μ(x_i), (…, n, d_out), with μ the tokens' own measure Σ a_i δ_{x_i}."""
        return self(x, x, log_weights)

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """The field itself; arguments are checked and have one and the same leading axes."""
        raise NotImplementedError

    def _check(self, x, points, log_weights, times, source_times) -> torch.Size:
        for what, t in (("places x", x), ("points", points)):
            if not isinstance(t, Tensor) or not t.dtype.is_floating_point:
                got = t.dtype if isinstance(t, Tensor) else type(t).__name__
                raise InputError(f"{self.name} field: expected {what} as a tensor of a floating dtype, got {got}")
            if t.dim() < 2 or t.shape[-1] != self.d or t.shape[-2] == 0:
                raise InputError(
                    f"{self.name} field: expected {what} of shape (…, n, {self.d}) with n ≥ 1, got {tuple(t.shape)}"
                )
        if x.dtype != points.dtype:
            raise InputError(
                f"{self.name} field: expected places and points of one dtype, got {x.dtype} and "
                f"{points.dtype}; use .to() on one of them"
            )
        if (times is None) != (source_times is None):
            raise InputError(
                f"{self.name} field: expected times and source_times together, got only "
                f"{'source_times' if times is None else 'times'}"
            )
        for what, t, count in (
            ("log_weights", log_weights, points.shape[-2]),
            ("times", times, x.shape[-2]),
            ("source_times", source_times, points.shape[-2]),
        ):
            if t is not None and (not isinstance(t, Tensor) or t.dim() < 1 or t.shape[-1] != count):
                got = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
                raise InputError(f"{self.name} field: expected {what} of shape (…, {count}), got {got}")
            if t is not None and not retrieve_all_functorch_interpreters() and not torch.isfinite(t).all():
                raise InputError(f"{self.name} field: expected finite {what}, got NaN or ∞; leave out such atoms")
        leads = [t.shape[:-2] for t in (x, points)] + [
            t.shape[:-1] for t in (log_weights, times, source_times) if t is not None
        ]
        try:
            return torch.broadcast_shapes(*leads)
        except RuntimeError:
            raise InputError(
                f"{self.name} field: expected leading axes that fit each other, got "
                + ", ".join(str(tuple(lead)) for lead in leads)
            ) from None


@dataclass(frozen=True, eq=False)
class BilinearField(Field):
    """A field with scores ⟨Ax, y⟩ and values V y."""

    A: Tensor
    V: Tensor

    def __post_init__(self):
        check_matrices(self.name, A=self.A, V=self.V)
        check_square(self.name, "A", self.A)

    @property
    def d(self) -> int:
        return self.A.shape[1]

    @property
    def d_out(self) -> int:
        return self.V.shape[0]


def check_matrices(name: str, **matrices: Tensor) -> None:
    """Refuses what is not a finite matrix (out, d), by its name; all must have one width d and one dtype."""
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
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} field: expected {which} square, got {tuple(matrix.shape)}")

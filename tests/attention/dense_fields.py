"""Fields computed pair by pair, from their definitions: slow, float64, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth import SelfAttention
from howsmooth.attention import L2Field, LinearField, MeanPooling, Pointwise, SigmoidField, SinkhornField, SoftmaxField
from tests.attention.cases import normal

D = 3


def layer(**traits) -> SelfAttention:
    """Two heads with biases and an output projection."""
    return SelfAttention(
        normal(1, 4, D),
        normal(2, 4, D),
        normal(3, 6, D),
        normal(4, 2, 6),
        bq=normal(5, 4),
        bk=normal(6, 4),
        bv=normal(7, 6),
        bo=normal(8, 2),
        heads=2,
        **traits,
    )


A, V = 0.7 * normal(11, D, D), normal(12, 2, D)
FIELDS = {
    "softmax": SoftmaxField.of(A, V, normal(13, D)),
    "layer": SoftmaxField(layer()),
    "l2": L2Field(normal(14, 4, D), normal(15, 4, D), V),
    "sinkhorn": SinkhornField(A, V, eps=0.8),
    "sigmoid": SigmoidField(A, V, bias=-0.5),
    "linear": LinearField(A, V),
    "mean": MeanPooling(V),
    "pointwise": Pointwise(lambda x: torch.tanh(x) @ V.mT, D, 2),
}


def dense(field, x: Tensor, points: Tensor, log_weights: Tensor | None = None, times=None, source_times=None) -> Tensor:
    """Γ_μ(x) for x (m, d), points (n, d): each row of x with the measure that it sees."""
    log_weights = torch.zeros(len(points), dtype=x.dtype) if log_weights is None else log_weights
    rows = []
    for i, row in enumerate(x):
        visible = torch.ones(len(points), dtype=torch.bool) if times is None else source_times <= times[i]
        rows.append(at_one_point(field, row, points[visible], torch.softmax(log_weights[visible], 0)))
    return torch.stack(rows)


def at_one_point(field, x: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    if isinstance(field, SoftmaxField):
        return _layer_at(field.layer, x, points, weights)
    if isinstance(field, Pointwise):
        return field.fn(x)
    if isinstance(field, SinkhornField):
        kernel = _coupling_row(field, x, points, weights)
    else:
        kernel = torch.stack([_kernel(field, x, y) for y in points])
        if isinstance(field, L2Field):
            kernel = kernel / (weights * kernel).sum()
    return sum(a * k * (_value(field) @ y) for a, k, y in zip(weights, kernel, points, strict=True))


def _value(field) -> Tensor:
    return field.v if isinstance(field, L2Field) else field.V


def _kernel(field, x, y):
    match field:
        case L2Field():
            return torch.exp(-(field.q @ x - field.k @ y).square().sum())
        case SigmoidField():
            return 1 / (1 + torch.exp(-(torch.dot(field.A @ x, y) + field.bias)))
        case LinearField():
            return torch.dot(field.A @ x, y)
        case MeanPooling():
            return torch.ones((), dtype=x.dtype)


def _layer_at(a: SelfAttention, x, points, weights):
    out = a.bo.clone() if a.bo is not None else 0
    wo = torch.eye(a.d_out, dtype=x.dtype) if a.wo is None else a.wo
    for h in range(a.heads):

        def part(w, b, y, h=h):
            rows = slice(h * w.shape[0] // a.heads, (h + 1) * w.shape[0] // a.heads)
            return w[rows] @ y + (0 if b is None else b[rows])

        q = part(a.wq, a.bq, x)
        e = torch.stack([torch.exp(a.scale * torch.dot(q, part(a.wk, a.bk, y))) for y in points]) * weights
        head = sum(p * part(a.wv, a.bv, y) for p, y in zip(e / e.sum(), points, strict=True))
        out = out + wo[:, h * len(head) : (h + 1) * len(head)] @ head
    return out


def _coupling_row(field, x, points, weights):
    """The density π(x, y_j)/μ⊗μ by 300 unrolled steps of scaling."""
    k = torch.exp(points @ field.A.T @ points.T / field.eps)
    v = torch.ones_like(weights)
    for _ in range(300):
        u = 1 / (k @ (weights * v))
        v = 1 / (k.T @ (weights * u))
    row = torch.exp(points @ (field.A @ x) / field.eps) * v
    return row / (weights * row).sum()

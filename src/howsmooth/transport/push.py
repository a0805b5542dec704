"""Attention as a map of measures: F(μ) = (Γ_μ)♯μ, and (s, x) ↦ (s, Γ_μ(s, x)) where tokens have times."""

from __future__ import annotations

from howsmooth.attention import Field, SelfAttention, SoftmaxField
from howsmooth.errors import InputError
from howsmooth.transport.measures import TimedMeasure, TokenMeasure


def push_forward(field: Field, measure: TokenMeasure) -> TokenMeasure:
    """(Γ_μ)♯μ: every atom moves to Γ_μ(x) with its mass; of a timed measure it sees times up to its own.

    >>> import torch
    >>> from howsmooth.attention import MeanPooling
    >>> mu = TimedMeasure.from_sequence(torch.tensor([[0.0], [4.0]], dtype=torch.float64))
    >>> push_forward(MeanPooling(torch.eye(1, dtype=torch.float64)), mu).points.flatten()
    tensor([0., 2.], dtype=torch.float64)
    """
    if not isinstance(field, Field) or not isinstance(measure, TokenMeasure):
        raise InputError("expected a field (SoftmaxField, MeanPooling, …) and a TokenMeasure or TimedMeasure, got "
                         f"{type(field).__name__} and {type(measure).__name__}")
    if measure.d != field.d:
        raise InputError(f"expected a measure in dimension {field.d} for this {field.name} field, got {measure.d}")
    x = measure.points
    # Equal masses say nothing to a softmax: without them the map is the layer's own, to the last bit.
    logs = None if measure.equal else measure.log_weights.to(x)
    if isinstance(measure, TimedMeasure):
        return measure.with_points(field(x, x, logs, times=measure.times, source_times=measure.times).detach())
    refuse_without_order(field.layer if isinstance(field, SoftmaxField) else None, measure)
    return measure.with_points(field(x, x, logs).detach())


def refuse_without_order(layer: SelfAttention | None, measure: TokenMeasure) -> None:
    """A causal layer goes by the order of atoms, which a measure without times does not have."""
    if layer is not None and layer.causal and not isinstance(measure, TimedMeasure):
        raise InputError("expected a TimedMeasure for a causal layer, got a TokenMeasure, whose atoms have no order; "
                         "use TimedMeasure.from_sequence(x)")

"""Fields x ↦ Γ_μ(x): attention of every kind, and what is not attention, as a map of measures."""

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.integrals import LinearField, MeanPooling, Pointwise, SigmoidField
from howsmooth.attention.fields.sinkhorn import SinkhornField
from howsmooth.attention.fields.softmax import L2Field, SoftmaxField

__all__ = [
    "Field",
    "L2Field",
    "LinearField",
    "MeanPooling",
    "Pointwise",
    "SigmoidField",
    "SinkhornField",
    "SoftmaxField",
]

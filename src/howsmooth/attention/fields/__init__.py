"""Fields x ↦ Γ_μ(x): maps of measures, such as attention of every kind, mean pooling and pointwise maps."""

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.integrals import LinearField, MeanPooling, Pointwise, SigmoidField
from howsmooth.attention.fields.sinkhorn import SinkhornField
from howsmooth.attention.fields.softmax import L2Field, SoftmaxField

__all__ = [
    "Field",
    "SoftmaxField",
    "L2Field",
    "SinkhornField",
    "SigmoidField",
    "LinearField",
    "MeanPooling",
    "Pointwise",
]

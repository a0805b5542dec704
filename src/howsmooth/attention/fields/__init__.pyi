from howsmooth.attention.fields.field import Field as Field
from howsmooth.attention.fields.softmax import SoftmaxField as SoftmaxField, L2Field as L2Field
from howsmooth.attention.fields.sinkhorn import SinkhornField as SinkhornField
from howsmooth.attention.fields.integrals import (
    SigmoidField as SigmoidField,
    LinearField as LinearField,
    MeanPooling as MeanPooling,
    Pointwise as Pointwise,
)

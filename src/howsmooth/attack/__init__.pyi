from howsmooth.attack.search import worst_case as worst_case
from howsmooth.attack.ascent import ascend as ascend, Ascent as Ascent
from howsmooth.attack.search import starts as starts
from howsmooth.attack.constraints import (
    Constraint as Constraint,
    Ball as Ball,
    Sphere as Sphere,
    Ellipsoid as Ellipsoid,
    Near as Near,
)
from howsmooth.norms import NORMS as NORMS, Norm as Norm
from howsmooth.attack.linear_range import linearity as linearity, Linearity as Linearity
from howsmooth.attack import (
    configurations as configurations,
    feature as feature,
    tokens as tokens,
    mitigation as mitigation,
)

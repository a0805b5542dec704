from howsmooth.attack.starts import worst_case as worst_case
from howsmooth.attack.ascent import ascend as ascend, Ascent as Ascent
from howsmooth.attack.starts import starts as starts
from howsmooth.attack.constraints import (
    Constraint as Constraint,
    Ball as Ball,
    Sphere as Sphere,
    Ellipsoid as Ellipsoid,
    Near as Near,
)
from howsmooth.attack.linearity import linearity as linearity, Linearity as Linearity
from howsmooth.attack import configurations as configurations, feature as feature, tokens as tokens
from howsmooth.attack.norms import NORMS as NORMS, Norm as Norm
from howsmooth.attack import mitigation as mitigation

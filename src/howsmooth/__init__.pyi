from howsmooth.measurements import measure as measure, ask as ask, read as read, Measurements as Measurements
from howsmooth.lipschitz import (
    local_lipschitz as local_lipschitz,
    Estimate as Estimate,
    token_gains as token_gains,
    lipschitz_penalty as lipschitz_penalty,
)
from howsmooth.models import load as load
from howsmooth.training import Monitor as Monitor
from howsmooth.attention import (
    SelfAttention as SelfAttention,
    Rotary as Rotary,
    attend as attend,
    SparseMask as SparseMask,
    scaled_dot_product_attention as scaled_dot_product_attention,
    replace_sdpa as replace_sdpa,
)
from howsmooth.models import register as register
from howsmooth.errors import InputError as InputError, NotConverged as NotConverged
from howsmooth import (
    lipschitz as lipschitz,
    models as models,
    attention as attention,
    bounds as bounds,
    attack as attack,
    studies as studies,
    training as training,
    report as report,
    transport as transport,
    dynamics as dynamics,
    fits as fits,
    questions as questions,
    records as records,
    texts as texts,
    spectral as spectral,
    kernels as kernels,
)

__version__: str

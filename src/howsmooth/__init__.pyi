from howsmooth.measurements import (
    measure as measure,
    ask as ask,
    compare as compare,
    read as read,
    Measurements as Measurements,
)
from howsmooth.lipschitz.local import local_lipschitz as local_lipschitz
from howsmooth.lipschitz.estimate import Estimate as Estimate
from howsmooth.lipschitz.gains import token_gains as token_gains
from howsmooth.lipschitz.penalty import lipschitz_penalty as lipschitz_penalty
from howsmooth.models.loading import load as load
from howsmooth.training.monitor import Monitor as Monitor
from howsmooth.attention.heads import SelfAttention as SelfAttention
from howsmooth.attention.rotary import Rotary as Rotary
from howsmooth.attention.op import attend as attend
from howsmooth.attention.sparse import SparseMask as SparseMask
from howsmooth.attention.drop_in import (
    scaled_dot_product_attention as scaled_dot_product_attention,
    replace_sdpa as replace_sdpa,
)
from howsmooth.models.hook import register as register
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

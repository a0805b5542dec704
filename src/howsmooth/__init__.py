"""howsmooth: how smooth is attention, in this model, on this text, at this length?

Packages are imported when they are first used, so that `import howsmooth` and `howsmooth --help` are instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

__version__ = "0.2.0"

if TYPE_CHECKING:
    from howsmooth import (
        attack,
        attention,
        bounds,
        dynamics,
        fits,
        kernels,
        lipschitz,
        models,
        records,
        report,
        spectral,
        studies,
        texts,
        transport,
    )
    from howsmooth.attention import (
        Rotary,
        SelfAttention,
        SparseMask,
        attend,
        replace_sdpa,
        scaled_dot_product_attention,
    )
    from howsmooth.errors import InputError, NotConverged
    from howsmooth.lipschitz import Estimate, lipschitz_penalty, local_lipschitz, token_gains
    from howsmooth.measurements import Measurements, measure, read
    from howsmooth.models import load, register

__getattr__, __dir__ = attach(
    __name__,
    {
        "SelfAttention": "howsmooth.attention",
        "Rotary": "howsmooth.attention",
        "attend": "howsmooth.attention",
        "SparseMask": "howsmooth.attention",
        "scaled_dot_product_attention": "howsmooth.attention",
        "replace_sdpa": "howsmooth.attention",
        "local_lipschitz": "howsmooth.lipschitz",
        "lipschitz_penalty": "howsmooth.lipschitz",
        "token_gains": "howsmooth.lipschitz",
        "Estimate": "howsmooth.lipschitz",
        "load": "howsmooth.models",
        "register": "howsmooth.models",
        "measure": "howsmooth.measurements",
        "read": "howsmooth.measurements",
        "Measurements": "howsmooth.measurements",
        "InputError": "howsmooth.errors",
        "NotConverged": "howsmooth.errors",
        "attack": "howsmooth.attack",
        "attention": "howsmooth.attention",
        "bounds": "howsmooth.bounds",
        "dynamics": "howsmooth.dynamics",
        "fits": "howsmooth.fits",
        "kernels": "howsmooth.kernels",
        "lipschitz": "howsmooth.lipschitz",
        "models": "howsmooth.models",
        "records": "howsmooth.records",
        "report": "howsmooth.report",
        "spectral": "howsmooth.spectral",
        "studies": "howsmooth.studies",
        "texts": "howsmooth.texts",
        "transport": "howsmooth.transport",
    },
)

__all__ = [
    "__version__",
    "SelfAttention",
    "Rotary",
    "attend",
    "SparseMask",
    "scaled_dot_product_attention",
    "replace_sdpa",
    "local_lipschitz",
    "lipschitz_penalty",
    "token_gains",
    "Estimate",
    "load",
    "register",
    "measure",
    "read",
    "Measurements",
    "InputError",
    "NotConverged",
    "attack",
    "attention",
    "bounds",
    "dynamics",
    "fits",
    "kernels",
    "lipschitz",
    "models",
    "records",
    "report",
    "spectral",
    "studies",
    "texts",
    "transport",
]

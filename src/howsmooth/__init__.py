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
        questions,
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
    from howsmooth.measurements import Measurements, ask, measure, read
    from howsmooth.models import load, register

__getattr__, __dir__ = attach(
    __name__,
    {
        "measure": "howsmooth.measurements",
        "ask": "howsmooth.measurements",
        "read": "howsmooth.measurements",
        "Measurements": "howsmooth.measurements",
        "local_lipschitz": "howsmooth.lipschitz",
        "Estimate": "howsmooth.lipschitz",
        "token_gains": "howsmooth.lipschitz",
        "lipschitz_penalty": "howsmooth.lipschitz",
        "load": "howsmooth.models",
        "SelfAttention": "howsmooth.attention",
        "Rotary": "howsmooth.attention",
        "attend": "howsmooth.attention",
        "SparseMask": "howsmooth.attention",
        "scaled_dot_product_attention": "howsmooth.attention",
        "replace_sdpa": "howsmooth.attention",
        "register": "howsmooth.models",
        "InputError": "howsmooth.errors",
        "NotConverged": "howsmooth.errors",
        "lipschitz": "howsmooth.lipschitz",
        "models": "howsmooth.models",
        "attention": "howsmooth.attention",
        "bounds": "howsmooth.bounds",
        "attack": "howsmooth.attack",
        "studies": "howsmooth.studies",
        "report": "howsmooth.report",
        "transport": "howsmooth.transport",
        "dynamics": "howsmooth.dynamics",
        "fits": "howsmooth.fits",
        "questions": "howsmooth.questions",
        "records": "howsmooth.records",
        "texts": "howsmooth.texts",
        "spectral": "howsmooth.spectral",
        "kernels": "howsmooth.kernels",
    },
)

__all__ = [
    "measure",
    "ask",
    "read",
    "Measurements",
    "local_lipschitz",
    "Estimate",
    "token_gains",
    "lipschitz_penalty",
    "load",
    "SelfAttention",
    "Rotary",
    "attend",
    "SparseMask",
    "scaled_dot_product_attention",
    "replace_sdpa",
    "register",
    "InputError",
    "NotConverged",
    "lipschitz",
    "models",
    "attention",
    "bounds",
    "attack",
    "studies",
    "report",
    "transport",
    "dynamics",
    "fits",
    "questions",
    "records",
    "texts",
    "spectral",
    "kernels",
    "__version__",
]

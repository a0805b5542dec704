"""Which constants of masked attention in d_p are proved, attained and published, and are the published ones true?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import numbers, option, whole
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import Spec
from howsmooth.records.schema import Length, Record

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attention.heads import SelfAttention
    from howsmooth.questions.work import Work


class MaskedSpec(Spec):
    """Which exponents and sizes, and the ascent that looks for a large constant."""

    options: ClassVar[tuple[str, ...]] = ("p", "sizes", "atoms", "restarts", "steps", "seed")
    varied: ClassVar[tuple[str, ...]] = ("p", "sizes")

    question: str = "masked"
    p: Annotated[
        tuple[float, ...],
        numbers("1.5,2,3,inf", minimum=1, maximum=1e6, allow_infinity=True),
        option("Exponents p ≥ 1 of the distance.", metavar="1.5,2,3,inf"),
    ] = (1.5, 2.0, 3.0, math.inf)
    sizes: Annotated[
        tuple[float, ...],
        numbers("0,0.1,0.3,1,2", minimum=0, maximum=50),
        option("Sizes a = ‖A‖R².", metavar="0,0.1,0.3,1,2"),
    ] = (0.0, 0.1, 0.3, 1.0, 2.0)
    atoms: Annotated[int, whole(2, 512), option("Number of atoms, one for each time.", metavar="COUNT")] = 32
    restarts: Annotated[
        int, whole(), option("Number of starting points, optimised together; the best result is kept.", metavar="COUNT")
    ] = 6
    steps: Annotated[int, whole(), option("Steps of gradient ascent.", metavar="COUNT")] = 100


class MaskedRecord(Record, kind="masked constant"):
    """The proved constant of d_p for one a and p, the published one, and what is attained."""

    a: float
    p: float | str  # inf as a text
    n: Length
    attained: float
    ascent: float
    limit: float | None
    running_mean: float
    bound: float | None
    log_bound: float | None
    stated: float
    verdict: str
    unmasked: float | None
    two_dirac: float | None = None
    status: str


def grid(spec: MaskedSpec) -> Iterator[dict[str, Any]]:
    """Yield each exponent at each size."""
    for a in spec.sizes:
        for p in spec.p:
            yield {"a": a, "p": "inf" if p == math.inf else p}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute the constants at one a, for some p.

    A = −a in d = 1 on [−1, 1], V = 1. Attained is the largest of three numbers: the L^p norm of the running mean of n
    equal tokens, the L^p norm of the derivative at the timed measure on n atoms that ascent (in d₂) finds, and what
    tokens that alternate in log-time approach as atoms are added (`bounds.mean_field.masked_lower`).
    """
    import torch

    from howsmooth.attack.ascent import ascend
    from howsmooth.attack.constraints import Ball
    from howsmooth.bounds import mean_field, this_project
    from howsmooth.lipschitz.mean_field import mean_field_jacobian
    from howsmooth.lipschitz.regimes import unit_layer
    from howsmooth.spectral.power import attained_p_norm

    spec, a = work.spec, places[0].at["a"]
    n, seed = spec.atoms, spec.seed
    f = unit_layer("negative", a, causal=True)
    starts = _starts(n, spec.restarts, seed)
    found = ascend(f, starts, Ball(1.0), move="both", steps=spec.steps, seed=seed, tol=1e-4)
    if found.masses is None:
        raise InputError('expected masses from an ascent with move = "both", got none')
    log_weights = found.masses.log().clamp(min=-600)
    J = mean_field_jacobian(f, found.x, log_weights).dense()
    mean = unit_layer("negative", 0.0, causal=True).jacobian(torch.zeros(n, 1, dtype=torch.float64)).dense()
    for place in places:
        p = float(place.at["p"])
        scaling = (torch.log_softmax(log_weights, -1) * ((0.0 if p == math.inf else 1 / p) - 0.5)).exp()
        ascent = found.value if p == 2 else attained_p_norm(scaling.unsqueeze(1) * J / scaling, p, seed=seed)
        running_mean = attained_p_norm(mean, p, starts=1)
        stated, verdict = _stated(f, p)
        bound = None if p == 1 else mean_field.masked(f, p, 1.0)
        limit = 0.0 if p == 1 else math.exp(mean_field.masked_lower(f, p, 1.0).log_value)
        yield (
            place,
            {
                **place.at,
                "n": n,
                "attained": max(ascent, running_mean, limit),
                "ascent": ascent,
                "limit": limit or None,
                "running_mean": running_mean,
                "bound": None if bound is None else bound.value,
                "log_bound": None if bound is None else bound.log_value,
                "stated": stated,
                "verdict": verdict,
                "unmasked": mean_field.unmasked(unit_layer("negative", a), p, 1.0).value,
                "two_dirac": this_project.two_dirac_lower(f, n, 1.0).value if p == 2 else None,
                "estimate": found.estimate.as_record() if p == 2 else None,
                "ascent_steps": found.steps,
                "status": found.estimate.status,
                **work.fields,
            },
        )


def _stated(f: SelfAttention, p: float) -> tuple[float, str]:
    """Return (1 + 3a)e^{2a}, and whether it is a bound for d_p: true, false or open."""
    from howsmooth.bounds import mean_field
    from howsmooth.bounds.bound import Refused
    from howsmooth.bounds.form import LayerForm

    a = float(LayerForm(f).slopes(1.0).query[0])
    try:
        mean_field.stated_masked(f, p, 1.0)
        verdict = "true"
    except Refused as refusal:
        verdict = "false" if refusal.condition == "a statement that is true" else "open"
    return (1 + 3 * a) * math.exp(2 * a), verdict


def _starts(n: int, restarts: int, seed: int) -> Tensor:
    """Return (restarts, n, 1): equal tokens, one token opposite to all others, and random ones."""
    import torch

    from howsmooth.attack.constraints import Ball

    first = -torch.ones(n, 1, dtype=torch.float64)
    isolated = first.clone()
    isolated[0] = 1
    random = Ball(1.0).draw((max(0, restarts - 2), n, 1), torch.Generator().manual_seed(seed))
    return torch.cat([first.unsqueeze(0), isolated.unsqueeze(0), random])[:restarts]


QUESTION = Question(
    spec=MaskedSpec,
    records=(MaskedRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:masked_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:masked_picture"),
    plots="constants against a",
    about="Compare Lipschitz constants of masked attention in the conditional distance d_p: the bound that is proved, "
    "the values that gradient ascent and the running mean attain, and whether the published bound, that of unmasked "
    "attention, holds.\n\n"
    "    One head in d = 1 with A = −a and V = 1, tokens in [−1, 1]. At p = 1 there is no finite constant.",
    noun="constant",
    grid=grid,
    together=("a",),
    describe=lambda at: f"a = {at['a']:g}",
)

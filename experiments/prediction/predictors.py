"""Candidate predictors of the success of an attack: the local constant, bounds, splitting, norms, attention entropy.

All of them depend only on the map and the clean tokens. A predictor that does not apply to a layer is None, and the
record has the reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsmooth.attack.feature import Budget, Noise, Target, run
from howsmooth.attention import SelfAttention
from howsmooth.bounds import LayerForm, Refused, certify_ball, this_project
from howsmooth.errors import InputError
from howsmooth.lipschitz import splits

AT_LAYERS = {
    "sigma": "σ₁ of the layer",
    "after_splitting": "norm after splitting",
    "splitting_ratio": "maxᵢ ‖∂₁G(xᵢ)‖ / σ₁",
    "splitting_gain": "gain of splitting, ≥ 1",
    "local_bound": "local bound at X",
    "yudin": "Yudin's bound at X",
    "certified_small": "certified ball, small budget",
    "certified_large": "certified ball, large budget",
    "ball_upper": "upper bound on the ball, R = max |xᵢ|",
    "ball_lower": "two-point example, R = max |xᵢ|",
    "max_norm": "max |xᵢ|",
    "noise_gain": "gain of one noise",
    "mean_norm": "mean |xᵢ|",
    "mean_radius": "mean radius ‖X‖/√n",
    "spread": "distance to the mean token, RMS",
    "spectral_norm": "‖X‖₂ of the tokens",
    "entropy": "mean attention entropy",
    "peak": "mean largest probability",
}
AT_MODELS = {
    "model_sigma": "σ₁ of the whole model",
    "objective_sigma": "σ₁ of model and objective",
    "sigma_product": "product of the layers' σ₁",
    "model_noise_gain": "gain of one noise, model",
    "objective_noise_gain": "gain of one noise, objective",
    "input_radius": "mean radius of the embeddings",
    "next_entropy": "entropy of the next token",
    "embedding_norm": "|mean of the last hidden states|",
}
LABELS = AT_LAYERS | AT_MODELS


def named_predictors(names: tuple[str, ...] | str = "all") -> tuple[str, ...]:
    """Return names of predictors, each once, in the order of the tables above.

    Example:
        >>> named_predictors(("entropy", "sigma"))
        ('sigma', 'entropy')
    """
    if names == "all":
        return tuple(LABELS)
    if unknown := [name for name in names if name not in LABELS]:
        raise InputError(f"expected predictors among {', '.join(LABELS)}, got {unknown[0]!r}; leave it out")
    return tuple(name for name in LABELS if name in names)


def layer_predictors(
    f: SelfAttention, x: Tensor, sizes: tuple[float, float], *, tol: float, confidence: float, seed: int
) -> dict[str, Any]:
    """Compute all predictors of one layer at tokens x (n, d).

    Args:
        f: The attention layer.
        x: The tokens, (n, d).
        sizes: The small and the large budget ‖E‖, for the certified balls and the noise.
        tol: Relative width of the interval of σ₁.
        confidence: Probability that the interval contains σ₁.
        seed: Seed of solver and noise.

    Returns:
        The predictors; under "refused" the reasons why some are None.

    Raises:
        InputError: If the layer is no `SelfAttention`.
    """
    if not isinstance(f, SelfAttention):
        raise InputError(
            f"expected a SelfAttention layer, got {type(f).__name__}; this model's attention "
            "can be measured, but there are no bounds for it"
        )
    found = splits(f, x, tol=tol, confidence=confidence, seed=seed)
    bounds, refused = _bounds(f, x, sizes, found.norm.upper)
    noise = run(Noise(), Target.of(f, x), Budget(sizes[0]), seed=seed)
    values = {
        "sigma": found.norm.value,
        "after_splitting": found.after,
        "splitting_ratio": found.ratio,
        "splitting_gain": found.gain,
        **bounds,
        "noise_gain": noise.gain,
        **_norms(x),
        **_attention(f, x),
    }
    sigma = {name: value for name, value in found.norm.as_record().items() if name != "seconds"}
    return {
        "predictors": {name: values[name] for name in AT_LAYERS},
        "refused": refused,
        "sigma": sigma,
        "verdict": found.status,
    }


def _bounds(
    f: SelfAttention, x: Tensor, sizes: tuple[float, float], sigma: float
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return the bounds, as logarithms where they may overflow: only their ranks are used."""
    form, x = LayerForm(f), x.double()
    at = certify_ball(form, x, 0.0, at_center=sigma, effort=0)  # ranks of many texts need no sharper bound
    values: dict[str, float | None] = {"local_bound": at.parts["this_project.local"], "yudin": at.parts["yudin"]}
    refused = {"yudin": at.reasons["yudin"]} if "yudin" in at.reasons else {}
    for name, size in zip(("certified_small", "certified_large"), sizes, strict=True):
        values[name] = certify_ball(form, x, size, at_center=sigma, effort=0).bound.log_value
    R = float(torch.linalg.vector_norm(x, dim=-1).max())
    for name, bound in (("ball_upper", this_project.upper), ("ball_lower", this_project.two_point_lower)):
        try:
            values[name] = bound(form, len(x), R).log_value
        except Refused as refusal:
            values[name], refused[name] = None, str(refusal)
    return values, refused


def _norms(x: Tensor) -> dict[str, float]:
    """Return norms of the tokens. ‖X‖ is √n times the mean radius, so both rank texts of one length equally."""
    x = x.double()
    rows = torch.linalg.vector_norm(x, dim=-1)
    return {
        "mean_norm": float(rows.mean()),
        "max_norm": float(rows.max()),
        "mean_radius": float(rows.square().mean().sqrt()),
        "spread": float((x - x.mean(0)).square().sum(-1).mean().sqrt()),
        "spectral_norm": float(torch.linalg.matrix_norm(x, 2)),
    }


def _attention(f: SelfAttention, x: Tensor) -> dict[str, float]:
    """Return the entropy in nats and the largest probability of a row, both averaged over heads and queries."""
    entropies, peaks = [], []
    for at in f.converted(dtype=torch.float64).jacobian(x.double()).linearised.blocks():
        p = at.p.reshape(f.heads, at.last - at.first, -1)
        entropies.append(torch.special.entr(p).sum(-1))
        peaks.append(p.amax(-1))
    return {"entropy": float(torch.cat(entropies, 1).mean()), "peak": float(torch.cat(peaks, 1).mean())}

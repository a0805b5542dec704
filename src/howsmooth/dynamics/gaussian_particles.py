"""Tokens drawn from a Gaussian, followed by themselves beside the Gaussian flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.fields import Field
from howsmooth.dynamics.gaussian import GaussianFlow
from howsmooth.dynamics.gaussian_state import GaussianState
from howsmooth.dynamics.integrating import integrate
from howsmooth.errors import InputError

_BEFORE = 0.9  # how much of the time to a blow-up is compared: past it, sampling decides when tokens blow up


@dataclass(frozen=True, eq=False)
class ParticlesBeside:
    """Tokens (T, n, d) at the flow's times, as far as they are compared.

    `coupled` (T) is the root mean square distance of each token to where the Gaussian flow takes it, `moments` (T) W₂
    between the flow's Gaussian and that of the tokens' mean and covariance.
    """

    times: Tensor
    tokens: Tensor
    coupled: Tensor
    moments: Tensor
    seed: int
    status: str

    def as_record(self) -> dict[str, Any]:
        return {"n": self.tokens.shape[1], "seed": self.seed, "status": self.status, "times": self.times.tolist(),
                "coupled": self.coupled.tolist(), "moments": self.moments.tolist()}


def particles_beside(flow: GaussianFlow, field: Field, n: int, *, seed: int = 0, rtol: float = 1e-6) -> ParticlesBeside:
    """n tokens from the flow's start, integrated under the field up to the flow's end, or nine tenths of its blow-up.

    >>> import torch
    >>> from howsmooth.attention.fields import LinearField
    >>> from howsmooth.dynamics import gaussian_flow
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> field = LinearField(-eye, eye)
    >>> beside = particles_beside(gaussian_flow(field, GaussianState.standard(2), 1.0), field, 2000)
    >>> bool(beside.coupled[-1] < 0.1)
    True
    """
    end = float(flow.times[-1]) if flow.blow_up is None else _BEFORE * flow.blow_up.time
    times = [t for t in flow.times.tolist() if t <= end]
    if len(times) < 2:
        raise InputError(f"expected a time of the flow between its start and {end:.4g}, nine tenths of its blow-up, "
                         "got none; take more frames")
    x = flow.start.sample(n, torch.Generator().manual_seed(seed))
    found = integrate(field, x, times[-1], saves=times, rtol=rtol, atol=1e-3 * rtol)
    reached = range(len(found.tokens))
    coupled = [(y - flow.push(x, k)).square().sum(-1).mean().sqrt() for k, y in enumerate(found.tokens)]
    moments = [GaussianState.fitted(found.tokens[k]).distance(flow.state(k)) for k in reached]
    return ParticlesBeside(found.times, found.tokens, torch.stack(coupled),
                           torch.tensor(moments, dtype=torch.float64), seed, found.status)

"""All instruments at all saved depths: one record for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention import Field, SelfAttention
from howsmooth.dynamics.growth import local_constant
from howsmooth.dynamics.instruments.clusters import (
    MOST_DIMENSIONS,
    MOST_TOKENS,
    clusters,
    hull,
    hyperplanes,
    leading_space,
)
from howsmooth.dynamics.instruments.geometry import (
    View,
    diameter,
    log_energy,
    pattern_of_p,
    principal_view,
    probabilities,
    view,
    w2,
)
from howsmooth.dynamics.renormalised import Renormalised
from howsmooth.dynamics.trajectory import Trajectory
from howsmooth.dynamics.velocity import one_head
from howsmooth.errors import InputError

Attention = Field | SelfAttention
MOST_IN_P = 512  # tokens: the rank of P takes its singular values
MOST_IN_W2 = 512  # tokens that coincide want the network simplex, an extra: without it there is no W₂


def watch(
    trajectory: Trajectory,
    field: Attention | Sequence[Attention],
    *,
    tol: float,
    renormalised: bool = False,
    lipschitz: bool = False,
) -> Iterator[dict[str, Any]]:
    """A record for each saved depth: what the instruments see, None where one does not apply or would take too long.

    Args:
        field: the attention that the tokens follow; a list of layers as in `Velocity`, each for its share of the depth.
        tol: an absolute distance: tokens closer than this are together.
        renormalised: whether the trajectory is in the coordinates e^{−tV}x.
        lipschitz: also the local Lipschitz constant of the attention at the tokens; costs a solve for each depth.

    `clusters`, `vertices` and `at_vertices` are of the tokens as they are; where V has several leading directions and
    others, `leading_clusters` and `leading_vertices` are those in the leading space.
    """
    scene = _Scene(trajectory, field, tol, renormalised, lipschitz)
    for t, x in zip(trajectory.times.tolist(), trajectory.tokens, strict=True):
        yield scene.record(t, x)


def drawing(trajectory: Trajectory, field: Attention | Sequence[Attention], tol: float) -> tuple[View, list[int]]:
    """What a picture needs: the plane to look from, and for each token the number of the cluster it ends in, as seen
    from there.
    """
    _, V = _matrices(field)
    if V is None and trajectory.last.shape[1] > 2:  # no direction is known to lead
        few = len(trajectory.last) <= MOST_TOKENS
        labels = clusters(trajectory.last, tol).labels.tolist() if few else [0] * len(trajectory.last)
        return principal_view(trajectory.tokens, 2), labels
    seen = view(trajectory.last.shape[1], V)
    if len(trajectory.last) > MOST_TOKENS:
        return seen, [0] * len(trajectory.last)
    last = seen(trajectory.last)
    # A second coordinate that runs free says nothing about who is together.
    return seen, clusters(last[:, :1] if _along_one(V) and last.shape[1] > 1 else last, tol).labels.tolist()


def _along_one(V: Tensor | None) -> bool:
    return V is not None and len(V) > 2 and leading_space(V)[1].shape[1] == 1


def _matrices(field: Attention | Sequence[Attention]) -> tuple[Tensor | None, Tensor | None]:
    """A and V where the attention is of one head."""
    try:
        layer: Any = getattr(field, "layer", field)
        A, _, V = one_head(layer)
    except InputError:
        A, V = getattr(field, "A", None), getattr(field, "V", None)
    return A, V


class _Scene:
    """What all depths share."""

    def __init__(
        self,
        trajectory: Trajectory,
        field: Attention | Sequence[Attention],
        tol: float,
        renormalised: bool,
        lipschitz: bool,
    ):
        self.last, self.tol, self.until, self.lipschitz = trajectory.last, tol, trajectory.until, lipschitz
        self.fields = tuple(field) if isinstance(field, (list, tuple)) else (field,)
        self.renormalised = Renormalised(field) if renormalised else None
        self.A, self.V = _matrices(field)
        n, self.d = trajectory.last.shape
        _, basis = leading_space(self.V) if self.V is not None else (None, torch.zeros(self.d, 0))
        self.leading = basis if 0 < basis.shape[1] < self.d else None
        self.few, self.few_in_p, self.few_in_w2 = (
            n <= MOST_TOKENS,
            n <= MOST_IN_P,
            (n <= MOST_IN_W2 and find_spec("ot") is not None),
        )

    def record(self, t: float, x: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {"t": t, "diameter": diameter(x)}
        groups = clusters(x, self.tol) if self.few else None
        found |= {
            "clusters": groups and groups.count,
            "largest_cluster": groups and groups.sizes[0],
            "cluster_gap": groups and groups.gap,
        }
        shape = hull(x, self.tol) if self.d <= MOST_DIMENSIONS else None
        found |= {
            "vertices": shape and shape.count,
            "at_vertices": shape and shape.at_vertices,
            "at_origin": shape and shape.at_origin,
        }
        found |= self._leading(x)
        P = self._probabilities(t, x)
        pattern = None if P is None else pattern_of_p(P)
        found |= {
            "rank": pattern and pattern.rank,
            "undecided": pattern and pattern.undecided,
            "leaders": pattern and len(pattern.leaders),
        }
        energy = self.A is not None and self.renormalised is None
        found["log_energy"] = log_energy(x, self.A) if energy else None
        found["w2_to_last"] = w2(x, self.last) if self.few_in_w2 else None
        layer = self.renormalised.at(t) if self.renormalised else self._field(t)
        found["local"] = float(local_constant(layer, x).value[0]) if self.lipschitz else None
        return found

    def _field(self, t: float) -> Attention:
        return self.fields[min(int(t / self.until * len(self.fields)), len(self.fields) - 1)]

    def _leading(self, x: Tensor) -> dict[str, Any]:
        """The tokens along the directions that grow fastest."""
        found: dict[str, Any] = dict.fromkeys(("hyperplanes", "levels", "leading_clusters", "leading_vertices"))
        if self.leading is None or not self.few:
            return found
        if self.leading.shape[1] == 1:
            planes = hyperplanes(x, self.V, self.tol)
            return found | {"hyperplanes": planes.count, "levels": planes.values if planes.count <= 8 else None}
        seen = x.double() @ self.leading.to(x.device)
        if seen.shape[1] <= MOST_DIMENSIONS:
            found["leading_vertices"] = hull(seen, self.tol).count
        return found | {"leading_clusters": clusters(seen, self.tol).count}

    def _probabilities(self, t: float, x: Tensor) -> Tensor | None:
        if not self.few_in_p:
            return None
        if self.renormalised is not None:
            return self.renormalised.probabilities(t, x)
        try:
            P = probabilities(self._field(t), x)
        except InputError:  # attention of another kind has no P in this sense
            return None
        return P[0] if len(P) == 1 else None

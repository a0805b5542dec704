"""Records of a trajectory: what all instruments measure at each saved depth."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.attention.heads import SelfAttention
from howsmooth.dynamics.growth import local_constant
from howsmooth.dynamics.instruments.clusters import (
    MAX_DIMENSIONS,
    MAX_TOKENS,
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
from howsmooth.dynamics.velocity import single_head_matrices
from howsmooth.errors import InputError

Attention = Field | SelfAttention
MAX_TOKENS_FOR_RANK = 512  # the rank of P takes an SVD
MAX_TOKENS_FOR_W2 = 512  # coinciding tokens require the network simplex of POT, an optional dependency


def trajectory_records(
    trajectory: Trajectory,
    field: Attention | Sequence[Attention],
    *,
    tol: float,
    renormalised: bool = False,
    lipschitz: bool = False,
    frames: Container[int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a record for each saved depth with what all instruments measure.

    A value is None if its instrument does not apply or would take too long. `clusters`, `vertices` and `at_vertices`
    use all coordinates; if the leading space of V has several dimensions but not all, `leading_clusters` and
    `leading_vertices` use the coordinates in it.

    Args:
        trajectory: The tokens along depth.
        field: The attention that moves the tokens, or a list of layers as in `Velocity`.
        tol: An absolute distance: tokens closer than this are in one cluster.
        renormalised: Whether the trajectory is in the coordinates e^{−tV}x.
        lipschitz: Also compute the local Lipschitz constant of the attention, with one solve for each depth.
        frames: Indices of the saved depths that have a record; by default all.

    Yields:
        One record for each saved depth.

    Example:
        >>> from howsmooth.attention import SoftmaxField
        >>> from howsmooth.dynamics import integrate
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> field = SoftmaxField.of(eye, -eye)
        >>> records = list(trajectory_records(integrate(field, eye, 1.0, frames=2), field, tol=0.1))
        >>> [record["clusters"] for record in records]
        [2, 2]
    """
    builder = _RecordBuilder(trajectory, field, tol, renormalised, lipschitz)
    for k, (t, x) in enumerate(zip(trajectory.times.tolist(), trajectory.tokens, strict=True)):
        if frames is None or k in frames:
            yield builder.record(t, x)


def view_and_labels(
    trajectory: Trajectory, field: Attention | Sequence[Attention], tol: float
) -> tuple[View, list[int]]:
    """Return the plane to draw a trajectory in, and for each token the label of its cluster at the last depth.

    Args:
        trajectory: The tokens along depth.
        field: The attention that moves the tokens, or a list of layers.
        tol: An absolute distance in the plane: tokens closer than this are in one cluster.

    Returns:
        The projection, and a label for each token; all labels are 0 for too many tokens.

    Example:
        >>> from howsmooth.attention import SoftmaxField
        >>> from howsmooth.dynamics import integrate
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> field = SoftmaxField.of(eye, -eye)
        >>> plane, labels = view_and_labels(integrate(field, eye, 1.0, frames=2), field, tol=0.1)
        >>> plane.names, labels
        (('coordinate 1', 'coordinate 2'), [0, 1])
    """
    _, V = _matrices(field)
    if V is None and trajectory.last.shape[1] > 2:  # no leading direction is known
        few = len(trajectory.last) <= MAX_TOKENS
        labels = clusters(trajectory.last, tol).labels.tolist() if few else [0] * len(trajectory.last)
        return principal_view(trajectory.tokens, 2), labels
    plane = view(trajectory.last.shape[1], V)
    if len(trajectory.last) > MAX_TOKENS:
        return plane, [0] * len(trajectory.last)
    last = plane(trajectory.last)
    # With one leading direction the tokens spread freely along the second axis.
    return plane, clusters(
        last[:, :1] if _has_one_leading_direction(V) and last.shape[1] > 1 else last, tol
    ).labels.tolist()


def _has_one_leading_direction(V: Tensor | None) -> bool:
    return V is not None and len(V) > 2 and leading_space(V)[1].shape[1] == 1


def _matrices(field: Attention | Sequence[Attention]) -> tuple[Tensor | None, Tensor | None]:
    """Return A and V of attention with one head; None for other attention."""
    layer: Any = getattr(field, "layer", field)
    try:
        A, _, V = single_head_matrices(layer)
    except InputError:
        return getattr(field, "A", None), getattr(field, "V", None)
    return A, V


class _RecordBuilder:
    """Makes the record of one depth; computes once what all depths share."""

    def __init__(
        self,
        trajectory: Trajectory,
        field: Attention | Sequence[Attention],
        tol: float,
        renormalised: bool,
        lipschitz: bool,
    ) -> None:
        self.last, self.tol, self.until, self.lipschitz = trajectory.last, tol, trajectory.until, lipschitz
        self.fields = tuple(field) if isinstance(field, (list, tuple)) else (field,)
        self.renormalised = Renormalised(field) if renormalised else None
        self.A, self.V = _matrices(field)
        n, self.d = trajectory.last.shape
        _, basis = leading_space(self.V) if self.V is not None else (None, torch.zeros(self.d, 0))
        self.leading = basis if 0 < basis.shape[1] < self.d else None
        self.has_clusters = n <= MAX_TOKENS
        self.has_pattern = n <= MAX_TOKENS_FOR_RANK
        self.has_w2 = n <= MAX_TOKENS_FOR_W2 and find_spec("ot") is not None

    def record(self, t: float, x: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {"t": t, "diameter": diameter(x)}
        groups = clusters(x, self.tol) if self.has_clusters else None
        found |= {
            "clusters": groups and groups.count,
            "largest_cluster": groups and groups.sizes[0],
            "cluster_gap": groups and groups.gap,
        }
        shape = hull(x, self.tol) if self.d <= MAX_DIMENSIONS else None
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
        found["log_energy"] = None if self.A is None or self.renormalised is not None else log_energy(x, self.A)
        found["w2_to_last"] = w2(x, self.last) if self.has_w2 else None
        layer = self.renormalised.at(t) if self.renormalised else self._field(t)
        found["local"] = float(local_constant(layer, x).value[0]) if self.lipschitz else None
        return found

    def _field(self, t: float) -> Attention:
        return self.fields[min(int(t / self.until * len(self.fields)), len(self.fields) - 1)]

    def _leading(self, x: Tensor) -> dict[str, Any]:
        """Measure the tokens along the directions that grow fastest."""
        found: dict[str, Any] = dict.fromkeys(("hyperplanes", "levels", "leading_clusters", "leading_vertices"))
        if self.leading is None or self.V is None or not self.has_clusters:
            return found
        if self.leading.shape[1] == 1:
            planes = hyperplanes(x, self.V, self.tol)
            return found | {"hyperplanes": planes.count, "levels": planes.values if planes.count <= 8 else None}
        projected = x.double() @ self.leading.to(x.device)
        if projected.shape[1] <= MAX_DIMENSIONS:
            found["leading_vertices"] = hull(projected, self.tol).count
        return found | {"leading_clusters": clusters(projected, self.tol).count}

    def _probabilities(self, t: float, x: Tensor) -> Tensor | None:
        if not self.has_pattern:
            return None
        if self.renormalised is not None:
            return self.renormalised.probabilities(t, x)
        try:
            P = probabilities(self._field(t), x)
        except InputError:  # other kinds of attention have no such P
            return None
        return P[0] if len(P) == 1 else None

"""Mass splitting: in the heads and layers of real models on text, and in a table of maps.

The measures of the table were found by `experiments/splitting_search.py` or are derived in docs/splitting.md. Their
ratios are computed when the table is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention.fields import (
    Field,
    L2Field,
    LinearField,
    MeanPooling,
    Pointwise,
    SigmoidField,
    SinkhornField,
    SoftmaxField,
)
from howsmooth.errors import InputError
from howsmooth.lipschitz import Splitting, splits
from howsmooth.lipschitz.criterion import criterion
from howsmooth.lipschitz.rowwise import rowwise_jacobian
from howsmooth.lipschitz.splitting import compare_norms
from howsmooth.models import OwnTokenMap
from howsmooth.questions.inputs import ProgressCallback, chosen_layers, run_fields, sites
from howsmooth.questions.spec import ModelSpec
from howsmooth.studies.splitting_families import Measure, ill_conditioned_measure, opposite_l2_measure
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

_MAX_SPLIT_TOKENS = 8  # how many of the tokens that split a record names


def splittings(
    model: Model, corpus: Corpus | None, spec: ModelSpec, *, progress: ProgressCallback | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head): whether the measure splits, and at which token.

    Copies have the position of their token and, in a causal model, its time: they attend to each other. For the maps
    "normed", "block" and "layer" the criterion is that of the whole map, MLP and residual included.

    Args:
        model: The model.
        corpus: The text; None with random tokens, for attention and its heads.
        spec: Which map, layers, lengths and samples.
        progress: Called with (n, layer, head) before each computation.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> spec = spec_of({"layers": [0], "heads": [0], "lengths": [8], "samples": 1})
        >>> (record,) = splittings(model, text, spec)
        >>> record["verdict"]
        'does not split'
    """
    shared = run_fields(model, corpus, spec)
    if spec.is_attention:
        for site in sites(model, corpus, spec, progress=progress):
            words = site.chunk.words if corpus is not None else [f"#{i}" for i in range(site.n)]
            site_fields = {"model": model.name, "map": spec.map_name, **site.record_fields}
            yield _record(splits(site.f, site.x, **spec.accuracy), words, site_fields) | shared
        return
    if corpus is None:
        raise InputError(f"expected a text for the map {spec.map_name}, got none; measure attention or its heads")
    cutter = model.cutter(corpus, special_tokens=spec.adds_special_tokens)
    for n in spec.lengths:
        for sample, chunk in enumerate(cutter.chunks(n, spec.samples)):
            for layer in chosen_layers(model, spec):
                if progress is not None:
                    progress(n, layer, None)
                at = model.map_at(chunk, layer, spec.map_name)
                if not isinstance(at.f, torch.nn.Module):
                    raise InputError(f"expected a module for the map {spec.map_name}, got {type(at.f).__name__}")
                found = compare_norms(at.f, rowwise_jacobian(OwnTokenMap(at.f), at.x), at.x, **spec.accuracy)
                site_fields = {
                    "model": model.name,
                    "layer": layer,
                    "head": None,
                    "map": spec.map_name,
                    "n": n,
                    "sample": sample,
                }
                yield _record(found, chunk.words, site_fields) | shared


def _record(found: Splitting, words: Sequence[str], site_fields: dict[str, Any]) -> dict[str, Any]:
    own_norms = found.own.value.tolist()
    split_positions = sorted(found.atoms.tolist(), key=lambda position: -own_norms[position])
    return (
        site_fields
        | found.as_record()
        | {
            "token": words[found.atom],
            "own_norms": [round(norm, 6) for norm in own_norms],
            "split_tokens": [
                {"position": i, "token": words[i], "ratio": own_norms[i] / found.norm.value}
                for i in split_positions[:_MAX_SPLIT_TOKENS]
            ],
        }
    )


@dataclass(frozen=True, eq=False)
class SplittingCase:
    """A map, a measure, and what is known about maps of this kind.

    Attributes:
        kind: Kind of the map.
        where: Parameters and measure, in words.
        field: The map.
        points: Atoms of the measure, (atoms, d).
        masses: Their masses.
        limit: The largest ratio that is possible or was found, in words.
        never: Whether no measure of this form splits.
    """

    kind: str
    where: str
    field: Field | Callable[..., Any]
    points: list[list[float]]
    masses: list[float]
    limit: str
    never: bool = False


def _two_atoms(kind: str, where: str, field: Field, measure: Measure, limit: str) -> SplittingCase:
    points, log_masses = measure
    return SplittingCase(kind, where, field, points, [math.exp(mass) for mass in log_masses], limit)


_ONE, _IDENTITY_2D = torch.ones(1, 1, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
_QUARTER_TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
_ILL_CONDITIONED = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))
# Found by search: tied queries and keys, and values, for which two atoms split.
_QUERY_KEY = torch.tensor([[-0.2624535355, 0.3061571579], [-0.4499762933, 3.2008975634]], dtype=torch.float64)
_VALUES = torch.tensor([[-1.2031648218, -4.1193098544], [2.0535030956, 3.0593035023]], dtype=torch.float64)

SPLITTING_CASES = (
    SplittingCase(
        "softmax", "A = −1, equal masses", SoftmaxField.of(-_ONE, _ONE), [[5.5981], [0.4677]], [1, 1], "1.485 found"
    ),
    SplittingCase(
        "softmax", "A = −1, 1 : y² − 1 at distance y", SoftmaxField.of(-_ONE, _ONE), [[0], [30]], [899, 1], "unbounded"
    ),
    SplittingCase(
        "softmax",
        "A = +1",
        SoftmaxField.of(_ONE, _ONE),
        [[13.1091068], [0.2197482]],
        [0.2547114, 0.7452886],
        "1.0051 found",
    ),
    _two_atoms(
        "softmax",
        "A ≻ 0 with condition number 1000, d = 2",
        SoftmaxField.of(_ILL_CONDITIONED, _IDENTITY_2D),
        ill_conditioned_measure(1000.0, 1000.0),
        "15.83 approached",
    ),
    _two_atoms(
        "L2, K = −Q",
        "light atom at −2.55, heavy at 2.45",
        L2Field(_ONE, -_ONE, _ONE),
        opposite_l2_measure(5.0),
        "unbounded",
    ),
    SplittingCase(
        "L2, tied K = Q",
        "d = 2, V ≠ I, two atoms",
        L2Field(_QUERY_KEY, _QUERY_KEY, _VALUES),
        [[-1.2033681198, 0.5774883113], [0.4920128319, 0.2973140538]],
        [25.12, 1],
        "2 proved",
    ),
    SplittingCase(
        "L2, tied K = Q",
        "V = I, QᵀQ = cI: never",
        L2Field(_ONE, _ONE, _ONE),
        [[0], [3]],
        [1, 4],
        "1 proved",
        never=True,
    ),
    SplittingCase("Sinkhorn", "A = −1, masses 1 : 2", SinkhornField(-_ONE, _ONE), [[0], [6]], [1, 2], "unbounded"),
    SplittingCase(
        "Sinkhorn", "A = +1, two atoms", SinkhornField(_ONE, _ONE), [[0], [2]], [1, 2], "1 proved", never=True
    ),
    SplittingCase("sigmoid", "A = −1, one atom", SigmoidField(-_ONE, _ONE), [[0.8595]], [1], "unbounded"),
    SplittingCase("sigmoid", "V = I, A = cI ≻ 0", SigmoidField(_ONE, _ONE), [[1], [3]], [1, 1], "1 proved", never=True),
    SplittingCase(
        "linear", "A a quarter turn, one atom", LinearField(_QUARTER_TURN, _IDENTITY_2D), [[1, 2]], [1], "unbounded"
    ),
    SplittingCase(
        "linear",
        "linearly dependent atoms (n > d)",
        LinearField(_QUARTER_TURN, _IDENTITY_2D),
        [[1, 2], [0, 1], [2, -1]],
        [1, 2, 3],
        "1 proved",
        never=True,
    ),
    SplittingCase(
        "mean pooling", "always", MeanPooling(_IDENTITY_2D), [[1, 2], [0, 1]], [1, 2], "0 proved", never=True
    ),
    SplittingCase(
        "pointwise network", "always", Pointwise(torch.tanh, 1), [[1], [0.2]], [1, 2], "1 proved", never=True
    ),
)


def evaluate_splitting_cases() -> Iterator[dict[str, Any]]:
    """Yield one record per case: both norms, their ratio, and the norm after every atom was cut in two."""
    for case in SPLITTING_CASES:
        points = torch.tensor(case.points, dtype=torch.float64)
        masses = torch.tensor(case.masses, dtype=torch.float64)
        found = criterion(case.field, points, masses.log())
        halves = torch.stack([0.3 * masses, 0.7 * masses], -1).flatten()
        after = criterion(case.field, points.repeat_interleave(2, 0), halves.log())
        yield {
            "kind": case.kind,
            "where": case.where,
            **found.as_record(),
            "after": after.norm,
            "limit": case.limit,
            "never": case.never,
            "splits": found.ratio > 1 + 1e-12,
            "status": "converged",
        }

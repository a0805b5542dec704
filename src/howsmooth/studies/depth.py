"""Tokens of a text at every depth of a model: their spread, and the growth of perturbations.

There is a record for each depth. It contains the spread of the tokens, with and without the attention sink, and the
largest factor by which a perturbation of the first tokens can have grown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.dynamics.growth import PerturbationGrowth, growth_by_map
from howsmooth.dynamics.instruments import clusters, diameter, directions, principal_view, probabilities, spread
from howsmooth.errors import InputError
from howsmooth.questions.inputs import ProgressCallback, perturbed_mask
from howsmooth.questions.quantities import top_tokens
from howsmooth.questions.spec import ModelSpec
from howsmooth.records.provenance import provenance
from howsmooth.spectral import SingularTriplets
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from howsmooth.models import Chain, Model
    from howsmooth.texts.cutting import TokenChunk

TOLERANCES = (0.1, 0.3, 0.6)  # distances between directions, from 0 to 2: angles of 6°, 17° and 35°
MAX_LAYERS_ALL_DEPTHS = 12  # by default growth is computed at every depth of models with at most so many layers
NUM_SPACED_DEPTHS = 6  # … and at so many evenly spaced depths of deeper models, besides depths 1 and 2
MAX_ATTENTION_LENGTH = 1024  # tokens up to which the attention probabilities are computed


@dataclass(frozen=True)
class DepthOptions:
    """What is computed along the depth of a model.

    Attributes:
        depths: Depths at which the growth of perturbations is computed, as numbers of layers; empty for none.
        tolerances: Distances below which directions belong to one cluster.
    """

    depths: tuple[int, ...]
    tolerances: tuple[float, ...] = TOLERANCES


def chosen_depths(
    model: Model,
    corpus: Corpus,
    spec: ModelSpec,
    *,
    depths: Sequence[int] | str | None = None,
    tolerances: Sequence[float] = TOLERANCES,
) -> DepthOptions:
    """Return the depths to compute, after checking that everything can be computed.

    Args:
        model: The model.
        corpus: The text.
        spec: Lengths and samples.
        depths: Depths at which the growth of perturbations is computed: numbers from 1, "all", or () for none. None
            takes all depths of a model with few layers and some depths of a deep one.
        tolerances: Distances between directions, from 0 to 2, below which tokens belong to one cluster.

    Raises:
        InputError: A depth, a length or a tolerance is out of range, or the text is too short.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> chosen_depths(model, text, spec_of({"lengths": [8], "samples": 1})).depths
        (1, 2, 3, 4, 5, 6)
    """
    if isinstance(depths, str) and depths != "all":
        raise InputError(f'expected depths as numbers or "all", got {depths!r}')
    numbers: Sequence[int]
    if depths is None and model.layers > MAX_LAYERS_ALL_DEPTHS:
        spaced = (round(model.layers * k / NUM_SPACED_DEPTHS) for k in range(1, NUM_SPACED_DEPTHS + 1))
        numbers = [1, 2, *spaced]
    elif depths is None or isinstance(depths, str):
        numbers = range(1, model.layers + 1)
    else:
        numbers = depths
    beyond = [depth for depth in numbers if not 1 <= depth <= model.layers]
    if beyond:
        raise InputError(
            f"expected depths from 1 to {model.layers}, the layers of {model.name}, got {beyond[0]}; "
            "choose among them or use all"
        )
    if min(spec.lengths) < 4:
        raise InputError(f"expected lengths of at least 4 tokens, to see how they are spread, got {min(spec.lengths)}")
    if not tolerances or not all(0 < tol < 2 for tol in tolerances):
        raise InputError(f"expected tolerances between 0 and 2, distances of directions, got {list(tolerances)}")
    for n in spec.lengths:  # raises if the text is too short or n exceeds the positions
        model.chunks(corpus, n, spec.samples, spec.adds_special_tokens)
    return DepthOptions(tuple(sorted(set(numbers))), tuple(tolerances))


@dataclass(frozen=True, eq=False)
class DepthTrajectory:
    """The tokens of one chunk of text at every depth of a model.

    Attributes:
        chunk: The chunk.
        n: Number of tokens.
        sample: Number of the sample.
        chain: The layers as maps, and the tokens that enter the first.
        states: The tokens before the first map and after each, (n, d).
        attention_statistics: For each layer, `sharpness` and `to_sink`; empty where the probabilities are not computed.
        sink: Position of the token that receives most attention from the others, on average over layers and heads;
            None where the probabilities are not computed.
    """

    chunk: TokenChunk
    n: int
    sample: int
    chain: Chain
    states: list[Tensor]
    attention_statistics: list[dict[str, float]]
    sink: int | None

    def records(
        self,
        model: Model,
        corpus: Corpus,
        spec: ModelSpec,
        options: DepthOptions,
        progress: ProgressCallback | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield a record for each depth; the last is after the final normalisation, if there is one.

        Args:
            model: The model.
            corpus: The text.
            spec: Accuracy, and which tokens are perturbed.
            options: As `chosen_depths` returns them.
            progress: Called with (n, layer, None) before each depth.
        """
        layers, shared = len(self.chain.layers), self._shared_fields(model, corpus, spec, options)
        if not options.depths:
            for depth in range(len(self.states)):
                yield self._spread_fields(depth, options) | _empty_growth() | shared
            return
        yield self._spread_fields(0, options) | _initial_growth() | shared
        perturbed = perturbed_mask(self.chunk.special, spec.tokens[0])
        at = [*options.depths, *([layers + 1] if self.chain.norm is not None else [])]
        positions = None if perturbed is None else perturbed.nonzero().flatten().tolist()
        growth = growth_by_map(self.chain.maps, self.chain.x, at, moved=positions, **spec.accuracy)
        log_product = 0.0
        for depth in range(1, len(self.states)):
            if progress is not None:
                progress(self.n, min(depth, layers) - 1, None)
            layer_triplets, chain_growth = next(growth)
            sigma = float(layer_triplets.value[0])
            log_product += math.log(sigma) if sigma > 0 else -math.inf
            fields = _layer_growth(layer_triplets, log_product)
            if chain_growth is not None:
                fields |= _chain_growth(chain_growth, self.states[0], self.states[depth], self.chunk)
            yield self._spread_fields(depth, options) | fields | shared

    def _spread_fields(self, depth: int, options: DepthOptions) -> dict[str, Any]:
        """Return the fields of a record about the spread of the tokens at one depth."""
        x, layers = self.states[depth], len(self.chain.layers)
        with_sink = _spread(x, options.tolerances)
        without_sink = dict.fromkeys(with_sink)
        if self.sink is not None:
            others = [i for i in range(self.n) if i != self.sink]
            without_sink = _spread(x[others], options.tolerances)
        attention = self.attention_statistics[depth] if depth < len(self.attention_statistics) else {}
        return {
            "depth": min(depth, layers),
            "normed": depth > layers,
            "n": self.n,
            "sample": self.sample,
            **with_sink,
            **{f"{key}_without_sink": value for key, value in without_sink.items()},
            "sink_norm": None if self.sink is None else float(torch.linalg.vector_norm(x[self.sink].double())),
            "sharpness": attention.get("sharpness"),
            "to_sink": attention.get("to_sink"),
        }

    def _shared_fields(self, model: Model, corpus: Corpus, spec: ModelSpec, options: DepthOptions) -> dict[str, Any]:
        """Return the fields that all records of this trajectory share."""
        return {
            "model": model.name,
            "layers": len(self.chain.layers),
            "d": self.states[0].shape[1],
            "sink": self.sink,
            "sink_token": None if self.sink is None else self.chunk.words[self.sink],
            "distinct": len(set(self.chunk.ids.tolist())),
            "tolerances": list(options.tolerances),
            "tokens": spec.tokens[0],
            "special_tokens": spec.special_tokens,
            "tol": spec.tol,
            "seed": spec.seed,
            "device": str(model.device),
            "dtype": str(self.states[0].dtype).removeprefix("torch."),
            "model_dtype": str(model.dtype).removeprefix("torch."),
            "weights": model.source.get("weights"),
            "source": dict(model.source),
            "text": corpus.name,
            "text_sha256": corpus.sha256,
            **provenance(),
        }


def depth_trajectories(model: Model, corpus: Corpus, spec: ModelSpec) -> Iterator[DepthTrajectory]:
    """Yield the tokens at every depth, for each length and sample of a spec.

    Args:
        model: The model.
        corpus: The text.
        spec: Lengths and samples.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> (trajectory,) = depth_trajectories(model, text, spec_of({"lengths": [8], "samples": 1}))
        >>> len(trajectory.states), tuple(trajectory.states[0].shape)
        (7, (8, 384))
    """
    from howsmooth.models import layer_chain

    for n in spec.lengths:
        for sample, chunk in enumerate(model.chunks(corpus, n, spec.samples, spec.adds_special_tokens)):
            chain = layer_chain(model, chunk)
            statistics, sink = _attention_statistics(model, chunk)
            yield DepthTrajectory(chunk, n, sample, chain, chain.states(), statistics, sink)


def _attention_statistics(model: Model, chunk: TokenChunk) -> tuple[list[dict[str, float]], int | None]:
    """Return the statistics of each layer, and the position of the sink.

    `sharpness` is the largest probability of a query, `to_sink` the probability that a query of another token gives to
    the sink; both are means over heads and queries.
    """
    n, maps = len(chunk), [model.attention(layer, len(chunk)) for layer in range(model.layers)]
    if n > MAX_ATTENTION_LENGTH or not all(isinstance(f, SelfAttention) for f in maps):
        return [], None
    inputs = model.activations(chunk, range(model.layers))
    received, sharpness = [], []
    with torch.no_grad():
        for layer, f in enumerate(maps):
            P = probabilities(f, inputs[layer]).double()
            sharpness.append(float(P.amax(-1).mean()))
            mean = P.mean(0)
            received.append((mean.sum(0) - mean.diagonal()) / (n - 1))
    sink = int(torch.stack(received).mean(0).argmax())
    return [{"sharpness": s, "to_sink": float(r[sink])} for s, r in zip(sharpness, received, strict=True)], sink


def _spread(x: Tensor, tolerances: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a record about the spread of tokens x, (n, d)."""
    found, u = spread(x), directions(x)
    groups = [clusters(u, tol) for tol in tolerances]
    return {
        "cosine": found.cosine,
        "effective_rank": found.effective_rank,
        "participation": found.participation,
        "to_mean": found.to_mean,
        "norm": found.size,
        "largest_norm": found.largest,
        "diameter": diameter(x),
        "angular_diameter": diameter(u),
        "clusters": [g.count for g in groups],
        "largest_cluster": [g.sizes[0] for g in groups],
    }


def _empty_growth() -> dict[str, Any]:
    """Return the fields about the growth of perturbations where it is not computed."""
    none = dict.fromkeys(
        (
            "value",
            "lower",
            "upper",
            "product",
            "log_product",
            "relative",
            "own",
            "own_lower",
            "own_upper",
            "own_status",
            "confidence",
            "seconds",
            "top_tokens",
            "top_responses",
        )
    )
    return {**none, "status": "converged"}


def _initial_growth() -> dict[str, Any]:
    """Return the fields about growth at depth 0, where every factor is exactly 1."""
    one = dict.fromkeys(("value", "lower", "upper", "product", "relative", "confidence"), 1.0)
    return _empty_growth() | one | {"log_product": 0.0}


def _layer_growth(triplets: SingularTriplets, log_product: float) -> dict[str, Any]:
    """Return the fields about the last layer alone, and about the product of all layers so far."""
    return _empty_growth() | {
        "own": float(triplets.value[0]),
        "own_lower": float(triplets.lower[0]),
        "own_upper": float(triplets.upper[0]),
        "own_status": triplets.status,
        "confidence": triplets.confidence,
        "status": triplets.status,
        "seconds": triplets.seconds,
        "log_product": log_product,
        "product": math.exp(log_product) if log_product < 709 else None,  # beyond, exp overflows
    }


def _chain_growth(growth: PerturbationGrowth, first: Tensor, last: Tensor, chunk: TokenChunk) -> dict[str, Any]:
    """Return the fields about the composition of all layers so far; `relative` is scaled by ‖first‖/‖last‖."""
    before, after = (float(torch.linalg.vector_norm(x.double())) for x in (first, last))
    fields = {key: getattr(growth, key) for key in ("value", "lower", "upper", "confidence")}
    fields |= {
        "relative": growth.value * before / after,
        "top_tokens": top_tokens(_shares(growth.direction), chunk.words.__getitem__),
        "top_responses": top_tokens(_shares(growth.response), chunk.words.__getitem__),
    }
    return fields | ({} if growth.status == "converged" else {"status": growth.status})


def _shares(direction: Tensor) -> Tensor:
    """Return the share of each token in the squared norm of a direction of norm 1, (n,)."""
    return direction.double().square().sum(-1)


def principal_coordinates(trajectory: DepthTrajectory) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the directions of the tokens at all depths in their principal axes.

    The sink is ignored when the axes are computed, and projected like the other tokens.

    Returns:
        Coordinates, (depths, n, 3), and the names of the axes.
    """
    u = torch.stack([directions(x) for x in trajectory.states])
    view = principal_view(u[:, [i for i in range(trajectory.n) if i != trajectory.sink]])
    return view(u).numpy(), view.names

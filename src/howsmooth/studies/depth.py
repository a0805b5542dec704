"""Real depth: the tokens of a text through the true layers of a model, with the instruments of flows.

A record for each depth says how the tokens there are spread, with and without the token that draws most attention, and
how much a perturbation of the first tokens can have grown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.dynamics.growth import PerturbationGrowth, growth_by_map
from howsmooth.dynamics.instruments import clusters, diameter, directions, principal_view, probabilities, spread
from howsmooth.errors import InputError
from howsmooth.spectral import SingularTriplets
from howsmooth.studies.inputs import moved_tokens
from howsmooth.studies.provenance import provenance
from howsmooth.studies.quantities import top_tokens
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Chain, Model, TokenChunk

TOLERANCES = (0.1, 0.3, 0.6)  # distances between directions, from 0 to 2: angles of 6°, 17° and 35°
FEW_LAYERS = 12  # of so many layers each is a depth to look at, of more a few
SPREAD_OUT = 6
MOST_LOOKS = 1024  # tokens up to which all attention weights are looked at


@dataclass(frozen=True)
class Depths:
    """Which depths to look at, as numbers of layers passed, and how close directions of one cluster are."""

    depths: tuple[int, ...]
    tolerances: tuple[float, ...] = TOLERANCES


def chosen_depths(
    model: Model,
    corpus: Corpus,
    spec: Spec,
    *,
    depths: Sequence[int] | str | None = None,
    tolerances: Sequence[float] = TOLERANCES,
) -> Depths:
    """Check everything before anything is computed; None takes all depths of a small model, a few of a deep one.

    `depths` = () leaves the growth of perturbations out.
    """
    if depths is None and model.layers > FEW_LAYERS:
        depths = [1, 2, *(round(model.layers * k / SPREAD_OUT) for k in range(1, SPREAD_OUT + 1))]
    elif depths is None or depths == "all":
        depths = range(1, model.layers + 1)
    beyond = [depth for depth in depths if not 1 <= depth <= model.layers]
    if beyond:
        raise InputError(
            f"expected depths from 1 to {model.layers}, the layers of {model.name}, got {beyond[0]}; "
            "choose among them or say all"
        )
    if min(spec.lengths) < 4:
        raise InputError(f"expected lengths of at least 4 tokens, to see how they are spread, got {min(spec.lengths)}")
    if not tolerances or not all(0 < tol < 2 for tol in tolerances):
        raise InputError(f"expected tolerances between 0 and 2, distances of directions, got {list(tolerances)}")
    for n in spec.lengths:  # too few words, too many positions: the cutting refuses both
        model.chunks(corpus, n, spec.samples, spec.adds_special_tokens)
    return Depths(tuple(sorted(set(depths))), tuple(tolerances))


@dataclass(frozen=True, eq=False)
class Passage:
    """One piece of text on its way through a model: `states` are the tokens before the first map and after each.

    `looks` has for each layer how its attention is dealt out; `sink` is the number of the token that gets most of the
    others' attention, on average over layers and heads, None where the weights of attention are not to be had.
    """

    chunk: TokenChunk
    n: int
    sample: int
    chain: Chain
    states: list[Tensor]
    looks: list[dict[str, float]]
    sink: int | None

    def records(
        self,
        model: Model,
        corpus: Corpus,
        spec: Spec,
        chosen: Depths,
        step: Callable[[int, int, int | None], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """A record for each depth, as soon as it is known; the last is after the final norm, if there is one."""
        layers, facts = len(self.chain.layers), self._facts(model, corpus, spec, chosen)
        if not chosen.depths:
            yield from (self._spread(depth, chosen) | _unknown() | facts for depth in range(len(self.states)))
            return
        yield self._spread(0, chosen) | _unmoved() | facts
        moved = moved_tokens(self.chunk.special, spec.tokens[0])
        at = [*chosen.depths, *([layers + 1] if self.chain.norm is not None else [])]
        rows = None if moved is None else moved.nonzero().flatten().tolist()
        found = growth_by_map(self.chain.maps, self.chain.x, at, moved=rows, **spec.accuracy)
        log_product = 0.0
        for depth in range(1, len(self.states)):
            if step is not None:
                step(self.n, min(depth, layers) - 1, None)
            own, grown = next(found)
            sigma = float(own.value[0])
            log_product += math.log(sigma) if sigma > 0 else -math.inf
            known = _of_layer(own, log_product)
            if grown is not None:
                known |= _of_chain(grown, self.states[0], self.states[depth], self.chunk)
            yield self._spread(depth, chosen) | known | facts

    def _spread(self, depth: int, chosen: Depths) -> dict[str, Any]:
        x, layers = self.states[depth], len(self.chain.layers)
        with_all = _seen(x, chosen.tolerances)
        others = [i for i in range(self.n) if i != self.sink]
        without = _seen(x[others], chosen.tolerances) if self.sink is not None else dict.fromkeys(with_all)
        look = self.looks[depth] if depth < len(self.looks) else {}
        return {
            "depth": min(depth, layers),
            "normed": depth > layers,
            "n": self.n,
            "sample": self.sample,
            **with_all,
            **{f"{key}_without_sink": value for key, value in without.items()},
            "sink_norm": None if self.sink is None else float(torch.linalg.vector_norm(x[self.sink].double())),
            "sharpness": look.get("sharpness"),
            "to_sink": look.get("to_sink"),
        }

    def _facts(self, model: Model, corpus: Corpus, spec: Spec, chosen: Depths) -> dict[str, Any]:
        word = None if self.sink is None else self.chunk.words[self.sink]
        return {
            "model": model.name,
            "layers": len(self.chain.layers),
            "d": self.states[0].shape[1],
            "sink": self.sink,
            "sink_token": word,
            "distinct": len(set(self.chunk.ids.tolist())),
            "tolerances": list(chosen.tolerances),
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


def pass_through(model: Model, corpus: Corpus, spec: Spec) -> Iterator[Passage]:
    """Yield the chunks of the text that the spec asks for, each with its tokens at all depths."""
    from howsmooth.models import layer_chain

    for n in spec.lengths:
        for sample, chunk in enumerate(model.chunks(corpus, n, spec.samples, spec.adds_special_tokens)):
            chain = layer_chain(model, chunk)
            looks, sink = _attention(model, chunk)
            yield Passage(chunk, n, sample, chain, chain.states(), looks, sink)


def _attention(model: Model, chunk: TokenChunk) -> tuple[list[dict[str, float]], int | None]:
    """For each layer, means over heads: the largest weight of a query, and what others give to the sink."""
    n, maps = len(chunk), [model.attention(layer, len(chunk)) for layer in range(model.layers)]
    if n > MOST_LOOKS or not all(isinstance(f, SelfAttention) for f in maps):
        return [], None
    entering = model.activations(chunk, range(model.layers))
    received, sharpness = [], []
    with torch.no_grad():
        for layer, f in enumerate(maps):
            P = probabilities(f, entering[layer]).double()
            sharpness.append(float(P.amax(-1).mean()))
            mean = P.mean(0)
            received.append((mean.sum(0) - mean.diagonal()) / (n - 1))
    sink = int(torch.stack(received).mean(0).argmax())
    return [{"sharpness": s, "to_sink": float(r[sink])} for s, r in zip(sharpness, received, strict=True)], sink


def _seen(x: Tensor, tolerances: Sequence[float]) -> dict[str, Any]:
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


def _unknown() -> dict[str, Any]:
    """The part of a record that speaks of perturbations, where nothing was asked."""
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


def _unmoved() -> dict[str, Any]:
    """At depth 0 nothing has happened, and all is 1 without doubt."""
    one = dict.fromkeys(("value", "lower", "upper", "product", "relative", "confidence"), 1.0)
    return _unknown() | one | {"log_product": 0.0}


def _of_layer(own: SingularTriplets, log_product: float) -> dict[str, Any]:
    """What the last layer does alone, and what all of them allow together."""
    return _unknown() | {
        "own": float(own.value[0]),
        "own_lower": float(own.lower[0]),
        "own_upper": float(own.upper[0]),
        "own_status": own.status,
        "confidence": own.confidence,
        "status": own.status,
        "seconds": own.seconds,
        "log_product": log_product,
        "product": math.exp(log_product) if log_product < 709 else None,
    }


def _of_chain(grown: PerturbationGrowth, first: Tensor, here: Tensor, chunk: TokenChunk) -> dict[str, Any]:
    """What all layers so far can do to a perturbation; `relative` has both sides in units of the tokens' own size."""
    before, after = (float(torch.linalg.vector_norm(x.double())) for x in (first, here))
    found = {key: getattr(grown, key) for key in ("value", "lower", "upper", "confidence")}
    found |= {
        "relative": grown.value * before / after,
        "top_tokens": top_tokens(_shares(grown.direction), chunk.words.__getitem__),
        "top_responses": top_tokens(_shares(grown.response), chunk.words.__getitem__),
    }
    return found | ({} if grown.status == "converged" else {"status": grown.status})


def _shares(direction: Tensor) -> Tensor:
    return direction.double().square().sum(-1)


def picture(passage: Passage) -> tuple[Any, tuple[str, ...]]:
    """Directions of the tokens at all depths as an array (T, n, 3), in the axes along which they vary most (the sink
    has no say in them), and the names of the axes.
    """
    u = torch.stack([directions(x) for x in passage.states])
    seen = principal_view(u[:, [i for i in range(passage.n) if i != passage.sink]])
    return seen(u).numpy(), seen.names

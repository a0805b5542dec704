"""The measuring loop: a model, a text and resolved settings in, one record per estimate out.

A record is a plain dictionary; what it holds is all that figures, tables and pages may know.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention import SelfAttention, outline
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian, local_lipschitz
from howsmooth.spectral import MemoryPlan, plan, restrict
from howsmooth.spectral.golub_kahan import STOPS
from howsmooth.spectral.memory import FEWEST_STORED
from howsmooth.studies.facts import provenance
from howsmooth.studies.inputs import Inputs, Normalised, Text
from howsmooth.studies.places import all_shares, top_tokens
from howsmooth.studies.room import solver_limit
from howsmooth.studies.settings import Settings

if TYPE_CHECKING:
    from howsmooth.lipschitz import Estimate
    from howsmooth.models import Model
    from howsmooth.models.gpt2_file import AttentionFile

__all__ = ["Normalised", "Settings", "Text", "measure", "memory_plan", "resolve"]

TOKEN_CHOICES = ("all", "no-special", "no-first")
KINDS = ("normed", "block", "layer")  # of maps beyond attention and its heads, see `Model.map`


def resolve(
    model: Model | AttentionFile,
    text: Inputs,
    *,
    layers: tuple[int, ...] | str = "all",
    heads: tuple[int, ...] | str | None = None,
    kind: str | None = None,
    lengths: tuple[int, ...],
    samples: int,
    tokens: str = "all",
    special_tokens: bool = True,
    tol: float = 1e-3,
    confidence: float = 0.999,
    max_memory: int | None = None,
    products: str | None = None,
    stop: str = "interval",
    max_steps: int | None = None,
    seed: int = 0,
) -> Settings:
    """Settings checked against the model and the text, so that nothing fails halfway through."""
    if tokens not in TOKEN_CHOICES:
        raise InputError(f"expected tokens to be one of {', '.join(TOKEN_CHOICES)}, got {tokens!r}")
    if kind is not None and (kind not in KINDS or heads is not None or products is not None):
        raise InputError(f"expected kind to be one of {', '.join(KINDS)}, without heads or products, got {kind!r}")
    if kind is not None and isinstance(text, Normalised):
        raise InputError(f"expected a text for the map {kind}, whose tokens come from a model, got {text.name}; "
                         "measure attention or its heads, or leave --inputs out")
    if stop not in STOPS or (max_steps is not None and max_steps < 1):
        raise InputError(f"expected stop as one of {', '.join(STOPS)} and max_steps from 1, got {stop!r} and "
                         f"{max_steps}")
    if samples < 1:
        raise InputError(f"expected at least 1 sample, got {samples}")
    if not 0 < tol < 1:
        raise InputError(f"expected a tolerance between 0 and 1, got {tol}")
    if not 0 < confidence < 1:
        raise InputError(f"expected a confidence between 0 and 1, got {confidence}")
    settings = Settings(
        layers=chosen(layers, model.layers, f"layers of {model.name}"),
        heads=None if heads is None else chosen(heads, model.heads, f"heads of {model.name}"),
        kind=kind,
        lengths=tuple(lengths),
        samples=samples,
        tokens=tokens,
        special_tokens=special_tokens,
        tol=tol,
        confidence=confidence,
        max_memory=max_memory,
        products=products,
        stop=stop,
        max_steps=max_steps,
        seed=seed,
    )
    _check_lengths(model, text, settings)
    return settings


def chosen(wanted: tuple[int, ...] | str, available: int | tuple[int, ...], what: str) -> tuple[int, ...]:
    """Indices below `available`, or among those, each once; "all" is all of them."""
    known = range(available) if isinstance(available, int) else available
    if isinstance(wanted, str) and wanted == "all":
        return tuple(known)
    wanted = tuple(operator.index(index) for index in wanted)  # records hold Python's own numbers
    unknown = [index for index in wanted if index not in known]
    if unknown or not wanted:
        among = f"between 0 and {available - 1}" if isinstance(available, int) else "among " + ", ".join(
            map(str, available))
        raise InputError(
            f"expected {what} {among}, got {unknown[0] if unknown else 'none'}; choose among them or say all"
        )
    return tuple(dict.fromkeys(wanted))


def _check_lengths(model: Model | AttentionFile, text: Inputs, settings: Settings) -> None:
    if not settings.lengths or min(settings.lengths) < 1:
        raise InputError(f"expected lengths of at least 1 token, got {min(settings.lengths, default='none')}")
    longest = max(settings.lengths)
    text.check(model, longest)
    # Too few tokens for the longest length, no room for words in the shortest: the cutting refuses both.
    for n in {min(settings.lengths), longest}:
        piece, *_ = text.pieces(model, n, settings.samples, settings.special_tokens)
        moved_tokens(piece, settings.tokens, model.device)


def memory_plan(model: Model | AttentionFile, text: Inputs, settings: Settings) -> MemoryPlan:
    """What the largest solve will need, refused here and now if `max_memory`, or a GPU, cannot hold it.

    All layers of a model have one shape, so the first layer at the longest length stands for them.
    """
    n, layer = max(settings.lengths), settings.layers[0]
    settings = settings.at(n, model.device)
    piece = text.pieces(model, n, settings.samples, settings.special_tokens)[0]
    (_, attention), *_ = attention_maps(model, layer, n, settings.heads, text)
    if isinstance(attention, SelfAttention):
        derivative = outline(attention, n, settings.product_dtype)
    else:
        derivative = jacobian(attention, text.tokens(model, piece, [layer])[layer])
    moved = moved_tokens(piece, settings.tokens, model.device)
    if moved is not None:
        width = derivative.shape[1] // n
        columns = (moved[:, None] * width + torch.arange(width, device=moved.device)).flatten()
        derivative = restrict(derivative, cols=columns)
    options = {"max_steps": settings.max_steps, "tol": settings.tol, "confidence": settings.confidence,
               "stop": settings.stop}
    limit = solver_limit(model.device, settings.max_memory)
    try:
        return plan(derivative, limit, **options)
    except InputError:
        if limit is None:
            raise
        # The solver speaks of vectors in bytes; here it is known what was asked for.
        least = replace(plan(derivative, **options), stored=FEWEST_STORED).total / 2**20
        what = "max_memory" if limit == settings.max_memory else f"free memory on {model.device}"
        remedy = ("allow more memory (a larger --max-memory) or" if limit == settings.max_memory else
                  "free some, use --products bfloat16 --stop residual, which has no twin in float64, or")
        raise InputError(
            f"expected {what} of at least {math.ceil(10 * least) / 10:.1f} MiB for n = {n}, "
            f"got {round(limit / 2**20, 3):g} MiB; {remedy} ask for shorter lengths (--lengths)"
        ) from None


def measure(
    model: Model | AttentionFile,
    text: Inputs,
    settings: Settings,
    *,
    step: Callable[[int, int, int | None], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head), each as soon as it is computed.

    One forward pass per chunk of text gives the tokens entering all the layers; drawn tokens are made layer by layer.
    `step(n, layer, head)` is called before each solve. A solve that does not converge is yielded with its status, never
    dropped. `shares` is of all tokens of a text; the first record of each piece has its `words`, the others have None.
    """
    facts = run_facts(model, text, settings)
    for n in settings.lengths:
        here = settings.at(n, model.device)
        facts_here = facts | text.facts(model, n) | {"product_dtype": here.products}
        maps = {} if settings.kind else {
            layer: attention_maps(model, layer, n, settings.heads, text) for layer in settings.layers}
        for sample, piece in enumerate(text.pieces(model, n, settings.samples, settings.special_tokens)):
            moved = moved_tokens(piece, settings.tokens, model.device)
            words = piece.words
            for layer, head, f, x in _solves(model, text, settings, maps, piece):
                if step is not None:
                    step(n, layer, head)
                estimate = solve(f, x, here, moved)
                shares = None if isinstance(text, Normalised) else all_shares(estimate.shares)
                yield {
                    "model": model.name,
                    "layer": layer,
                    "head": head,
                    "map": settings.map,
                    "n": n,
                    "sample": sample,
                    **estimate.as_record(),
                    "width": estimate.width,
                    **facts_here,
                    "top_tokens": top_tokens(estimate.shares, piece.words.__getitem__),
                    "shares": shares,
                    "words": None if shares is None else words,
                }
                words = None
                del estimate, f, x  # the next tokens may need the room


def solve(f: Any, x: torch.Tensor, settings: Settings, moved: torch.Tensor | None = None) -> Estimate:
    """One estimate, as the settings want it."""
    return local_lipschitz(
        f,
        x,
        tokens=moved,
        tol=settings.tol,
        strict=False,
        confidence=settings.confidence,
        stop=settings.stop,
        max_steps=settings.max_steps,
        max_memory=solver_limit(x.device, settings.max_memory),
        products=settings.product_dtype,
        seed=settings.seed,
    )


def _solves(model: Model | AttentionFile, text: Inputs, settings: Settings, maps: dict, piece: Any) -> Iterator[tuple]:
    """(layer, head, map, tokens) of one piece, made when they are asked for."""
    if settings.kind is not None:
        for layer in settings.layers:
            at = model.map_at(piece, layer, settings.kind)
            yield layer, None, at.f, at.x
        return
    together = {} if isinstance(text, Normalised) else text.tokens(model, piece, settings.layers)
    for layer in settings.layers:
        x = together[layer] if layer in together else text.tokens(model, piece, [layer])[layer]
        for head, f in maps[layer]:
            yield layer, head, f, x


def attention_maps(model: Model | AttentionFile, layer: int, n: int, heads: tuple[int, ...] | None,
                   text: Inputs | None = None) -> list[tuple[int | None, Any]]:
    """The layer's whole map as [(None, f)], or each of these heads as (head, f)."""
    # Some rotary models turn differently at different lengths.
    attention = model.attention(layer, n) if text is None else text.attention(model, layer, n)
    return [(None, attention)] if heads is None else [(head, attention.head(head)) for head in heads]


def moved_tokens(chunk: Any, tokens: str, device: Any) -> torch.Tensor | None:
    """Indices of the tokens that a perturbation may move; None moves all of them."""
    if tokens == "all":
        return None
    moved = ~torch.as_tensor(chunk.special, dtype=torch.bool)
    if tokens == "no-first":
        moved = torch.arange(len(chunk)) > 0
    indices = moved.nonzero().flatten()
    if not len(indices):
        raise InputError(
            f"expected a token left to perturb with the choice of tokens {tokens}, got a chunk of "
            f"{len(chunk)} tokens without one; ask for longer lengths, or let all of them move "
            "(--tokens all)"
        )
    return indices.to(device)


def run_facts(model: Model | AttentionFile, text: Inputs, settings: Settings) -> dict[str, Any]:
    """What every record of a run says, so that each can be read, and made again, alone."""
    return {
        "device": str(model.device),
        "model_dtype": str(model.dtype).removeprefix("torch."),
        "tokens": settings.tokens,
        "special_tokens": "add" if settings.special_tokens else "none",
        "tol": settings.tol,
        "product_dtype": settings.products,
        "weights": model.source.get("weights"),
        "source": dict(model.source),
        "stop": settings.stop,
        "max_steps": settings.max_steps,
        **text.run_facts(),
        **provenance(),
    }

"""The measuring loop: a model, a text and resolved settings in, one record per estimate out.

A record is a plain dictionary; what it holds is all that figures, tables and pages may know.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian, local_lipschitz
from howsmooth.spectral import MemoryPlan, plan, restrict
from howsmooth.spectral.memory import FEWEST_STORED
from howsmooth.studies.facts import provenance
from howsmooth.studies.places import all_shares, top_tokens
from howsmooth.texts import default_text

if TYPE_CHECKING:
    from howsmooth.models import Model

TOKEN_CHOICES = ("all", "no-special", "no-first")
KINDS = ("normed", "block", "layer")  # of maps beyond attention and its heads, see `Model.map`


@dataclass(frozen=True)
class Text:
    """A text with the name it goes by in records."""

    name: str
    content: str

    @classmethod
    def embedded(cls) -> Text:
        """The text that ships with the package."""
        return cls("embedded", default_text())

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Settings:
    """What to measure, resolved against one model and one text: nothing is left to be looked up.

    `heads` None measures whole layers, a tuple measures each of those heads alone.
    """

    layers: tuple[int, ...]
    lengths: tuple[int, ...]
    samples: int
    heads: tuple[int, ...] | None = None
    kind: str | None = None  # "normed", "block" or "layer" in place of attention
    tokens: str = "all"
    special_tokens: bool = True
    tol: float = 1e-3
    confidence: float = 0.999
    max_memory: int | None = None
    products: str | None = None  # the dtype of products, see `local_lipschitz`
    seed: int = 0

    @property
    def map(self) -> str:
        return self.kind or ("attention" if self.heads is None else "head")

    @property
    def estimates(self) -> int:
        """How many records `measure` will yield."""
        heads = 1 if self.heads is None else len(self.heads)
        return len(self.lengths) * self.samples * len(self.layers) * heads


def resolve(
    model: Model,
    text: Text,
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
    seed: int = 0,
) -> Settings:
    """Settings checked against the model and the text, so that nothing fails halfway through."""
    if tokens not in TOKEN_CHOICES:
        raise InputError(f"expected tokens to be one of {', '.join(TOKEN_CHOICES)}, got {tokens!r}")
    if kind is not None and (kind not in KINDS or heads is not None or products is not None):
        raise InputError(f"expected kind to be one of {', '.join(KINDS)}, without heads or products, got {kind!r}")
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
        seed=seed,
    )
    _check_lengths(model, text, settings)
    return settings


def chosen(wanted: tuple[int, ...] | str, available: int, what: str) -> tuple[int, ...]:
    """Indices below `available`, each once; "all" is all of them."""
    if isinstance(wanted, str) and wanted == "all":
        return tuple(range(available))
    wanted = tuple(operator.index(index) for index in wanted)  # records hold Python's own numbers
    unknown = [index for index in wanted if not 0 <= index < available]
    if unknown or not wanted:
        raise InputError(
            f"expected {what} between 0 and {available - 1}, got {unknown[0] if unknown else 'none'}; "
            "choose among them or say all"
        )
    return tuple(dict.fromkeys(wanted))


def _check_lengths(model: Model, text: Text, settings: Settings) -> None:
    if not settings.lengths or min(settings.lengths) < 1:
        raise InputError(f"expected lengths of at least 1 token, got {min(settings.lengths, default='none')}")
    longest = max(settings.lengths)
    if longest > model.positions:
        raise InputError(
            f"expected lengths of at most {model.positions} tokens, the positions of {model.name}, "
            f"got {longest}; ask for shorter lengths"
        )
    if not text.content.strip():
        raise InputError(
            f"expected some text, got nothing but white space in {text.name}; give a longer text"
        )
    # Too few tokens for the longest length, no room for words in the shortest: the cutting refuses both.
    for n in {min(settings.lengths), longest}:
        chunk, *_ = model.chunks(text.content, n, settings.samples, special_tokens=settings.special_tokens)
        moved_tokens(chunk, settings.tokens, model.device)


def memory_plan(model: Model, text: Text, settings: Settings) -> MemoryPlan:
    """What the largest solve will need, refused here and now if `max_memory` cannot hold it.

    All layers of a model have one shape, so the first layer at the longest length stands for them.
    """
    n, layer = max(settings.lengths), settings.layers[0]
    chunk = model.chunks(text.content, n, settings.samples, special_tokens=settings.special_tokens)[0]
    (_, attention), *_ = attention_maps(model, layer, n, settings.heads)
    derivative = jacobian(attention, model.activations(chunk, [layer])[layer])
    moved = moved_tokens(chunk, settings.tokens, model.device)
    if moved is not None:
        width = derivative.shape[1] // n
        columns = (moved[:, None] * width + torch.arange(width, device=moved.device)).flatten()
        derivative = restrict(derivative, cols=columns)
    accuracy = {"tol": settings.tol, "confidence": settings.confidence}
    try:
        return plan(derivative, settings.max_memory, **accuracy)
    except InputError:
        if settings.max_memory is None:
            raise
        # The solver speaks of vectors in bytes; here it is known what was asked for.
        least = replace(plan(derivative, **accuracy), stored=FEWEST_STORED).total / 2**20
        raise InputError(
            f"expected max_memory of at least {math.ceil(10 * least) / 10:.1f} MiB for n = {n}, "
            f"got {round(settings.max_memory / 2**20, 3):g} MiB; allow more memory (a larger --max-memory) "
            "or ask for shorter lengths (--lengths)"
        ) from None


def measure(
    model: Model,
    text: Text,
    settings: Settings,
    *,
    step: Callable[[int, int, int | None], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head), each as soon as it is computed.

    One forward pass per chunk of text gives the tokens entering all the layers. `step(n, layer, head)` is
    called before each solve. A solve that does not converge is yielded with its status, never dropped.
    `shares` is of all tokens; the first record of each chunk has its `words`, the others have None there.
    """
    facts = run_facts(model, text, settings)
    for n in settings.lengths:
        maps = {layer: attention_maps(model, layer, n, settings.heads) for layer in settings.layers
                if settings.kind is None}
        chunks = model.chunks(text.content, n, settings.samples, special_tokens=settings.special_tokens)
        for sample, chunk in enumerate(chunks):
            moved = moved_tokens(chunk, settings.tokens, model.device)
            activations = {} if settings.kind else model.activations(chunk, settings.layers)
            words = chunk.words
            for layer in settings.layers:
                if settings.kind is None:
                    solves = [(head, f, activations[layer]) for head, f in maps[layer]]
                else:
                    at = model.map_at(chunk, layer, settings.kind)
                    solves = [(None, at.f, at.x)]
                for head, f, x in solves:
                    if step is not None:
                        step(n, layer, head)
                    estimate = local_lipschitz(
                        f,
                        x,
                        tokens=moved,
                        tol=settings.tol,
                        strict=False,
                        confidence=settings.confidence,
                        max_memory=settings.max_memory,
                        products=None if settings.products is None else getattr(torch, settings.products),
                        seed=settings.seed,
                    )
                    shares = all_shares(estimate.shares)
                    yield {
                        "model": model.name,
                        "layer": layer,
                        "head": head,
                        "map": settings.map,
                        "n": n,
                        "sample": sample,
                        **estimate.as_record(),
                        **facts,
                        "top_tokens": top_tokens(estimate.shares, chunk.words.__getitem__),
                        "shares": shares,
                        "words": None if shares is None else words,
                    }
                    words = None


def attention_maps(model: Model, layer: int, n: int, heads: tuple[int, ...] | None) -> list[tuple[int | None, Any]]:
    """The layer's whole map as [(None, f)], or each of these heads as (head, f)."""
    attention = model.attention(layer, n)  # some rotary models turn differently at different lengths
    return [(None, attention)] if heads is None else [(head, attention.head(head)) for head in heads]


def moved_tokens(chunk: Any, tokens: str, device: Any) -> torch.Tensor | None:
    """Indices of the tokens that a perturbation may move; None moves all of them."""
    if tokens == "all":
        return None
    moved = ~torch.as_tensor(chunk.special, dtype=torch.bool)
    if tokens == "no-first":
        moved = torch.arange(len(chunk.ids)) > 0
    indices = moved.nonzero().flatten()
    if not len(indices):
        raise InputError(
            f"expected a token left to perturb with the choice of tokens {tokens}, got a chunk of "
            f"{len(chunk.ids)} tokens without one; ask for longer lengths, or let all of them move "
            "(--tokens all)"
        )
    return indices.to(device)


def run_facts(model: Model, text: Text, settings: Settings) -> dict[str, Any]:
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
        "text": text.name,
        "text_sha256": text.sha256,
        **provenance(),
    }

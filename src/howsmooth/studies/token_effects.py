"""Effects of single tokens: one token or each that is perturbed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz import token_gains
from howsmooth.questions.inputs import chosen_layers, run_fields
from howsmooth.questions.quantities import all_shares, estimate_at
from howsmooth.questions.spec import ModelSpec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.texts.cutting import TokenChunk


def move_one_token(model: Model, corpus: Corpus, spec: ModelSpec, position: int) -> dict[str, Any]:
    """Measure ‖J[:, j]‖₂, the largest change of the output per unit of change in token j alone.

    `move_each_token` does this for all tokens at once.

    Args:
        model: The model.
        corpus: The text.
        spec: Its first layer and first length are measured.
        position: Position j of the token.

    Returns:
        The record. Its `response_shares` are the shares of the output tokens in the squared change; they add up to 1.

    Raises:
        InputError: There is no token at this position.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> record = move_one_token(model, text, spec_of({"layers": [0], "lengths": [8]}), position=2)
        >>> record["status"], len(record["response_shares"])
        ('converged', 8)
    """
    n = spec.lengths[0]
    if not 0 <= position < n:
        raise InputError(f"expected a token between 0 and {n - 1}, got {position}; choose one of the text")
    chunk, f, x = _first_map(model, corpus, spec)
    estimate = estimate_at(f, x, tokens=[position], solver=spec.spectral_solver, strict=False)
    return {
        **_map_fields(model, corpus, spec),
        "position": position,
        "token": chunk.words[position],
        **estimate.as_record(),
        "response_shares": all_shares(estimate.response.double().square().sum(-1)),
        "words": list(chunk.words),
    }


def move_each_token(model: Model, corpus: Corpus, spec: ModelSpec, *, tol: float = 1e-2) -> dict[str, Any]:
    """Measure ‖J[:, j]‖₂ for every token j: the constant of the map when only that token moves.

    Args:
        model: The model.
        corpus: The text.
        spec: Its first layer and first length are measured.
        tol: Relative width of each interval.

    Returns:
        The record. `gains`, `lower` and `upper` have one number for each token; with probability `confidence` all
        intervals hold. `status` is that of the first token that did not converge, or "converged".

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> record = move_each_token(model, text, spec_of({"layers": [0], "lengths": [8]}))
        >>> record["status"], len(record["gains"])
        ('converged', 8)
    """
    chunk, f, x = _first_map(model, corpus, spec)
    found = token_gains(f, x, solver=spec.spectral_solver, tol=tol, strict=False)
    return {
        **_map_fields(model, corpus, spec),
        "tol": tol,
        "gains": found.value.tolist(),
        "lower": found.lower.tolist(),
        "upper": found.upper.tolist(),
        "confidence": found.confidence,
        "status": next((status for status in found.status if status != "converged"), "converged"),
        "words": list(chunk.words),
    }


def moves_tokens_in_one_pass(model: Model, spec: ModelSpec) -> bool:
    """Return whether `move_each_token` takes little longer than one solve.

    It does for attention whose weights are known, where a product uses that only one token moves. For other maps each
    product is one with all of the derivative: at 64 tokens this takes twenty to fifty times as long.
    """
    return spec.is_attention and isinstance(
        model.attention(chosen_layers(model, spec)[0], spec.lengths[0]), SelfAttention
    )


def _first_map(model: Model, corpus: Corpus, spec: ModelSpec) -> tuple[TokenChunk, Any, Tensor]:
    """Return the first chunk of a spec, and the map of its first layer with the tokens that enter it."""
    n, layer = spec.lengths[0], chosen_layers(model, spec)[0]
    chunk, *_ = model.chunks(corpus, n, 1, special_tokens=spec.adds_special_tokens)
    if spec.is_attention:
        return chunk, model.attention(layer, n), model.activations(chunk, [layer])[layer]
    at = model.map_at(chunk, layer, spec.map_name)
    return chunk, at.f, at.x


def _map_fields(model: Model, corpus: Corpus, spec: ModelSpec) -> dict[str, Any]:
    return {
        "model": model.name,
        "layer": chosen_layers(model, spec)[0],
        "head": None,
        "map": spec.map_name,
        "n": spec.lengths[0],
        **run_fields(model, corpus, spec),
    }

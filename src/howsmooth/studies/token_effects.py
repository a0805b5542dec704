"""Effects of single tokens: one token or each that is perturbed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.gains import token_gains
from howsmooth.questions.inputs import chosen_layers
from howsmooth.questions.quantities import all_shares, estimate_at
from howsmooth.questions.spec import ModelSpec
from howsmooth.questions.work import Work
from howsmooth.studies.plan import prepare_model
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models.model import Model


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
    f, x, fields = _first_map(model, corpus, spec)
    estimate = estimate_at(f, x, tokens=[position], solver=spec.spectral_solver, strict=False)
    return {
        **fields,
        "position": position,
        "token": fields["words"][position],
        **estimate.as_record(),
        "response_shares": all_shares(estimate.response.double().square().sum(-1)),
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
    f, x, fields = _first_map(model, corpus, spec)
    found = token_gains(f, x, solver=spec.spectral_solver, tol=tol, strict=False)
    return {
        **fields,
        "tol": tol,
        "gains": found.value.tolist(),
        "lower": found.lower.tolist(),
        "upper": found.upper.tolist(),
        "confidence": found.confidence,
        "status": next((status for status in found.status if status != "converged"), "converged"),
    }


def moves_tokens_in_one_pass(model: Model, spec: ModelSpec) -> bool:
    """Return whether `move_each_token` takes little longer than one solve.

    It does for attention whose weights are known, where a product uses that only one token moves. For other maps each
    product is one with all of the derivative: at 64 tokens this takes twenty to fifty times as long.
    """
    return spec.is_attention and isinstance(
        model.attention(chosen_layers(model, spec)[0], spec.lengths[0]), SelfAttention
    )


def _first_map(model: Model, corpus: Corpus, spec: ModelSpec) -> tuple[Any, Tensor, dict[str, Any]]:
    """Return the map of the first layer of a spec, the tokens of the first chunk that enter it, and fields of both."""
    first = {"layers": chosen_layers(model, spec)[:1], "lengths": spec.lengths[:1], "samples": 1}
    work = Work(next(prepare_model(spec.model_copy(update=first), model, corpus).bundles()), model)
    at = {**work.bundle.first, "head": None}
    f, x = work.attention_and_tokens(at) if spec.is_attention else work.map_and_tokens(at)
    return f, x, {**work.fields, **work.sample_fields(at), "map": spec.map_name, "words": work.words(at["sample"])}

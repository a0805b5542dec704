"""From the last hidden state to the next token: the language head that belongs to a model.

A `Model` is the stack of layers alone. The head is its family's own: the causal language model of transformers, with
the layers replaced by hidden states that are given. So whatever a family does there (a bias, a cap, a scale) is done.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from howsmooth.errors import InputError
from howsmooth.models.calls import first
from howsmooth.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from howsmooth.models.model import Model


class _Given(torch.nn.Module):
    """Stands where the layers were: hands on the hidden states that come in as embeddings."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)


class LanguageHead(torch.nn.Module):
    """Hidden states (…, d) ↦ logits (…, vocabulary), with the model's own weights, shared.

    Differentiable in the hidden states: `model.language_head(at.f(x))` for `at = model.map_at(chunk, kind="model")`.
    """

    def __init__(self, whole: PreTrainedModel):
        super().__init__()
        self.whole = whole

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        logits = self.whole(inputs_embeds=rows, use_cache=False).logits
        return logits.reshape(*hidden.shape[:-1], logits.shape[-1])


def language_head(model: Model) -> LanguageHead:
    """Return the head of a model that predicts the next token; refused where there is none, or nothing is "next"."""
    network = model.network
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(network.config), None) if model.modality == "text" else None
    if not isinstance(kind, type) or not isinstance(network, PreTrainedModel) or model._scope:
        raise _refusal(model, "its family has none")
    with torch.device("meta"), quiet_transformers():
        whole = kind(copy.deepcopy(network.config))
    if type(whole.base_model) is not type(network):
        raise _refusal(model, "its layers are a part of a larger model")
    setattr(whole, whole.base_model_prefix, _Given())
    weights = _weights(model, whole.state_dict())
    whole.load_state_dict(weights, strict=True, assign=True)
    _refuse_a_reader_of_both_sides(model)
    return LanguageHead(whole.eval().requires_grad_(False))


def _weights(model: Model, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The head's weights: the embedding's where the two are tied, else as the checkpoint has them."""
    embedding = model.network.get_input_embeddings().weight.detach()
    tied = model.network.config.tie_word_embeddings
    if tied and len(wanted) == 1 and next(iter(wanted.values())).shape == embedding.shape:
        return {name: embedding for name in wanted}
    found = model._read_head()
    missing = sorted(name for name in wanted if found.get(name) is None)
    if missing:
        raise _refusal(model, f"no weights for {missing[0]} came with it")
    return {name: found[name].detach().to(embedding) for name in wanted}


@torch.no_grad()
def _refuse_a_reader_of_both_sides(model: Model) -> None:
    """The next token is a question only to a model in which no token sees a later one."""
    pair = torch.tensor([[1, 2], [1, 3]], device=model.device)
    before, after = first(model.twin(input_ids=pair))[:, 0]
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-5):
        raise _refusal(model, "it reads its text in both directions")


def _refusal(model: Model, why: str) -> InputError:
    return InputError(f"expected a model with a language head for next-token objectives, got {model.name!r}, a "
                      f"{model.family} ({why}); use a causal language model such as smollm2, or another objective")

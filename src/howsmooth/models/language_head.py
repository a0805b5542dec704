"""The language head of a model: from last hidden states to scores of the next token, by the family's own code.

A model for measuring is loaded without it. Here the class that has one is asked for again, and its stack of layers is
replaced by a module that hands over given hidden states: soft caps and scales of logits stay what the family does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from howsmooth.errors import InputError
from howsmooth.models.quiet import quiet_transformers

MEANT = "expected a model with a language head (a decoder such as smollm2) to ask for the next token"


class _Given(torch.nn.Module):
    """Stands where the layers were, and returns the hidden states that it was given."""

    hidden: Tensor

    def forward(self, *_args, **_kwargs) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.hidden)


class LanguageHead(torch.nn.Module):
    """h (n, d) ↦ scores of the next token (n, vocabulary), before softmax."""

    def __init__(self, whole: PreTrainedModel):
        super().__init__()
        self.given = _Given()
        self.whole = copy.copy(whole)  # its own list of parts, the same weights
        self.whole._modules = {**whole._modules, whole.base_model_prefix: self.given}

    def forward(self, hidden: Tensor) -> Tensor:
        self.given.hidden = hidden.unsqueeze(0)
        try:
            return self.whole(input_ids=torch.zeros(1, hidden.shape[-2], dtype=torch.long, device=hidden.device),
                              use_cache=False).logits.squeeze(0)
        finally:
            del self.given.hidden


def read_head(network: PreTrainedModel, name: str, whole: PreTrainedModel | None,
              read: Callable[[], tuple[PreTrainedModel, dict]] | None) -> LanguageHead:
    """The head that belongs to a network without one.

    whole: the model that the network was taken from, where that is in memory. read: reads it anew from its files, with
    the loading report. Without either, only a head that shares the embedding's weights is known.
    """
    if network.config.is_encoder_decoder:
        raise InputError(f"{MEANT}, got {name!r}, an encoder-decoder; measure its hidden states instead")
    if whole is None or whole.get_output_embeddings() is None:
        whole = _read(network, name, read)
    return LanguageHead(whole.to(network.device, network.dtype).eval().requires_grad_(False)
                        if read is not None else whole)


def _read(network: PreTrainedModel, name: str, read: Callable | None) -> PreTrainedModel:
    kind, config = type(network.config), network.config
    refusal = InputError(f"{MEANT}, got {name!r}, a {config.model_type} without one")
    encoder = kind in AutoModelForMaskedLM._model_mapping and not getattr(config, "is_decoder", False)
    if encoder or kind not in AutoModelForCausalLM._model_mapping:
        raise refusal
    with quiet_transformers():
        if read is not None:
            try:
                whole, report = read()
            except (ValueError, OSError, RuntimeError) as error:
                raise refusal from error
            if report["missing_keys"]:  # a head of random numbers
                raise refusal
        elif config.tie_word_embeddings:
            with torch.device("meta"):
                whole = AutoModelForCausalLM.from_config(copy.deepcopy(config))
            whole.set_input_embeddings(network.get_input_embeddings())
            whole.tie_weights()
        else:
            raise refusal
    if whole.get_output_embeddings() is None:
        raise refusal
    return whole


def refuse_head() -> LanguageHead:
    raise InputError(f"{MEANT}, got a model that was not made by howsmooth.load")

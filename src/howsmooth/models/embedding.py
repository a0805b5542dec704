"""The two ends of a text model: the embedding of its tokens, and the language head on its last hidden state.

A `Model` is the stack of layers alone. The head is its family's own: the causal language model of transformers, with
the layers replaced by hidden states that are given. So whatever a family does there (a bias, a cap, a scale) is done.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from howsmooth.errors import InputError
from howsmooth.models.anatomy import first, hidden_states
from howsmooth.models.network import quiet_transformers

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from howsmooth.models.model import Model


class _Enough(Exception):
    """What was wanted of a forward pass is there."""


class TokenEmbedding:
    """The embedding of a text model.

    matrix (vocabulary, d): what each token becomes before positions are added. `hidden` and `attention` run the network
    from such vectors on and are differentiable in them; `entering` is what comes to layer 0, positions included.
    """

    def __init__(self, model: Model):
        if model.modality != "text" or model._scope:
            raise InputError(
                f"expected a text model with one stack of layers, got {model.name!r}; attack its feature space instead"
            )
        self.model, self.network = model, model.network
        self._sites: dict = {}
        with torch.no_grad():
            numbers = torch.arange(model.network.config.vocab_size, device=model.device)
            self.matrix: Float[Tensor, "v d"] = model.network.get_input_embeddings()(numbers).detach()

    def __len__(self) -> int:
        return len(self.matrix)

    def hidden(self, vectors: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The last hidden states."""
        return first(self.network(inputs_embeds=vectors, **self._no_cache), self.network)

    def attention(self, vectors: Float[Tensor, "b n d"], layer: int) -> Float[Tensor, "b n d"]:
        """What attention with its output projection puts out at a layer; the layers above are not run."""
        return self._run_until(
            self._site(self.model._layer(layer)).projection.register_forward_hook,
            lambda _module, _args, output: output,
            vectors,
        )

    def entering(self, vectors: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """What enters layer 0: the vectors with whatever the family does to them, place by place; no layer is run."""
        site = self._site(0)
        return self._run_until(site.layer.module.register_forward_pre_hook, hidden_states, vectors, with_kwargs=True)

    def _run_until(self, register, read, vectors: Tensor, **options) -> Tensor:
        seen: list[Tensor] = []

        def keep(*call):
            seen.append(read(*call))
            raise _Enough

        handle = register(keep, **options)
        try:
            self.model.twin(inputs_embeds=vectors)
        except _Enough:
            pass
        finally:
            handle.remove()
        return seen[0]

    @cached_property
    def additive(self) -> bool:
        """Whether what enters layer 0 is the embedding plus something that depends on the position alone."""
        ids = torch.arange(8, device=self.model.device).view(2, 4) + 1
        with torch.no_grad():
            rest = self.entering(self.matrix[ids]) - self.matrix[ids]
        return torch.allclose(rest[0], rest[1], rtol=1e-5, atol=1e-5 * float(self.matrix.abs().max()))

    def read(self, vectors: Float[Tensor, "1 n d"]) -> tuple[Float[Tensor, "n d"], Prefix | None]:
        """(last hidden states, keys and values) of one text; None for the latter where the family keeps no such cache.

        The hidden states are differentiable in the vectors, what is kept is not.
        """
        if not getattr(self.network.config, "use_cache", False):
            return self.hidden(vectors)[0], None
        made = self.network(inputs_embeds=vectors, use_cache=True)
        hidden = first(made, self.network)[0]
        cache = getattr(made, "past_key_values", None)
        layers = getattr(cache, "layers", ())
        if not isinstance(cache, DynamicCache) or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
            return hidden, None
        return hidden, Prefix(self.network, [(layer.keys.detach(), layer.values.detach()) for layer in layers])

    @property
    def _no_cache(self) -> dict:
        return {"use_cache": False} if hasattr(self.network.config, "use_cache") else {}

    def _site(self, layer: int):
        if layer not in self._sites:
            some = {"input_ids": torch.tensor([[1, 2, 3]], device=self.model.device)}
            self._sites[layer] = self.model._sites(some, [layer])[layer]
        return self._sites[layer]


class Prefix:
    """The keys and values of one text under a causal model: texts that share its beginning are read from there on."""

    def __init__(self, network, layers: list[tuple[Tensor, Tensor]]):
        self.network, self.layers = network, layers

    @torch.no_grad()
    def last_hidden(self, ids: Int[Tensor, "b n"], shared: int) -> Float[Tensor, "b d"]:
        """The hidden state at the last token of texts whose first `shared` tokens are this text's."""
        if not shared:
            return first(self.network(input_ids=ids, use_cache=False), self.network)[:, -1]
        cache = DynamicCache()
        for number, (keys, values) in enumerate(self.layers):
            cache.update(*(t[:, :, :shared].expand(len(ids), -1, -1, -1) for t in (keys, values)), number)
        made = self.network(input_ids=ids[:, shared:], past_key_values=cache, use_cache=True)
        return first(made, self.network)[:, -1]


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
        return dict.fromkeys(wanted, embedding)
    found = model._read_head()
    missing = sorted(name for name in wanted if found.get(name) is None)
    if missing:
        raise _refusal(model, f"no weights for {missing[0]} came with it")
    return {name: found[name].detach().to(embedding) for name in wanted}


@torch.no_grad()
def _refuse_a_reader_of_both_sides(model: Model) -> None:
    """The next token is a question only to a model in which no token sees a later one."""
    pair = torch.tensor([[1, 2], [1, 3]], device=model.device)
    before, after = first(model.twin(input_ids=pair), model.twin)[:, 0]
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-5):
        raise _refusal(model, "it reads its text in both directions")


def _refusal(model: Model, why: str) -> InputError:
    return InputError(
        f"expected a model with a language head for next-token objectives, got {model.name!r}, a "
        f"{model.family} ({why}); use a causal language model such as smollm2, or another objective"
    )

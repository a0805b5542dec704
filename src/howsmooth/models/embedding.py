"""The token embedding of a text model, and the language head on its last hidden state.

The language head is that of the causal language model in transformers, with its layers replaced by given hidden states:
everything that a family does in the head (a bias, a soft cap, a scale) is included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from howsmooth.errors import InputError
from howsmooth.models.calls import first_tensor, hidden_states
from howsmooth.models.network import quiet_transformers
from howsmooth.models.sites import StopForward

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from howsmooth.models.model import Model
    from howsmooth.models.parts import Site


class TokenEmbedding:
    """The embedding of a text model, and the network as a differentiable function of embedding vectors.

    Attributes:
        model: The model.
        network: Its transformers network.
        matrix: The embedding of each token before positions are added, (vocabulary, d).
    """

    def __init__(self, model: Model) -> None:
        """Take a text model with one stack of layers."""
        if model.modality != "text" or model._scope:
            raise InputError(
                f"expected a text model with one stack of layers, got {model.name!r}; attack its feature space instead"
            )
        self.model, self.network = model, model.network
        self._sites: dict[int, Site] = {}
        with torch.no_grad():
            numbers = torch.arange(model.network.config.vocab_size, device=model.device)
            self.matrix: Float[Tensor, "v d"] = model.network.get_input_embeddings()(numbers).detach()

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return len(self.matrix)

    def hidden(self, vectors: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return the last hidden states of embedding vectors."""
        return first_tensor(self.network(inputs_embeds=vectors, **self._cache_disabled), self.network)

    def attention(self, vectors: Float[Tensor, "b n d"], layer: int) -> Float[Tensor, "b n d"]:
        """Return the output of attention, with its output projection, at a layer; later layers are not run."""
        site = self._site(self.model.check_layer(layer))
        return self._run_until(
            site.projection.register_forward_hook,
            lambda _module, _args, output: output,
            vectors,
            skipped=site.require_softmax().projection_calls,
        )

    def first_layer_input(self, vectors: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return the input of layer 0: the vectors with positions, norms and scales applied; no layer is run."""
        site = self._site(0)
        register = site.layer.module.register_forward_pre_hook
        return self._run_until(register, hidden_states, vectors, with_kwargs=True, prepend=True)

    def _run_until(
        self,
        register: Callable[..., Any],
        read: Callable[..., Tensor],
        vectors: Tensor,
        skipped: int = 0,
        **options: Any,
    ) -> Tensor:
        """Run the network until a hook is called, and return what `read` takes from the hook's arguments.

        The first `skipped` calls are those of other layers that share the module.
        """
        captured: list[Tensor] = []

        def capture(*call: Any) -> None:
            captured.append(read(*call))
            if len(captured) > skipped:
                raise StopForward

        handle = register(capture, **options)
        try:
            self.model.instrumented(inputs_embeds=vectors)
        except StopForward:
            pass
        finally:
            handle.remove()
        return captured[skipped]

    @cached_property
    def additive(self) -> bool:
        """Whether the input of layer 0 is the embedding plus a term that depends only on the position."""
        ids = torch.arange(8, device=self.model.device).view(2, 4) + 1
        with torch.no_grad():
            rest = self.first_layer_input(self.matrix[ids]) - self.matrix[ids]
        return torch.allclose(rest[0], rest[1], rtol=1e-5, atol=1e-5 * float(self.matrix.abs().max()))

    def hidden_and_prefix(self, vectors: Float[Tensor, "1 n d"]) -> tuple[Float[Tensor, "n d"], PrefixCache | None]:
        """Return the last hidden states of one text, and its keys and values; None if the family has no such cache.

        The hidden states are differentiable in the vectors; keys and values are detached.
        """
        if not getattr(self.network.config, "use_cache", False):
            return self.hidden(vectors)[0], None
        output = self.network(inputs_embeds=vectors, use_cache=True)
        hidden = first_tensor(output, self.network)[0]
        cache = getattr(output, "past_key_values", None)
        layers = getattr(cache, "layers", ())
        if not isinstance(cache, DynamicCache) or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
            return hidden, None
        return hidden, PrefixCache(self.network, [(layer.keys.detach(), layer.values.detach()) for layer in layers])

    @property
    def _cache_disabled(self) -> dict[str, bool]:
        """Keyword arguments that disable the key-value cache, for networks that have one."""
        return {"use_cache": False} if hasattr(self.network.config, "use_cache") else {}

    def _site(self, layer: int) -> Site:
        if layer not in self._sites:
            some = {"input_ids": torch.tensor([[1, 2, 3]], device=self.model.device)}
            self._sites[layer] = self.model._sites(some, [layer])[layer]
        return self._sites[layer]


class PrefixCache:
    """The keys and values of one text in a causal model, for texts that share its beginning.

    Attributes:
        network: The transformers network.
        layers: Keys and values of each layer.
    """

    def __init__(self, network: PreTrainedModel, layers: list[tuple[Tensor, Tensor]]) -> None:
        """Take the network, and keys and values of each layer."""
        self.network, self.layers = network, layers

    @torch.no_grad()
    def last_hidden(self, ids: Int[Tensor, "b n"], shared: int) -> Float[Tensor, "b d"]:
        """Return the hidden state of the last token, for texts whose first `shared` tokens are those of this text."""
        if not shared:
            return first_tensor(self.network(input_ids=ids, use_cache=False), self.network)[:, -1]
        cache = DynamicCache()
        for number, (keys, values) in enumerate(self.layers):
            cache.update(*(t[:, :, :shared].expand(len(ids), -1, -1, -1) for t in (keys, values)), number)
        output = self.network(input_ids=ids[:, shared:], past_key_values=cache, use_cache=True)
        return first_tensor(output, self.network)[:, -1]


class _Passthrough(torch.nn.Module):
    """Replaces the layers of a language model: returns the embeddings it is given as hidden states."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)


class LanguageHead(torch.nn.Module):
    """The language head of a model: hidden states (…, d) ↦ logits (…, vocabulary).

    It shares the model's weights and is differentiable in the hidden states. With
    `at = model.map_at(chunk, map="model")`, `model.language_head(at.f(at.x))` are the logits of a chunk.
    """

    def __init__(self, whole: PreTrainedModel) -> None:
        """Take a causal language model whose layers return their input."""
        super().__init__()
        self.whole = whole

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        logits = self.whole(inputs_embeds=rows, use_cache=False).logits
        return logits.reshape(*hidden.shape[:-1], logits.shape[-1])


def language_head(model: Model) -> LanguageHead:
    """Return the language head of a model.

    Raises:
        InputError: The family has no language head, its weights are missing, or the model is not causal.
    """
    network = model.network
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(network.config), None) if model.modality == "text" else None
    if not isinstance(kind, type) or not isinstance(network, PreTrainedModel) or model._scope:
        raise _refusal(model, "its family has none")
    with torch.device("meta"), quiet_transformers():
        whole = kind(copy.deepcopy(network.config))
    if type(whole.base_model) is not type(network):
        raise _refusal(model, "its layers are a part of a larger model")
    setattr(whole, whole.base_model_prefix, _Passthrough())
    weights = _weights(model, whole.state_dict())
    whole.load_state_dict(weights, strict=True, assign=True)
    _check_causal(model)
    return LanguageHead(whole.eval().requires_grad_(False))


def _weights(model: Model, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the head: those of the embedding if the two are tied, else those of the checkpoint."""
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
def _check_causal(model: Model) -> None:
    """Raise InputError if a token depends on later tokens: such a model does not predict the next token."""
    pair = torch.tensor([[1, 2], [1, 3]], device=model.device)
    one, other = first_tensor(model.instrumented(input_ids=pair), model.instrumented)[:, 0]
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-5):
        raise _refusal(model, "it reads its text in both directions")


def _refusal(model: Model, why: str) -> InputError:
    return InputError(
        f"expected a model with a language head for next-token objectives, got {model.name!r}, a "
        f"{model.family} ({why}); use a causal language model such as smollm2, or another objective"
    )

"""A loaded model: its attention maps, and the tokens that enter them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from howsmooth.attention import Normalisation, SelfAttention
from howsmooth.errors import InputError
from howsmooth.models.tokens import TokenChunk, cut_chunks, special_frame, tokenize

if TYPE_CHECKING:
    from jaxtyping import Float


class _AllCaptured(Exception):
    """The deepest requested layer has been reached: the rest of the forward pass is not needed."""


class Model:
    """A transformer in evaluation mode, read layer by layer.

    name, family; layers, positions (greatest length), width, heads; dtype, device; network (the
    transformers module); tokenizer (None if there is none); source: where all of it came from, for records.
    """

    def __init__(self, network, adapter: ModuleType, *, name: str, tokenizer=None, no_tokenizer: str = "",
                 source: dict | None = None):
        config = network.config
        self.network = network
        self.name, self.family = name, config.model_type
        self.layers: int = config.num_hidden_layers
        self.positions: int = config.max_position_embeddings
        self.width: int = config.hidden_size
        self.heads: int = config.num_attention_heads
        self.dtype, self.device = network.dtype, network.device
        self.tokenizer = tokenizer
        self.source = dict(source or {})
        self._adapter = adapter
        self._no_tokenizer = no_tokenizer or "it was loaded without one"

    def __repr__(self) -> str:
        return (f"Model({self.name!r}, {self.family}, {self.layers} layers, d = {self.width}, "
                f"{self.heads} heads, {self.positions} positions, {self.dtype}, {self.device})")

    def attention(self, layer: int, n: int | None = None) -> SelfAttention:
        """Return the attention map of a layer: projections with biases, heads and output projection.

        `n` is the number of tokens it will be given. Only rotary models whose frequencies depend on
        the length need it; it is otherwise the model's positions.
        """
        layer = self._layer(layer)
        if n is not None and not 1 <= n <= self.positions:
            raise InputError(f"expected a length from 1 to {self.positions}, got n = {n!r}; choose another")
        with torch.no_grad():
            return self._adapter.self_attention(self.network, layer, n)

    def normalisation(self, layer: int) -> Normalisation:
        """Return the normalisation whose output enters attention at a layer: it decides where tokens can be."""
        layer = self._layer(layer)
        with torch.no_grad():
            norm = self._adapter.normalisation(self.network, layer)
            return replace(norm, gain=norm.gain.detach(), bias=None if norm.bias is None else norm.bias.detach())

    def tokenize(self, text: str) -> list[int]:
        """Return the token numbers of a text, without special tokens."""
        return tokenize(self._need_tokenizer(), text)

    def chunks(self, text: str, n: int, samples: int | None = None, special_tokens: bool = True
               ) -> list[TokenChunk]:
        """Cut a text into consecutive chunks of `n` tokens, the model's special tokens counted."""
        return cut_chunks(self._need_tokenizer(), text, n, samples, self.positions, special_tokens)

    def inputs(self, text: str, layer: int, n: int | None = None, special_tokens: bool = True
               ) -> Float[torch.Tensor, "n d"]:
        """Return the tokens entering attention at a layer (GPT-2, Llama: after the first norm).

        Without `n` the whole text is taken, cut at the model's positions with a warning.
        """
        layer = self._layer(layer)
        if n is None:
            before, after = special_frame(self._need_tokenizer()) if special_tokens else ([], [])
            n = len(self.tokenize(text)) + len(before) + len(after)
            if n > self.positions:
                warnings.warn(
                    f"the text has {n} tokens and {self.name} has {self.positions} positions: "
                    "the rest is cut off",
                    stacklevel=2,
                )
                n = self.positions
        chunk, = self.chunks(text, n, 1, special_tokens)
        return self.activations(chunk, [layer])[layer]

    def activations(self, tokens: TokenChunk | Sequence | torch.Tensor, layers: Iterable[int]
                    ) -> dict[int, torch.Tensor]:
        """Return what enters attention at each layer, from one forward pass.

        A chunk or n token numbers give (n, d) per layer; a list of chunks of one length, or (b, n)
        token numbers, give (b, n, d).
        """
        layers = sorted({self._layer(layer) for layer in layers})
        ids = self._ids(tokens)
        captured: dict[int, torch.Tensor] = {}
        if not layers:
            return captured

        def capture(layer: int):
            def hook(_module, args, kwargs):
                captured[layer] = args[0] if args else kwargs["hidden_states"]
                if layer == layers[-1]:
                    raise _AllCaptured
            return hook

        modules = self._adapter.attention_modules(self.network)
        handles = [modules[i].register_forward_pre_hook(capture(i), with_kwargs=True) for i in layers]
        batch = ids if ids.ndim == 2 else ids[None]
        try:
            with torch.no_grad():
                self.network(input_ids=batch, attention_mask=torch.ones_like(batch), use_cache=False)
        except _AllCaptured:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return {layer: x if ids.ndim == 2 else x[0] for layer, x in captured.items()}

    def _ids(self, tokens) -> torch.Tensor:
        """Return token numbers as (n,) or (b, n) on the model's device, checked."""
        if isinstance(tokens, TokenChunk):
            tokens = tokens.ids
        elif isinstance(tokens, (list, tuple)) and tokens and all(isinstance(t, TokenChunk) for t in tokens):
            lengths = sorted({len(chunk) for chunk in tokens})
            if len(lengths) > 1:
                raise InputError(f"expected chunks of one length, got {lengths}; pass them one by one")
            tokens = torch.stack([chunk.ids for chunk in tokens])
        try:
            ids = torch.as_tensor(tokens)
        except (TypeError, ValueError, RuntimeError) as error:
            kind = type(tokens).__name__
            raise InputError(
                f"expected token numbers or chunks, got {kind} ({error}); tokenize first"
            ) from error
        if ids.ndim not in (1, 2) or ids.numel() == 0 or ids.is_floating_point() or ids.is_complex():
            raise InputError(
                f"expected token numbers of shape (n,) or (b, n) with n >= 1, got shape {tuple(ids.shape)} "
                f"of {ids.dtype}; pass a TokenChunk or integers"
            )
        vocabulary = self.network.config.vocab_size
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise InputError(
                f"expected token numbers from 0 to {vocabulary - 1}, got {int(ids.min())} to "
                f"{int(ids.max())}; use the model's own tokenizer"
            )
        if ids.shape[-1] > self.positions:
            raise InputError(
                f"expected at most {self.positions} tokens (the model's positions), got {ids.shape[-1]}; "
                "cut them"
            )
        return ids.to(self.device, torch.long)

    def _layer(self, layer) -> int:
        """Return a layer's number, checked; NumPy's integers are integers too."""
        try:
            number = -1 if isinstance(layer, bool) else operator.index(layer)
        except TypeError:
            number = -1
        if not 0 <= number < self.layers:
            raise InputError(
                f"expected a layer from 0 to {self.layers - 1} of {self.name}, got {layer!r}; "
                "choose one of them"
            )
        return number

    def _need_tokenizer(self):
        if self.tokenizer is None:
            # Weights drawn at random know no vocabulary: the tokenizer that is always there will do.
            fitting = "minilm" if self.source.get("kind") == "random" else "NAME"
            raise InputError(
                f"expected a tokenizer for {self.name!r}, got none ({self._no_tokenizer}); name a folder or "
                f"a hub model that has one: --tokenizer {fitting} on the command line, "
                f"tokenizer={fitting!r} in load()"
            )
        return self.tokenizer

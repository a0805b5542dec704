"""`attn_implementation="howsmooth"` in transformers: `attend` as a model's attention, with its mask function.

transformers builds masks apart from attention. An attention registered alone gets no mask at all, and a
causal model silently becomes bidirectional; so the two are registered together. Plain patterns (causal,
bidirectional, sliding window, each with or without padding) travel as a 2D padding mask that carries its
`MaskPlan`, and nothing of size n × n is built. Every other pattern is spelt out as transformers' own
4D mask and given to `attend` as a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_bidirectional_overlay,
    sliding_window_overlay,
)

from howsmooth.attention import attend
from howsmooth.errors import InputError

NAME = "howsmooth"
# Arguments of other attention functions that change the result: to ignore one would be to lie.
_REFUSED = ("position_bias", "s_aux", "cache", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k")


@dataclass(frozen=True)
class MaskPlan:
    """A mask in a few numbers: `offset` is the position of the first query among the keys."""

    causal: bool
    window: int | None
    offset: int
    padded: bool


def register() -> None:
    """Make `attn_implementation="howsmooth"` available to every transformers model that allows a choice."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function=causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: object,
) -> torch.Tensor:
    """Return the padding mask (batch, keys) with its plan, or a 4D mask (batch, 1, queries, keys)."""
    pattern = _plain_pattern(mask_function)
    if pattern is None:
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, use_vmap=use_vmap, device=device,
        )
    causal, window = pattern
    if attention_mask is None:
        padding = torch.ones(1, 1, dtype=torch.bool, device=device).expand(batch_size, kv_length)
    else:
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        padding = padding[:, kv_offset : kv_offset + kv_length].view(batch_size, kv_length)
    offset, padded = int(q_offset) - int(kv_offset), attention_mask is not None
    padding.howsmooth_plan = MaskPlan(causal, window, offset, padded)
    return padding


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Run `attend` on query (b, h, n, k), key and value (b, hkv, m, ·); return (b, n, h, ·), no weights."""
    if dropout:
        raise InputError(
            f"expected no dropout in attention, got {dropout} (training mode); call model.eval(), or set the "
            "config's attention dropout to 0"
        )
    for name in _REFUSED:
        if others.get(name) is not None:
            raise InputError(
                f"expected an attention without {name}, got one in {type(module).__name__}; load this model "
                'with attn_implementation="eager"'
            )
    plan = getattr(attention_mask, "howsmooth_plan", None)
    if attention_mask is not None and attention_mask.ndim == 4:
        output = _attend_table(query, key, value, attention_mask, scale=scaling, softcap=softcap)
    elif attention_mask is not None and attention_mask.ndim != 2:
        raise InputError(
            f"expected a mask of shape (b, m) or (b, 1 or h, n, m), got {tuple(attention_mask.shape)}; "
            "reshape it"
        )
    elif plan is not None:
        output = attend(
            query, key, value, scale=scaling, softcap=softcap, causal=plan.causal, window=plan.window,
            offset=plan.offset, padding=attention_mask if plan.padded else None,
        )
    else:  # the module was called by hand, without the model's mask: it alone knows if it is causal
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        padding = None if attention_mask is None else attention_mask.bool()
        output = attend(
            query, key, value, scale=scaling, softcap=softcap, causal=causal, window=sliding_window,
            padding=padding,
        )
    return output.transpose(1, 2).contiguous(), None


def _attend_table(query, key, value, mask: torch.Tensor, *, scale, softcap) -> torch.Tensor:
    """Attend under a 4D mask, boolean (True is seen) or additive; each batch row has its own table."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf"))
    elif not mask.is_floating_point():
        raise InputError(
            f"expected a 4D mask that is boolean or additive (floating point), got {mask.dtype}; say which "
            "by mask.bool() or a float mask of 0 and -inf"
        )
    batch, n, m = query.shape[0], query.shape[-2], key.shape[-2]
    if mask.shape[0] not in (1, batch) or mask.shape[2] not in (1, n) or mask.shape[3] != m:
        raise InputError(
            f"expected a mask of shape ({batch}, 1 or heads, {n}, {m}), got {tuple(mask.shape)}; reshape it"
        )
    tables = mask.to(query.dtype).expand(batch, -1, n, m)
    rows = [
        attend(q, k, v, scale=scale, softcap=softcap, score_bias=bias)
        for q, k, v, bias in zip(query, key, value, tables, strict=True)
    ]
    return torch.stack(rows)


def _plain_pattern(mask_function) -> tuple[bool, int | None] | None:
    """Return (causal, window) of a pattern that `attend` knows by itself, None for any other function."""
    if mask_function is causal_mask_function:
        return True, None
    if mask_function is bidirectional_mask_function:
        return False, None
    # A window is a closure: and_masks(overlay(width), base). Equal code objects are the same function.
    if _code(mask_function) is not and_masks(causal_mask_function).__code__:
        return None
    parts = _captured(mask_function, "mask_functions")
    if len(parts) != 2:
        return None
    overlay, base = parts
    if base is causal_mask_function and _code(overlay) is sliding_window_overlay(1).__code__:
        return True, _captured(overlay, "sliding_window")
    two_sided = sliding_window_bidirectional_overlay(1).__code__
    if base is bidirectional_mask_function and _code(overlay) is two_sided:
        return False, _captured(overlay, "sliding_window") + 1  # theirs includes the distance itself
    return None


def _code(function):
    return getattr(function, "__code__", None)


def _captured(closure, name: str):
    return closure.__closure__[closure.__code__.co_freevars.index(name)].cell_contents

"""`attn_implementation="howsmooth"` in transformers: `attend` as a model's attention, with its mask function.

transformers builds masks separately from attention. An attention function registered without a mask function gets no
mask, and a causal model silently becomes bidirectional; so the two are registered together. Simple patterns (causal,
bidirectional, sliding window, each with or without padding) are passed as a 2D padding mask with a `MaskPattern`
attached, and nothing of size n × n is built. Every other pattern is passed as transformers' own 4D mask.

Under the name "howsmooth_tables" all patterns are 4D masks: some families read the mask themselves, to choose keys
(DeepSeek-V3.2, GLM-MoE-DSA) or to add to it (Doge).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
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

from howsmooth.attention.op import attend
from howsmooth.errors import InputError

NAME, NAME_WITH_TABLES = "howsmooth", "howsmooth_tables"
# Arguments of other attention functions that change the result: ignoring one would give a wrong result silently.
_UNSUPPORTED = ("cache", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k", "block_indices")

Change = Callable[
    [torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]
Observer = Callable[[torch.nn.Module, torch.Tensor], None]
Reader = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]], None]
MaskFunction = Callable[..., Any]

# Set inside the context managers below, read by every call of the attention function.
_OBSERVER: ContextVar[Observer | None] = ContextVar("howsmooth_observer", default=None)
_READER: ContextVar[Reader | None] = ContextVar("howsmooth_reader", default=None)
_ONLY_HEAD: ContextVar[int | None] = ContextVar("howsmooth_only_head", default=None)
_CHANGE: ContextVar[Change | None] = ContextVar("howsmooth_change_attention", default=None)
_EDIT: ContextVar[Callable[[torch.Tensor], torch.Tensor] | None] = ContextVar("howsmooth_edit", default=None)
_ATTENDING: ContextVar[bool] = ContextVar("howsmooth_attending", default=False)


@dataclass(frozen=True)
class MaskPattern:
    """A mask described by a few numbers, attached to a 2D padding mask.

    Attributes:
        causal: Whether a query sees no later keys.
        window: The width of a sliding window; None for no window.
        offset: The position of the first query among the keys.
        padded: Whether the padding mask hides any key.
    """

    causal: bool
    window: int | None
    offset: int
    padded: bool


def register() -> None:
    """Make `attn_implementation="howsmooth"` available to every transformers model that uses the attention registry.

    Example:
        >>> import howsmooth
        >>> from transformers import BertConfig, BertModel
        >>> howsmooth.register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> BertModel._from_config(config, attn_implementation="howsmooth").config._attn_implementation
        'howsmooth'
    """
    for name, mask in ((NAME, attention_mask), (NAME_WITH_TABLES, attention_table)):
        AttentionInterface.register(name, attention_forward)
        AttentionMaskInterface.register(name, mask)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def observe_attention(observer: Observer) -> AbstractContextManager[None]:
    """Call observer(module, output (b, n, h, k)) after every attention inside the context."""
    return _set(_OBSERVER, observer)


def read_attention(reader: Reader) -> AbstractContextManager[None]:
    """Call reader(module, q, k, v, options) with the arguments of `attend` before every attention in the context."""
    return _set(_READER, reader)


def restrict_to_head(head: int) -> AbstractContextManager[None]:
    """Compute one head only inside the context; the outputs of the other heads are zero."""
    return _set(_ONLY_HEAD, head)


def change_attention(change: Change) -> AbstractContextManager[None]:
    """Compute every attention in the context with change(module, q, k, v) in place of its q, k and v."""
    return _set(_CHANGE, change)


def detach_keys_and_values() -> AbstractContextManager[None]:
    """Detach keys and values inside the context: derivatives pass through the queries only."""
    return change_attention(lambda _module, q, k, v: (q, k.detach(), v.detach()))


def edit_heads(edit: Callable[[torch.Tensor], torch.Tensor]) -> AbstractContextManager[None]:
    """Replace the output (b, n, h, k) of every attention by edit(output) inside the context."""
    return _set(_EDIT, edit)


def is_attending() -> bool:
    """Return whether `attend` is running for a transformers module."""
    return _ATTENDING.get()


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: object,
) -> torch.Tensor:
    """Return a padding mask (batch, keys) with a `MaskPattern`, or a 4D mask (batch, 1, queries, keys)."""
    pattern = _simple_pattern(mask_function)
    if pattern is None:
        return attention_table(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device, use_vmap
        )
    causal, window = pattern
    if attention_mask is None:
        padding = torch.ones(1, 1, dtype=torch.bool, device=device).expand(batch_size, kv_length)
    else:
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        padding = padding[:, kv_offset : kv_offset + kv_length].view(batch_size, kv_length)
    offset, padded = int(q_offset) - int(kv_offset), attention_mask is not None
    padding.howsmooth_pattern = MaskPattern(causal, window, offset, padded)  # type: ignore[attr-defined]  # ours
    return padding


def attention_table(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: object,
) -> torch.Tensor:
    """Return the 4D mask (batch, 1, queries, keys) of any pattern: True where a query sees a key."""
    return sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function,
        attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=use_vmap,
        device=device,
    )


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
    position_bias: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention for a transformers module by `attend`; the function behind the registered names.

    Args:
        module: The attention module, for error messages, for the observer, and for `is_causal` without a mask.
        query: (b, h, n, k).
        key: (b, hkv, m, k).
        value: (b, hkv, m, w).
        attention_mask: As `attention_mask` or `attention_table` return it, or a mask of the caller's own.
        dropout: Must be 0.
        scaling: The factor of the scores; None for `1/√k`.
        is_causal: Whether attention is causal, if the mask does not determine it.
        sliding_window: The width of the window, if the mask does not determine it.
        softcap: The soft cap of the scores.
        position_bias: (b or 1, h, n or 1, m), added to the scores, as in T5.
        s_aux: (h,), the scores of the heads' sinks, as in gpt-oss.
        indices: (b, n, ·), the keys that each query may see, as in DeepSeek-V3.2; needs a 4D mask.
        **others: Further arguments that families pass. Those that would change the result are refused.

    Returns:
        The output (b, n, h, w), and None in place of the attention weights.

    Raises:
        InputError: Dropout, an unsupported argument, or a mask or bias of the wrong shape.
    """
    if dropout:
        raise InputError(
            f"expected no dropout in attention, got {dropout} (training mode); call model.eval(), or set the "
            "config's attention dropout to 0"
        )
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise InputError(
                f"expected an attention without {name}, got one in {type(module).__name__}; in Python, load "
                'this model with attn_implementation="eager" and measure its layers as functions'
            )
    if indices is not None:
        attention_mask = _restrict_to_indices(attention_mask, indices, key.shape[-2], module)
    # A compiler does not trace context variables; they are for measuring, which is not compiled.
    recording = torch.compiler.is_compiling()
    observer, head, change = (None, None, None) if recording else (_OBSERVER.get(), _ONLY_HEAD.get(), _CHANGE.get())
    edit = None if recording else _EDIT.get()
    heads = query.shape[1]
    if change is not None:
        query, key, value = change(module, query, key, value)
    if head is not None:
        shared = head * key.shape[1] // heads
        query, key, value = query[:, head : head + 1], key[:, shared : shared + 1], value[:, shared : shared + 1]
        position_bias, attention_mask = (_select_head(table, head) for table in (position_bias, attention_mask))
        s_aux = None if s_aux is None else s_aux[head : head + 1]
    scores: dict[str, Any] = dict(scale=scaling, softcap=softcap, sinks=s_aux)
    pattern = getattr(attention_mask, "howsmooth_pattern", None)
    if attention_mask is not None and attention_mask.ndim == 4:
        output = _attend_4d_mask(module, query, key, value, position_bias, mask=attention_mask, **scores)
    elif attention_mask is not None and attention_mask.ndim != 2:
        raise InputError(
            f"expected a mask of shape (b, m) or (b, 1 or h, n, m), got {tuple(attention_mask.shape)}; reshape it"
        )
    elif pattern is not None:
        visible: dict[str, Any] = dict(causal=pattern.causal, window=pattern.window, offset=pattern.offset)
        padding = attention_mask if pattern.padded else None
        output = _attend_biased(module, query, key, value, position_bias, padding, **scores, **visible)
    elif observer is not None and attention_mask is not None:
        # A network joined or changed masks, and the pattern is lost (T5Gemma 2): it is run again with 4D masks.
        raise ValueError(f"a 2D mask {tuple(attention_mask.shape)} that is none of the mask function's")
    else:  # the module was called directly, without the model's mask: only it determines whether it is causal
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        padding = None if attention_mask is None else attention_mask.bool()
        visible = dict(causal=causal, window=sliding_window)
        output = _attend_biased(module, query, key, value, position_bias, padding, **scores, **visible)
    output = output.transpose(1, 2)
    if head is not None:
        output = F.pad(output, (0, 0, head, heads - head - 1))
    output = output.contiguous()
    if edit is not None:
        output = edit(output)
    if observer is not None:
        observer(module, output)
    return output, None


def _select_head(table: torch.Tensor | None, head: int) -> torch.Tensor | None:
    """Return one head of a (b, h or 1, n, m) table; a 2D mask is the same for all heads."""
    return table if table is None or table.ndim != 4 or table.shape[1] == 1 else table[:, head : head + 1]


def _attend_biased(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    padding: torch.Tensor | None,
    **pattern: Any,
) -> torch.Tensor:
    """Compute attention with a table (b or 1, h or 1, n or 1, m) added to the scores."""
    options: dict[str, Any] = dict(padding=padding, **pattern)
    batch, n, m = query.shape[0], query.shape[-2], key.shape[-2]
    if bias is not None:
        if bias.ndim != 4 or bias.shape[0] not in (1, batch) or bias.shape[2] not in (1, n) or bias.shape[3] != m:
            raise InputError(
                f"expected a position_bias of shape ({batch} or 1, heads, {n}, {m}), got {tuple(bias.shape)}; "
                "reshape it"
            )
        options["score_bias"] = bias.expand(-1, -1, n, m)
    reader = None if torch.compiler.is_compiling() else _READER.get()
    if reader is not None:
        reader(module, query, key, value, options)
    if torch.compiler.is_compiling():
        return attend(query, key, value, **options)
    with _set(_ATTENDING, True):
        return attend(query, key, value, **options)


def _attend_4d_mask(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    mask: torch.Tensor,
    **scores: Any,
) -> torch.Tensor:
    """Compute attention with a 4D mask, boolean (True: visible) or additive."""
    if mask.dtype == torch.bool and bias is not None:
        mask = torch.where(mask, 0.0, float("-inf"))
    elif mask.dtype != torch.bool and not mask.is_floating_point():
        raise InputError(
            f"expected a 4D mask that is boolean or additive (floating point), got {mask.dtype}; say which "
            "by mask.bool() or a float mask of 0 and -inf"
        )
    batch, n, m = query.shape[0], query.shape[-2], key.shape[-2]
    if mask.shape[0] not in (1, batch) or mask.shape[2] not in (1, n) or mask.shape[3] != m:
        raise InputError(
            f"expected a mask of shape ({batch}, 1 or heads, {n}, {m}), got {tuple(mask.shape)}; reshape it"
        )
    if mask.is_floating_point():
        mask = mask.to(query.dtype)
    return _attend_biased(
        module, query, key, value, mask if bias is None else mask + bias.to(query.dtype), None, **scores
    )


def _restrict_to_indices(
    mask: torch.Tensor | None, indices: torch.Tensor, m: int, module: torch.nn.Module
) -> torch.Tensor:
    """Return a 4D mask that also hides all keys except those that were selected for each query."""
    if mask is None or mask.ndim != 4 or indices.ndim != 3:
        raise InputError(
            f"expected a 4D mask and indices (b, n, ·) in {type(module).__name__}, got "
            f"{'no mask' if mask is None else f'a mask of {mask.ndim} axes'} and indices of {indices.ndim}; in "
            f'Python, load this model with attn_implementation="{NAME_WITH_TABLES}"'
        )
    selected = torch.zeros(*indices.shape[:2], m, dtype=torch.bool, device=mask.device)
    selected = selected.scatter(-1, indices.long(), True)[:, None]
    return mask & selected if mask.dtype == torch.bool else mask.masked_fill(~selected, float("-inf"))


def _simple_pattern(mask_function: MaskFunction) -> tuple[bool, int | None] | None:
    """Return (causal, window) of a pattern that `attend` supports without a table, None for any other function."""
    if mask_function is causal_mask_function:
        return True, None
    if mask_function is bidirectional_mask_function:
        return False, None
    # A window is a closure, and_masks(overlay(width), base): functions are recognised by their code objects. A compiler
    # does not read closures, and there transformers adds a test for packed sequences, which needs a table anyway.
    if torch.compiler.is_compiling() or _code(mask_function) is not and_masks(causal_mask_function).__code__:
        return None
    parts = _captured(mask_function, "mask_functions")
    if len(parts) != 2:
        return None
    overlay, base = parts
    if base is causal_mask_function and _code(overlay) is sliding_window_overlay(1).__code__:
        return True, _captured(overlay, "sliding_window")
    two_sided = sliding_window_bidirectional_overlay(1).__code__
    if base is bidirectional_mask_function and _code(overlay) is two_sided:
        return False, _captured(
            overlay, "sliding_window"
        ) + 1  # in transformers the window includes the distance itself
    return None


def _code(function: MaskFunction) -> object:
    return getattr(function, "__code__", None)


def _captured(closure: Any, name: str) -> Any:
    """Return a variable that a closure has captured."""
    return closure.__closure__[closure.__code__.co_freevars.index(name)].cell_contents

"""`attend` with the signature and the conventions of PyTorch's `scaled_dot_product_attention`.

Two conventions differ between the two. With fewer queries than keys PyTorch aligns a causal mask at the top left: query
0 sees key 0. `attend` aligns it at the bottom right, as decoding needs it: the last query sees the last key. And
PyTorch takes tensors without an axis of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from howsmooth.attention.op import attend
from howsmooth.errors import InputError


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention as `torch.nn.functional.scaled_dot_product_attention` does, with every derivative of `attend`.

    Args:
        query: Queries (…, h, n, k), or (n, k) without heads.
        key: Keys (…, h, m, k).
        value: Values (…, h, m, w).
        attn_mask: A table that broadcasts to (…, h, n, m): boolean, True where a pair counts, or added to the scores.
        dropout_p: Must be 0.
        is_causal: Query i sees keys 0 … i (aligned at the top left); not together with `attn_mask`.
        scale: Factor of the scores, `1/√k` by default.
        enable_gqa: Whether several query heads may share a key head.

    Returns:
        The output (…, h, n, w).

    Raises:
        InputError: Dropout, a mask together with `is_causal`, shapes that do not fit, a mask that requires a gradient.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 5, 8, dtype=torch.float64).unbind()
        >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> torch.allclose(scaled_dot_product_attention(q, k, v, is_causal=True), theirs)
        True
    """
    if dropout_p != 0.0:
        raise InputError(
            f"expected dropout_p = 0, got {dropout_p}: derivatives of attention with dropout are not computed here; "
            "set it to 0, or call model.eval()"
        )
    if is_causal and attn_mask is not None:
        raise InputError("expected attn_mask or is_causal, got both; put the causal mask into attn_mask")
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise InputError(f"expected query, key and value of two axes or more, got query {tuple(query.shape)}")
    has_heads = query.dim() > 2
    if not has_heads:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    heads, key_heads = query.shape[-3], key.shape[-3]
    if heads != key_heads and not enable_gqa:
        if 1 not in (heads, key_heads):
            raise InputError(
                f"expected as many key heads as query heads, got {key_heads} and {heads}; pass enable_gqa=True if "
                "query heads share keys"
            )
        query = query.expand(*query.shape[:-3], max(heads, key_heads), *query.shape[-2:])
    if attn_mask is not None:
        n, m = query.shape[-2], key.shape[-2]
        if attn_mask.dim() < 2 or any(a not in (1, b) for a, b in zip(attn_mask.shape[-2:], (n, m), strict=True)):
            raise InputError(f"expected attn_mask of shape (…, {n}, {m}), got {tuple(attn_mask.shape)}")
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], n, m)
    output = attend(query, key, value, scale=scale, causal=is_causal, score_bias=attn_mask, offset=0)
    return output if has_heads else output.squeeze(0)


_PYTORCH_SDPA = F.scaled_dot_product_attention


class _Intercept(TorchFunctionMode):
    """Catch calls by code that imported the function by its name, which replacing an attribute does not reach."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call howsmooth in place of PyTorch's attention, and everything else as it is."""
        function = scaled_dot_product_attention if func is _PYTORCH_SDPA else func
        return function(*args, **(kwargs or {}))


@contextmanager
def replace_sdpa() -> Iterator[None]:
    """Replace `torch.nn.functional.scaled_dot_product_attention` by howsmooth's inside the context.

    For code that one does not own, such as a diffusers pipeline: it then has a forward mode, and a fused second
    derivative on a GPU. The function is replaced for all threads of the process. Calls that howsmooth does not support
    raise an `InputError`.

    Example:
        >>> import torch
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 5, 8)
        >>> with replace_sdpa():
        ...     y, dy = torch.func.jvp(lambda x: layer(x, x, x, need_weights=False)[0], (x,), (x,))
        >>> dy.shape
        torch.Size([1, 5, 8])
    """
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        # Inside a function of PyTorch that a mode intercepts, modes are switched off: hence the attribute as well.
        with _Intercept():
            yield
    finally:
        F.scaled_dot_product_attention = before

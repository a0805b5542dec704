"""`attend` with the signature and the conventions of PyTorch's `scaled_dot_product_attention`.

Two conventions differ between the two. With fewer queries than keys PyTorch aligns a causal mask at the top left: query
0 sees key 0. `attend` aligns it at the bottom right, as decoding needs it: the last query sees the last key. And
PyTorch takes tensors without an axis of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from howsmooth.attention.arguments import check_tensor, is_causal_bias, shape_of
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
        key: Keys (…, h, m, k); 1 head broadcasts.
        value: Values (…, h, m, w); 1 head broadcasts.
        attn_mask: A table that broadcasts to (…, h, n, m): boolean, True where a pair counts, or added to the scores;
            or `causal_upper_left(n, m)` or `causal_lower_right(n, m)` of `torch.nn.attention.bias`.
        dropout_p: Must be 0.
        is_causal: Query i sees keys 0 … i (aligned at the top left); not together with `attn_mask`.
        scale: Factor of the scores, `1/√k` by default.
        enable_gqa: Whether several query heads may share a key head.

    Returns:
        The output (…, h, n, w).

    Raises:
        InputError: Dropout, a mask together with `is_causal`, shapes that do not fit, tensors without their values.

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
    for name, t in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, t)
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise InputError(f"expected query, key and value of two axes or more, got query {tuple(query.shape)}")
    has_heads = max(query.dim(), key.dim(), value.dim()) > 2
    query, key, value = (t.unsqueeze(0) if t.dim() < 3 else t for t in (query, key, value))
    if not enable_gqa:
        heads = [shape_of(t)[-3] for t in (query, key, value)]
        most = 0 if 0 in heads else max(heads)
        if any(h not in (1, most) for h in heads):
            of_values = "" if heads[1] == heads[2] else f" (values: {heads[2]})"
            raise InputError(
                f"expected as many key heads as query heads, got {heads[1]}{of_values} and {heads[0]}; pass "
                "enable_gqa=True if query heads share keys"
            )
        if heads[0] != most:
            query = query.expand(*query.shape[:-3], most, *query.shape[-2:])
    if attn_mask is not None and not is_causal_bias(attn_mask):
        attn_mask = _table(attn_mask, query, key)
    output = attend(query, key, value, scale=scale, causal=is_causal, score_bias=attn_mask, offset=0)
    return output if has_heads else output.squeeze(0)


def _table(attn_mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return a mask as a table (…, n, m); refuse one that PyTorch refuses."""
    check_tensor("attn_mask", attn_mask)
    n, m, found = shape_of(query)[-2], shape_of(key)[-2], shape_of(attn_mask)
    # The equal size first: one that is only known when a graph runs cannot be compared with 1.
    if len(found) < 2 or any(a not in (b, 1) for a, b in zip(found[-2:], (n, m), strict=True)):
        raise InputError(f"expected attn_mask of shape (…, {n}, {m}), got {tuple(found)}")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise InputError(f"expected attn_mask of dtype bool or of a floating dtype, got {attn_mask.dtype}")
    return (
        attn_mask if found[-2:] == (n, m) else attn_mask.expand(*attn_mask.shape[:-2], query.shape[-2], key.shape[-2])
    )


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

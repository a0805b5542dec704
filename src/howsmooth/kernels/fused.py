"""PyTorch's own fused backward passes, where they compute the same function: they need five products, ours seven."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention

# In order of speed on a Hopper GPU.
WAYS = (("cudnn", can_use_cudnn_attention), ("flash", can_use_flash_attention))


def choose(q, k, v, g, causal, window, softcap, offset, padding, out_dtype) -> str:
    """"cudnn", "flash" or "ours"."""
    square = q.shape[2] == k.shape[2] and offset == 0
    if (q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16) or window is not None
            or softcap is not None or padding is not None or (causal and not square) or q.shape[1] != k.shape[1]
            or q.shape[3] != v.shape[3] or q.shape[3] > 128 or q.shape[3] % 8 != 0 or g.dtype != q.dtype
            or out_dtype not in (None, q.dtype) or q.shape[2] < 2 or k.shape[2] < 2):
        return "ours"
    parameters = SDPAParams(q, k, v, None, 0.0, bool(causal), False)
    return next((name for name, can in WAYS if can(parameters)), "ours")


def vjp(way: str, q: Tensor, k: Tensor, v: Tensor, o: Tensor, normaliser: Tensor, g: Tensor, scale: float,
        causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    n, m = q.shape[2], k.shape[2]
    total = normaliser.sum(-1)
    o = o.to(q.dtype)
    none = torch.empty(0, dtype=torch.uint64, device=q.device)
    if way == "cudnn":
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, o, total.unsqueeze(-1), none, none, None, None, None, n, m, 0.0, bool(causal), scale=scale)
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, o, total, None, None, n, m, 0.0, bool(causal), none, none, scale=scale)

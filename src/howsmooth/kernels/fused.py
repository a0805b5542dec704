"""PyTorch's fused attention, where it computes the same function faster than these kernels.

It takes and gives the normaliser of a row as one number, the log-sum-exp. At scores of size S that has an error of
S · 6·10⁻⁸, which is less than half precision rounds; float32 never uses it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention

# In order of speed on a Hopper GPU.
IMPLEMENTATIONS = (("cudnn", can_use_cudnn_attention), ("flash", can_use_flash_attention))
# From this length on cuDNN's forward pass saves more time than its normaliser takes to copy.
MIN_FORWARD_LENGTH = 2048


def fastest(q: Tensor, k: Tensor, v: Tensor, causal: bool, offset: int) -> str | None:
    """Return cudnn or flash if PyTorch's fused attention computes the same function, else None.

    Args:
        q: Queries (b, h, n, k).
        k: Keys (b, hkv, m, k).
        v: Values (b, hkv, m, w).
        causal: Whether the mask is causal.
        offset: Position of the first query among the keys.
    """
    square = q.shape[2] == k.shape[2] and offset == 0
    if (
        q.device.type != "cuda"
        or q.dtype not in (torch.float16, torch.bfloat16)
        or (causal and not square)
        or q.shape[1] != k.shape[1]
        or q.shape[3] != v.shape[3]
        or q.shape[3] > 128
        or q.shape[3] % 8 != 0
        or q.shape[2] < 2
        or k.shape[2] < 2
    ):
        return None
    parameters = SDPAParams(q, k, v, None, 0.0, bool(causal), False)
    return next((name for name, can_use in IMPLEMENTATIONS if can_use(parameters)), None)


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Compute the output and the normaliser by cuDNN: the log-sum-exp and 0 for each row."""
    o, log_sum_exp, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, bool(causal), False, scale=scale
    )
    normaliser = torch.zeros(*q.shape[:3], 2, dtype=torch.float32, device=q.device)
    normaliser[..., 0] = log_sum_exp.view(q.shape[:3])
    return o, normaliser


def vjp(
    implementation: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call a fused backward pass: five products, where these kernels need seven."""
    n, m = q.shape[2], k.shape[2]
    log_sum_exp = normaliser.sum(-1)
    o = o.to(q.dtype)
    empty = torch.empty(0, dtype=torch.uint64, device=q.device)
    if implementation == "cudnn":
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            *(g, q, k, v, o, log_sum_exp.unsqueeze(-1), empty, empty, None, None, None, n, m, 0.0, bool(causal)),
            scale=scale,
        )
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, o, log_sum_exp, None, None, n, m, 0.0, bool(causal), empty, empty, scale=scale
    )

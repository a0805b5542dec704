"""A softmax layer by what a measure sees of it: scores ⟨A_h x + c_h, y⟩, values V_h y, a constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False)
class Head:
    """One head: score ⟨Ax + c, y⟩, value Vy with the output projection in V; in float64."""

    A: Tensor
    V: Tensor
    c: Tensor


def heads_of(layer: SelfAttention, purpose: str) -> tuple[list[Head], Tensor]:
    """The heads of a layer, and the constant that its value and output biases add.

    Key biases are gone: they add a constant to each row of scores. `purpose` names who asks, for the error.
    """
    traits = {"a causal mask": layer.causal, "a window": layer.window is not None,
              "rotary positions": layer.rotary is not None, "a soft cap": layer.softcap is not None,
              "a score_bias": layer.score_bias is not None}
    for trait in (name for name, there in traits.items() if there):
        raise InputError(f"{purpose}: expected a layer without places and with plain scores, got one with {trait}; "
                         "use particles")
    layer = layer.to(torch.float64)
    outs = (torch.eye(layer.d_out, dtype=torch.float64) if layer.wo is None else layer.wo).chunk(layer.heads, 1)
    constant = torch.zeros(layer.d_out, dtype=torch.float64) if layer.bo is None else layer.bo
    heads = []
    for index, out in enumerate(outs):
        head = layer.head(index)
        key = layer.scale * head.wk.mT
        c = torch.zeros(layer.d, dtype=torch.float64) if head.bq is None else key @ head.bq
        heads.append(Head(key @ head.wq, out @ head.wv, c))
        if head.bv is not None:
            constant = constant + out @ head.bv
    return heads, constant

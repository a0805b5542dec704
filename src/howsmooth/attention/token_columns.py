"""The derivative of all outputs in one token: the block column J[:, j] of a layer, for many tokens j at once.

Moving token j alone changes its key and value in every row, and its query in row j. With q, k, v the (rotated)
projections of each head, dk = K ε, dv = V ε and dq = Q ε

    J[i, j] ε = Σ_h W_h (P_ij dv + P'_ij ⟨q_i, dk⟩ (v_j − o_i))  +  Σ_h W_h F_j dq   if i = j

where P' = scale · P (times the slope of a soft cap), and F_j is that of `QueryDerivative`. For one token j the vectors
W_h dv and W_h v_j are the same in all rows, and W_h o_i does not depend on j. A product with t block columns therefore
takes O(t n h d) operations, while a product of J with t vectors takes O(t n (n + d) d).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from howsmooth.attention import blockwise
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import pattern_of
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.spectral.operator import LinearOperator


class TokenColumns(LinearOperator):
    """Block columns J[:, j] of a layer at one sequence, for chosen tokens j: a batch of t operators (n·d_out, d).

    Args:
        attention: the layer f.
        x: tokens (n, d).
        tokens: positions j, a tensor of t integers; all by default. The operator keeps 2 t h n numbers.

    Raises:
        InputError: if the tokens do not fit the layer, or scores are too large for the dtype.

    Example:
        >>> eye, x = torch.eye(2, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
        >>> TokenColumns(SelfAttention(eye, eye, eye), x, torch.tensor([1])).matvec(eye[:1])  # the mean of 4 tokens
        tensor([[0.2500, 0.0000, 0.2500, 0.0000, 0.2500, 0.0000, 0.2500, 0.0000]],
               dtype=torch.float64)
    """

    def __init__(self, attention: SelfAttention, x: Tensor, tokens: Tensor | None = None) -> None:
        """Compute what all tokens share, then the columns of P at these."""
        a = self.attention = attention
        self.query = QueryDerivative(attention, x)
        self.x, self.n = x, len(x)
        jacobian = attention.jacobian(x)  # refuses scores that are too large
        super().__init__((self.n * a.d_out, a.d), dtype=x.dtype, device=x.device, batch=(self.n,))
        with torch.no_grad():
            q, k, v = (t.unsqueeze(0) for t in a.project(x, centred=True))
            self.pattern = pattern_of(q, k, v, **a.pattern())
            o, normaliser = blockwise.forward(q, k, v, self.pattern)
            self.linearised = blockwise.Linearisation(q, k, v, o, normaliser, self.pattern)
            self.scaled = self.pattern.scale * q[0]
            # W of each head, (h, d_out, w)
            w_out = torch.eye(a.d_out, dtype=x.dtype, device=x.device) if a.wo is None else a.wo.detach()
            self.w_out = w_out.unflatten(1, (a.heads, -1)).transpose(0, 1).contiguous()
            self.all_values = self._of_heads(v[0]) @ self.w_out.mT  # (h, n, d_out)
            self.outputs = (o[0] @ self.w_out.mT).transpose(0, 1).contiguous()
            largest = float(self.scaled.norm(dim=-1).max()) * float(k.norm(dim=-1).max())
        self.own_error = max(jacobian.own_error, 4 * self.roundoff * largest)
        self._reference: list[TokenColumns] = []
        self._select(torch.arange(self.n, device=x.device) if tokens is None else tokens.to(x.device))

    def at(self, tokens: Tensor) -> TokenColumns:
        """Return the block columns of other tokens; what does not depend on them is shared."""
        chosen = copy.copy(self)
        chosen._select(tokens.to(self.device))
        return chosen

    @torch.no_grad()
    def _select(self, tokens: Tensor) -> None:
        """Compute the columns of P and P' and the projected values of these tokens."""
        heads, size = self.attention.heads, self.x.element_size()
        self.tokens, self.batch = tokens, (len(tokens),)
        self.query = self.query.at(tokens)
        self.p = self.x.new_zeros(len(tokens), heads, self.n)
        self.weights = self.p if self.pattern.softcap is None else torch.zeros_like(self.p)
        for block in self.linearised.blocks():
            seen = (tokens >= block.start) & (tokens < block.stop)
            columns = tokens[seen] - block.start
            p = blockwise.unfold(block.p, heads)[0][..., columns]  # (h, rows, tokens)
            self.p[seen, :, block.first : block.last] = p.permute(2, 0, 1)
            if self.weights is not self.p:
                slope = blockwise.unfold(torch.as_tensor(block.slope), heads)[0][..., columns]
                self.weights[seen, :, block.first : block.last] = (p * slope).permute(2, 0, 1)
        self.values = self.all_values[:, tokens].transpose(0, 1)  # (t, h, d_out)
        self.held = size * (2 * self.p.numel() + self.outputs.numel() + self.query.factors.numel())
        self.workspace = size * len(tokens) * self.n * (self.shape[0] // self.n + 3 * heads)
        self.reference_bytes = self.held * 8 // size if self.reference_itemsize else 0

    @torch.no_grad()
    def matvec(self, v: Tensor) -> Tensor:
        """Apply each block column: (t, d) → (t, n·d_out)."""
        a = self.attention
        dk = self._of_heads(self.query.rotate((v @ a.wk.T).unflatten(-1, (a.kv_heads, -1))).transpose(0, 1))
        dv = self._of_heads((v @ a.wv.T).unflatten(-1, (a.kv_heads, -1)).transpose(0, 1))  # (h, t, w)
        change = (dk @ self.scaled.mT).transpose(0, 1) * self.weights  # P'_ij ⟨q_i, dk⟩, (t, h, n)
        moved = (dv @ self.w_out.mT).transpose(0, 1)  # W_h dv, (t, h, d_out)
        out = torch.cat([self.p, change], 1).mT @ torch.cat([moved, self.values], 1)  # (t, n, d_out)
        out -= (change.permute(2, 0, 1) @ self.outputs).transpose(0, 1)
        out[torch.arange(len(v), device=v.device), self.tokens] += self.query.matvec(v)
        return out.flatten(1)

    @torch.no_grad()
    def rmatvec(self, u: Tensor) -> Tensor:
        """Apply each transpose: (t, n·d_out) → (t, d)."""
        a, g = self.attention, u.view(len(u), self.n, -1)
        change = self.values @ g.mT - (g.transpose(0, 1) @ self.outputs.mT).permute(1, 2, 0)  # (t, h, n)
        dk = (change * self.weights).transpose(0, 1) @ self.scaled  # (h, t, k)
        dv = (self.p @ g).transpose(0, 1) @ self.w_out  # (h, t, w)
        keys = self.query.rotate(self._of_kv_heads(dk).transpose(0, 1), transposed=True)
        values = self._of_kv_heads(dv).transpose(0, 1)
        own = g[torch.arange(len(u), device=u.device), self.tokens]
        out: Tensor = keys.flatten(1) @ a.wk + values.flatten(1) @ a.wv + self.query.rmatvec(own)
        return out

    def precise(self) -> TokenColumns:
        """Return the same block columns in float64; what they share is computed once for all tokens."""
        if self.dtype == torch.float64:
            return self
        if not self._reference:
            layer = self.attention.converted(dtype=torch.float64)
            self._reference.append(TokenColumns(layer, self.x.double(), self.tokens))
        return self._reference[0].at(self.tokens)

    def _of_heads(self, t: Tensor) -> Tensor:
        """Repeat (hkv, …) for the query heads that share a key: (h, …)."""
        return t.repeat_interleave(self.attention.heads // self.attention.kv_heads, dim=0)

    def _of_kv_heads(self, t: Tensor) -> Tensor:
        """Sum (h, …) over the query heads that share a key: (hkv, …)."""
        return torch.unflatten(t, 0, (self.attention.kv_heads, -1)).sum(1)

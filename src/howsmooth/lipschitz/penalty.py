"""A differentiable Lipschitz penalty, for training: σ₁ of D_X f with its exact slope in the weights.

At a simple σ₁ with singular vectors u, v of the derivative J, dσ₁ = ⟨u, (dJ) v⟩: u and v may be held fixed. So the
penalty is ⟨u, J v⟩ with u and v found without gradients, and J v kept as a function of the weights by a second
backward pass. If v is not quite the first singular vector, the value is ‖J v‖, attained and so never above σ₁, and the
slope is the exact slope of ‖J v‖ at that v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian, differentiable_attention
from howsmooth.spectral import FunctionOperator, LinearOperator, warm_triplet

FRESH = 1e-2  # share of a random vector in a start that is remembered, for singular values that cross


def lipschitz_penalty(
    model: SelfAttention | Callable[[Tensor], Tensor],
    batch: Tensor | Mapping,
    *,
    above: float | None = None,
    steps: int = 10,
    seed: int = 0,
) -> Tensor:
    """The mean of σ₁ over a batch, to be added to a loss; with `above`, of max(0, σ₁ − above)².

    `model` and `batch` are: a `SelfAttention` whose weights require gradients, or any torch map, and tokens (n, d) or
    (b, n, d), each sequence by itself; or a transformers model and its keyword arguments with input_ids, for the map
    from embeddings to what the model puts out first (give it attn_implementation="howsmooth", which has the second
    derivatives that are needed). `steps` of Golub–Kahan from a random start: more of them, closer to σ₁.

    >>> w = torch.eye(2, dtype=torch.float64).requires_grad_()
    >>> penalty = lipschitz_penalty(lambda x: x @ w * torch.tensor([1.0, 3.0]), torch.zeros(4, 2, dtype=torch.float64))
    >>> penalty.backward()
    >>> round(penalty.item(), 6), [[round(entry, 3) for entry in row] for row in w.grad.tolist()]
    (3.0, [[0.0, 0.0], [0.0, 3.0]])
    """
    return LipschitzPenalty(above=above, steps=steps, seed=seed)(model, batch)


class LipschitzPenalty:
    """The penalty with a memory: the next solve starts from the last vectors, so that few steps do while one trains.

    `values` are the σ of the last batch, (b,).
    """

    def __init__(self, *, above: float | None = None, steps: int = 3, seed: int = 0):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:  # one step stays where it starts
            raise InputError(f"lipschitz_penalty: expected steps as a whole number from 2, got {steps!r}")
        if above is not None and not above >= 0:
            raise InputError(f"lipschitz_penalty: expected above as a number from 0, got {above!r}")
        self.above, self.steps = above, steps
        self.values: Tensor | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._last: Tensor | None = None

    def __call__(self, model: SelfAttention | Callable[[Tensor], Tensor], batch: Tensor | Mapping) -> Tensor:
        f, x = _map_and_tokens(model, batch)
        _refuse_dropout(model)
        with torch.no_grad():
            J = _operator(f, x.detach())
            start = torch.randn(*J.batch, J.shape[1], generator=self._generator, dtype=torch.float64).to(x)
            start = start / torch.linalg.vector_norm(start, dim=-1, keepdim=True)
            if self._last is not None and self._last.shape == start.shape:
                start = self._last.to(start) + FRESH * start
            _, u, v = warm_triplet(J, start, self.steps)
        self._last = v
        sigma = attained(f, x, u, v)
        self.values = sigma.detach()
        return sigma.mean() if self.above is None else (sigma - self.above).clamp(min=0).square().mean()


def attained(f: Callable[[Tensor], Tensor], x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """⟨u, J v⟩ for every sequence, (b,), or () for x (n, d), with its slope in all that f and x depend on."""
    with torch.enable_grad(), differentiable_attention():
        x = x if x.requires_grad else x.detach().requires_grad_()
        y = f(x)
        (pulled,) = torch.autograd.grad(y, x, u.view_as(y), create_graph=True, materialize_grads=True)
    return (pulled * v.view_as(x)).flatten(1 if x.dim() == 3 else 0).sum(-1)


def _map_and_tokens(model, batch) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    if isinstance(batch, Tensor):
        if batch.dim() not in (2, 3) or not batch.dtype.is_floating_point or not batch.numel():
            raise InputError(
                "lipschitz_penalty: expected tokens (n, d) or (b, n, d) of a floating dtype, got "
                f"{batch.dtype} of shape {tuple(batch.shape)}; token numbers go in a dict with input_ids"
            )
        return model, batch
    if not isinstance(batch, Mapping) or not isinstance(batch.get("input_ids"), Tensor):
        raise InputError(
            f"lipschitz_penalty: expected tokens as a tensor, or a dict with input_ids, got {type(batch).__name__}"
        )
    if not hasattr(model, "get_input_embeddings"):
        raise InputError(
            "lipschitz_penalty: expected a transformers model beside input_ids, got "
            f"{type(model).__name__}; give it the tokens that enter it"
        )
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.all()):
        raise InputError(
            "lipschitz_penalty: expected texts of one length, got a batch with padding, whose tokens "
            "would count too; group texts by length, or give them one by one"
        )
    others = {key: value for key, value in batch.items() if key not in ("input_ids", "labels")}

    def f(embeddings: Tensor) -> Tensor:
        return model(inputs_embeds=embeddings, **others)[0]

    embeddings = model.get_input_embeddings()(batch["input_ids"])
    return f, embeddings.detach()  # where the tokens are is not what is to become smoother


def _operator(f, x: Tensor) -> LinearOperator:
    """D_X f, one for each sequence of a batch: sequences do not see each other, so J is made of blocks."""
    if isinstance(f, SelfAttention):
        return f.jacobian(x)
    J = AutodiffJacobian(f, x, trusted=True)
    if x.dim() == 2:
        return J
    b = len(x)
    return FunctionOperator(
        lambda v: J.matvec(v.flatten()).view(b, -1),
        lambda u: J.rmatvec(u.flatten()).view(b, -1),
        (J.shape[0] // b, J.shape[1] // b),
        dtype=x.dtype,
        device=x.device,
        batch=(b,),
    )


def _refuse_dropout(model) -> None:
    if isinstance(model, torch.nn.Module) and any(
        module.training and getattr(module, "p", 0)
        for module in model.modules()
        if isinstance(module, torch.nn.modules.dropout._DropoutNd)
    ):
        raise InputError(
            "lipschitz_penalty: expected a map that draws nothing, got one with dropout in training mode; "
            "set its probability to 0, or call .eval(), which leaves gradients as they are"
        )

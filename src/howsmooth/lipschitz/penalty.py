"""A differentiable Lipschitz penalty for training: σ₁ of the Jacobian with its exact gradient in the weights.

At a simple σ₁ with singular vectors u and v of the Jacobian J, `dσ₁ = ⟨u, (dJ) v⟩`, so u and v may be treated as
constants. The penalty is `⟨u, J v⟩`, with u and v computed without gradients, and J v differentiable in the weights by
double backward. If v has not converged, the value is ‖J v‖ ≤ σ₁, and the gradient is the exact gradient of ‖J v‖ at
that v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian, differentiable_attention
from howsmooth.lipschitz.local import Map
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.power import warm_triplet

_RANDOM_PART = 1e-2  # norm of the random vector that is added to a warm start, in case singular values have crossed

Batch = Tensor | Mapping[str, Any]


def lipschitz_penalty(
    model: Map, batch: Batch, *, above: float | None = None, steps: int = 10, seed: int = 0
) -> Tensor:
    """Compute the mean of σ₁ over a batch, as a differentiable term of a loss.

    Args:
        model: A `SelfAttention` whose weights require gradients, any torch map of tokens, or a transformers model. The
            transformers model needs attn_implementation="howsmooth", which has the second derivatives.
        batch: Tokens (n, d), or (b, n, d) for b independent sequences. For a transformers model, its keyword arguments
            with input_ids; then the map is from the embeddings to the first output of the model.
        above: If given, the penalty is the mean of `max(0, σ₁ − above)²`.
        steps: Golub–Kahan steps from a random start, at least 2. With more steps the value is closer to σ₁.
        seed: Seed of the random start.

    Returns:
        The penalty, a tensor without axes.

    Raises:
        InputError: If the model or the batch cannot be used; the message contains the reason and what to do.

    Example:
        >>> w = torch.eye(2, dtype=torch.float64).requires_grad_()
        >>> x = torch.zeros(4, 2, dtype=torch.float64)
        >>> penalty = lipschitz_penalty(lambda x: x @ w * torch.tensor([1.0, 3.0]), x)
        >>> penalty.backward()
        >>> round(penalty.item(), 6), [[round(entry, 3) for entry in row] for row in w.grad.tolist()]
        (3.0, [[0.0, 0.0], [0.0, 3.0]])
    """
    return LipschitzPenalty(above=above, steps=steps, seed=seed)(model, batch)


class LipschitzPenalty:
    """A Lipschitz penalty with warm starts: each call starts from the singular vectors of the previous one.

    Few steps are then enough during training.

    Args:
        above: If given, the penalty is the mean of `max(0, σ₁ − above)²`.
        steps: Golub–Kahan steps per call, at least 2.
        seed: Seed of the random starts.

    Attributes:
        values: The σ₁ of the last batch, (b,); None before the first call.

    Raises:
        InputError: If `above` or `steps` is out of range.

    Example:
        >>> penalty = LipschitzPenalty(above=2.0)
        >>> round(float(penalty(lambda x: 3 * x, torch.zeros(4, 2, dtype=torch.float64))), 6)
        1.0
    """

    def __init__(self, *, above: float | None = None, steps: int = 3, seed: int = 0) -> None:
        """Check the options; nothing is computed before the first call."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:  # one step stays where it starts
            raise InputError(f"lipschitz_penalty: expected steps as a whole number from 2, got {steps!r}")
        if above is not None and not above >= 0:
            raise InputError(f"lipschitz_penalty: expected above as a number from 0, got {above!r}")
        self.above, self.steps = above, steps
        self.values: Tensor | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._previous: Tensor | None = None  # right singular vectors of the last batch

    def __call__(self, model: Map, batch: Batch) -> Tensor:
        """Return the penalty of a model on a batch; see `lipschitz_penalty`."""
        f, x = _map_and_tokens(model, batch)
        _refuse_dropout(model)
        with torch.no_grad():
            J = unchecked_jacobian(f, x.detach())
            start = torch.randn(*J.batch, J.shape[1], generator=self._generator, dtype=torch.float64).to(x)
            start = start / torch.linalg.vector_norm(start, dim=-1, keepdim=True)
            if self._previous is not None and self._previous.shape == start.shape:
                start = self._previous.to(start) + _RANDOM_PART * start
            _, u, v = warm_triplet(J, start, self.steps)
        self._previous = v
        sigma = differentiable_norm(f, x, u, v)
        self.values = sigma.detach()
        return sigma.mean() if self.above is None else (sigma - self.above).clamp(min=0).square().mean()


def differentiable_norm(f: Callable[[Tensor], Tensor], x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return `⟨u, J v⟩` for each sequence, (b,), or () for x (n, d), with gradients in x and in the weights of f."""
    with torch.enable_grad(), differentiable_attention():
        x = x if x.requires_grad else x.detach().requires_grad_()
        y = f(x)
        (vjp,) = torch.autograd.grad(y, x, u.view_as(y), create_graph=True, materialize_grads=True)
    return (vjp * v.view_as(x)).flatten(1 if x.dim() == 3 else 0).sum(-1)


def _map_and_tokens(model: Any, batch: Batch) -> tuple[Map, Tensor]:
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
        output: Tensor = model(inputs_embeds=embeddings, **others)[0]
        return output

    embeddings = model.get_input_embeddings()(batch["input_ids"])
    return f, embeddings.detach()  # the penalty has no gradient in the embeddings


def unchecked_jacobian(f: Map, x: Tensor) -> LinearOperator:
    """Return the Jacobian, for each sequence of a batch; checks are omitted since this runs in many training steps."""
    if isinstance(f, SelfAttention):
        return f.jacobian(x)
    return AutodiffJacobian(f, x, batched=x.dim() == 3, check=False, forward_mode=False)


def _refuse_dropout(model: Any) -> None:
    if isinstance(model, torch.nn.Module) and any(
        module.training and getattr(module, "p", 0)
        for module in model.modules()
        if isinstance(module, torch.nn.modules.dropout._DropoutNd)
    ):
        raise InputError(
            "lipschitz_penalty: expected a map that draws nothing, got one with dropout in training mode; "
            "set its probability to 0, or call .eval(), which leaves gradients as they are"
        )

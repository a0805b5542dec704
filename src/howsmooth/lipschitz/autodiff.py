"""The derivative of any torch callable at one input, as a matrix-free operator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth.errors import InputError
from howsmooth.spectral import LinearOperator


class AutodiffJacobian(LinearOperator):
    """J = D_x f for f from one tensor to one tensor, by automatic differentiation.

    Jᵀu is a backward pass through a graph that is recorded once. J v is forward mode; where a part of f has none, it
    is the derivative of Jᵀg in g, which is linear in g, read off a second graph that is recorded once too.

    What the graphs hold is not known, so a memory plan counts only the solver's own vectors.
    """

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor, *, trusted: bool = False):
        self.f, self.x = f, x.detach()
        self._input = x.detach().clone().requires_grad_()
        with torch.enable_grad(), differentiable_attention():
            y = f(self._input)
        if not isinstance(y, Tensor) or y.numel() == 0 or not y.dtype.is_floating_point:
            raise InputError("expected f to return one non-empty tensor of a floating dtype, got "
                             f"{type(y).__name__}; wrap it in a function that picks the tensor")
        if not y.requires_grad:
            raise InputError("expected an output that depends on x, got one without a gradient; look for detach, "
                             "no_grad or integer steps inside f")
        if not torch.isfinite(y).all():
            raise InputError("expected a finite f(x), got NaN or ∞")
        self._output = y
        super().__init__((y.numel(), x.numel()), dtype=x.dtype, device=x.device)
        self._cotangent = torch.zeros_like(y, requires_grad=True)
        self._pulled_back: Tensor | None = None
        self._has_forward_mode = True
        if not trusted:
            with torch.no_grad(), differentiable_attention():
                self._refuse_a_random_map(f(self.x))
            self._refuse_unequal_derivatives()

    @property
    def image(self) -> Tensor:
        """f(x)."""
        return self._output.detach()

    def rmatvec(self, u: Tensor) -> Tensor:
        with differentiable_attention():
            g, = torch.autograd.grad(self._output, self._input, u.view_as(self._output).to(self._output.dtype),
                                     retain_graph=True, materialize_grads=True)
        return g.flatten()

    def matvec(self, v: Tensor) -> Tensor:
        v = v.view_as(self._input)
        with differentiable_attention():
            if self._has_forward_mode:
                try:
                    with torch.no_grad():
                        return torch.func.jvp(self.f, (self._input.detach(),), (v,))[1].flatten().to(self.dtype)
                except (RuntimeError, NotImplementedError):
                    self._has_forward_mode = False
            try:
                return self._through_second_graph(v)
            except (RuntimeError, NotImplementedError) as error:
                raise InputError("expected a map with forward mode or double backward, got one with neither "
                                 f"({str(error).splitlines()[0]}); for a transformers model, "
                                 'attn_implementation="howsmooth" has both') from error

    def _through_second_graph(self, v: Tensor) -> Tensor:
        if self._pulled_back is None:
            with torch.enable_grad():
                self._pulled_back, = torch.autograd.grad(self._output, self._input, self._cotangent, create_graph=True,
                                                         materialize_grads=True)
        jv, = torch.autograd.grad(self._pulled_back, self._cotangent, v, retain_graph=True)
        return jv.flatten().to(self.dtype)

    def precise(self) -> LinearOperator | None:
        """The derivative of f in float64, if f can be had there: a module is copied, a function is tried."""
        if self.dtype == torch.float64:
            return self
        try:
            twin = AutodiffJacobian(in_float64(self.f), self.x.double(), trusted=True)
        except Exception:  # whatever a map says to float64 that it does not take
            return None
        return twin if twin._output.dtype == torch.float64 else None

    def shaken(self) -> LinearOperator:
        """The derivative at x moved by a unit of rounding: shows what rounding does where float64 cannot be had."""
        signs = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(0)).sign().to(self.x)
        return AutodiffJacobian(self.f, self.x * (1 + torch.finfo(self.dtype).eps * signs), trusted=True)

    def _refuse_a_random_map(self, again: Tensor) -> None:
        # Threads may add up in another order from one call to the next; dropout is of another size.
        if norm(again - self._output) > 1e-3 * norm(self._output):
            raise InputError("expected a map that gives the same output twice, got one that is random; "
                             "call .eval() on the module, or fix what it draws")

    def _refuse_unequal_derivatives(self) -> None:
        """⟨u, Jv⟩ = ⟨Jᵀu, v⟩ on random vectors: no_grad or detach inside f break it."""
        generator = torch.Generator().manual_seed(0)
        v, u = (torch.randn(size, generator=generator).to(self.x) for size in self.shape[::-1])
        jv, ju = self.matvec(v), self.rmatvec(u)
        gap = abs(float(u.double() @ jv.double()) - float(ju.double() @ v.double()))
        if gap > torch.finfo(self.dtype).eps ** 0.2 * max(norm(u) * norm(jv), norm(ju) * norm(v)):
            raise InputError("expected a map whose forward and reverse derivatives agree, got two different ones; "
                             "look for no_grad, detach or a custom function with a wrong derivative inside f")


def in_float64(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A copy of a module in float64; a plain function, and a module that cannot be copied, as they are."""
    if not isinstance(f, torch.nn.Module):
        return f
    try:
        return copy.deepcopy(f).double()
    except RuntimeError:
        return f


def norm(t: Tensor) -> float:
    """The Euclidean norm of all entries, summed in float64."""
    return float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64)) if t.numel() else math.nan


@contextmanager
def differentiable_attention():
    # PyTorch's fused attention has neither double backward nor forward mode; its plain form has both.
    with sdpa_kernel(SDPBackend.MATH):
        yield

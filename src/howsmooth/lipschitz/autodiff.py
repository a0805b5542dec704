"""The derivative of any torch callable at one input, as a matrix-free operator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import contextmanager, suppress

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth.errors import InputError
from howsmooth.lipschitz.casts import CastsSeen, in_float64_throughout
from howsmooth.spectral import LinearOperator
from howsmooth.spectral.operator import refuse_autocast


class AutodiffJacobian(LinearOperator):
    """J = D_x f for f from one tensor to one tensor, by automatic differentiation.

    Jᵀu is a backward pass through a graph that is recorded once. J v is forward mode; where a part of f has none, it
    is the derivative of Jᵀg in g, which is linear in g, read off a second graph that is recorded once too.

    Where f narrows to a coarser dtype than that of x (`casts`), the derivative is taken without these casts, by numbers
    in float64, and `perturbed` is the derivative with them. Where f does not run without them, it is taken as it is.

    What the graphs hold is not known, so a memory plan counts only the solver's own vectors.
    """

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor, *, trusted: bool = False):
        if not trusted:
            refuse_autocast(x.device)
        self.f, self.x = f, x.detach()
        y = self._record()
        super().__init__((y.numel(), x.numel()), dtype=x.dtype, device=x.device)
        self.as_given: Callable[[Tensor], Tensor] | None = None  # f with its casts, where they are left out
        if not trusted:
            with torch.no_grad(), differentiable_attention(), CastsSeen() as seen:
                again = f(self.x)
            self._refuse_a_random_map(again)
            if seen.unit > self.roundoff:
                self._leave_out_casts(seen.unit)
            self._refuse_unequal_derivatives()

    def _record(self) -> Tensor:
        """Evaluate f once, with the graph that Jᵀ is read off."""
        self._input = self.x.clone().requires_grad_()
        with torch.enable_grad(), differentiable_attention():
            y = self.f(self._input)
        if not isinstance(y, Tensor) or y.numel() == 0 or not y.dtype.is_floating_point:
            raise InputError(
                "expected f to return one non-empty tensor of a floating dtype, got "
                f"{type(y).__name__}; wrap it in a function that picks the tensor"
            )
        if not y.requires_grad:
            raise InputError(
                "expected an output that depends on x, got one without a gradient; look for detach, "
                "no_grad or integer steps inside f"
            )
        if not torch.isfinite(y).all():
            raise InputError("expected a finite f(x), got NaN or ∞")
        self._output = y
        self._cotangent = torch.zeros_like(y, requires_grad=True)
        self._pulled_back: Tensor | None = None
        self._has_forward_mode = True
        return y

    def _leave_out_casts(self, unit: float) -> None:
        """Go on without the casts inside f, to a dtype of this unit of rounding; with them where it has to be."""
        given, inner = self.f, in_float64(self.f)
        self.casts = True
        try:
            self.f = lambda x: inner(x.double()).to(x.dtype)
            self._record()
            self.as_given = given
        except Exception:  # whatever a map says to float64 that it does not take
            self.f, self.roundoff = given, unit
            self._record()

    @property
    def image(self) -> Tensor:
        """f(x)."""
        return self._output.detach()

    def rmatvec(self, u: Tensor) -> Tensor:
        with differentiable_attention():
            (g,) = torch.autograd.grad(
                self._output,
                self._input,
                u.view_as(self._output).to(self._output.dtype),
                retain_graph=True,
                materialize_grads=True,
            )
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
                raise InputError(
                    "expected a map with forward mode or double backward, got one with neither "
                    f"({str(error).splitlines()[0]}); for a transformers model, "
                    'attn_implementation="howsmooth" has both'
                ) from error

    def _through_second_graph(self, v: Tensor) -> Tensor:
        if self._pulled_back is None:
            with torch.enable_grad():
                (self._pulled_back,) = torch.autograd.grad(
                    self._output, self._input, self._cotangent, create_graph=True, materialize_grads=True
                )
        (jv,) = torch.autograd.grad(self._pulled_back, self._cotangent, v, retain_graph=True)
        return jv.flatten().to(self.dtype)

    def precise(self) -> LinearOperator | None:
        """The derivative of f in float64, if f can be had there and casts nothing to a coarser dtype than x has."""
        if self.dtype == torch.float64:
            return self
        if self.casts:
            return None
        try:
            twin = AutodiffJacobian(in_float64(self.f), self.x.double(), trusted=True)
        except Exception:  # whatever a map says to float64 that it does not take
            return None
        return twin if twin._output.dtype == torch.float64 else None

    def perturbed(self) -> LinearOperator:
        """The derivative with the casts inside f, or at x moved by a unit of rounding, for want of float64."""
        if self.as_given is not None:
            return AutodiffJacobian(self.as_given, self.x, trusted=True)
        signs = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(0)).sign().to(self.x)
        return AutodiffJacobian(self.f, self.x * (1 + self.roundoff * signs), trusted=True)

    def _refuse_a_random_map(self, again: Tensor) -> None:
        # Threads may add up in another order from one call to the next; dropout is of another size.
        if norm(again - self._output) > 1e-3 * norm(self._output):
            raise InputError(
                "expected a map that gives the same output twice, got one that is random; "
                "call .eval() on the module, or fix what it draws"
            )

    def _refuse_unequal_derivatives(self) -> None:
        """⟨u, Jv⟩ = ⟨Jᵀu, v⟩ on random vectors: no_grad or detach inside f break it."""
        generator = torch.Generator().manual_seed(0)
        v, u = (torch.randn(size, generator=generator).to(self.x) for size in self.shape[::-1])
        jv, ju = self.matvec(v), self.rmatvec(u)
        gap = abs(float(u.double() @ jv.double()) - float(ju.double() @ v.double()))
        if gap > torch.finfo(self.dtype).eps ** 0.2 * max(norm(u) * norm(jv), norm(ju) * norm(v)):
            raise InputError(
                "expected a map whose forward and reverse derivatives agree, got two different ones; "
                "look for no_grad, detach or a custom function with a wrong derivative inside f"
            )


def in_float64(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """F with all of its numbers in float64; a module is copied for it, if it can be, and converted once."""
    if isinstance(f, torch.nn.Module):
        with suppress(RuntimeError):
            f = copy.deepcopy(f).double()
    return in_float64_throughout(f)


def norm(t: Tensor) -> float:
    """The Euclidean norm of all entries, summed in float64."""
    return float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64)) if t.numel() else math.nan


@contextmanager
def differentiable_attention():
    # PyTorch's fused attention has neither double backward nor forward mode; its plain form has both.
    with sdpa_kernel(SDPBackend.MATH):
        yield

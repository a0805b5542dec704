"""How fast is a flow of particles, and how much memory does a step take?

    python benchmarks/flow.py [--tokens 2000] [--until 10] [--big] [--growth]

Three measurements, each with its accuracy:

    to depth 10   2,000 tokens in the plane, V = A = I, in renormalised coordinates, by SciPy's RK45 at 1e-6. The peer
                  is the straightforward program: `solve_ivp` on the same equation with P written out in NumPy. Times
                  are the best of two alternating runs, wall clock and CPU time of all cores; printed with the largest
                  difference of the two end states, and of each from a run at 1e-9. Goal: under 10 s on two cores.
    --big         one residual layer on 100,000 tokens in dimension 64, float32: seconds, and the peak memory beyond
                  that before; all scores at once would take 37 GiB. Takes 90 seconds of one core.
    --growth      σ₁ of the derivative of 64 residual layers at n tokens in dimension 16, matrix-free, to 1e-3.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch
from scipy.integrate import solve_ivp

from howsmooth.attention import SoftmaxField
from howsmooth.dynamics import FlowDerivative, Renormalised, Velocity, integrate, steps_of
from howsmooth.spectral import singular_values

GOAL = 10.0


def peer(z: np.ndarray, until: float, rtol: float) -> np.ndarray:
    """Solve z' = Σ_j P_ij (z_j − z_i) with scores e^{2t}⟨z_i, z_j⟩, all of P at once."""
    shape = z.shape

    def f(t, y):
        z = y.reshape(shape)
        s = np.exp(2 * t) * z @ z.T
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return (p @ z - z).ravel()

    return solve_ivp(f, (0, until), z.ravel(), rtol=rtol, atol=rtol * 1e-3, t_eval=[until]).y[:, -1].reshape(shape)


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds of wall clock and of CPU time since then."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def to_depth(n: int, until: float) -> None:
    """Time a flow in the plane, against SciPy."""
    eye = torch.eye(2, dtype=torch.float64)
    z = 5 * (2 * torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    velocity = Velocity(Renormalised(SoftmaxField.of(eye, eye)).at)
    times = {"howsmooth": [], "peer": []}
    for _ in range(2):
        began = time.perf_counter(), time.process_time()
        found = integrate(velocity, z, until, rtol=1e-6, atol=1e-9, frames=2)
        times["howsmooth"].append(since(began))
        began = time.perf_counter(), time.process_time()
        other = torch.from_numpy(peer(z.numpy(), until, 1e-6))
        times["peer"].append(since(began))
    fine = integrate(velocity, z, until, rtol=1e-9, atol=1e-12, frames=2).last
    (wall, cpu), (peer_wall, peer_cpu) = (np.min(times[name], axis=0) for name in ("howsmooth", "peer"))
    print(
        f"{n} tokens in the plane to depth {until:g}: {wall:.2f} s, CPU {cpu:.2f} s ({found.steps} steps, "
        f"{found.evaluations} evaluations); peer {peer_wall:.2f} s, CPU {peer_cpu:.2f} s, {peer_cpu / cpu:.1f} times "
        f"as much; goal {GOAL:g} s {'met' if wall < GOAL else 'missed'}"
    )
    print(
        f"  ends differ by {float((found.last - other).abs().max()):.1e}; from rtol 1e-9: howsmooth "
        f"{float((found.last - fine).abs().max()):.1e}, peer {float((other - fine).abs().max()):.1e}",
        flush=True,
    )


def big(n: int = 100_000, d: int = 64) -> None:
    """Measure time and memory of one layer on many tokens."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    A, V = (torch.randn(d, d, generator=generator) / d for _ in range(2))
    step = steps_of(SoftmaxField.of(A, V), 1.0, 1)[0]
    few = x[:64].double()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with torch.no_grad():
        moved = step(x)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    s = few @ A.double().mT @ x.double().mT
    truth = few + torch.softmax(s, -1) @ x.double() @ V.double().mT
    print(
        f"one layer on {n} tokens in dimension {d}, float32: {seconds:.1f} s, {peak / 2**20:.2f} GiB at the peak "
        f"(tokens alone {x.nbytes / 2**30:.3f}, all scores {n * n * 4 / 2**30:.0f}); error "
        f"{float((moved[:64].double() - truth).abs().max()):.1e}",
        flush=True,
    )


def growth(n: int = 256, d: int = 16, layers: int = 64) -> None:
    """Time σ₁ of the derivative of many layers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    A, V = (torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5 for _ in range(2))
    began = time.perf_counter()
    J = FlowDerivative(steps_of(SoftmaxField.of(A, V), 1.0, layers), x)
    found = singular_values(J, tol=1e-3)
    seconds = time.perf_counter() - began
    v, eta = found.v[0].view(x.shape), 1e-5
    ends = [
        integrate(SoftmaxField.of(A, V), x + s * eta * v, 1.0, solver="residual", steps=layers, frames=2).last
        for s in (1, -1)
    ]
    check = float((ends[0] - ends[1]).norm() / (2 * eta))
    print(
        f"σ₁ of {layers} layers, n = {n}, d = {d}: {float(found.value[0]):.4f} in [{float(found.lower[0]):.4f}, "
        f"{float(found.upper[0]):.4f}], {seconds:.1f} s, {found.products} products; by finite differences "
        f"{check:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--until", type=float, default=10.0)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, NumPy {np.__version__}")
    to_depth(arguments.tokens, arguments.until)
    if arguments.growth:
        growth()
    if arguments.big:
        big()

"""How many products with J and Jᵀ does each solver need for the same true error?

    python benchmarks/products.py [--error 1e-4 --error 1e-6] [--model minilm]

Every solver gets, for each random start, the cheapest budget with which the error of its σ₁ is small enough: howsmooth
its step limit, PROPACK and ARPACK their tolerance and the size of their Krylov space. The operator itself counts the
products, including the final evaluation of ‖Jv‖ and of the residual. The true error is printed after each count. The
last column is the number that howsmooth needs for an interval of width 1e-3 at 0.999, which the others do not give.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings

import numpy as np
import scipy.sparse.linalg as sla
import torch

from howsmooth.spectral import FunctionOperator, LinearOperator, singular_values

SIZE = 2000
SEEDS = range(5)


def prescribed() -> dict[str, np.ndarray]:
    """Return singular values; a diagonal J is no easier, since every solver starts from a random vector."""
    i = np.arange(SIZE)
    return {
        "geometric 0.9": 0.9**i,
        "power i^-1": 1 / (i + 1.0),
        "power i^-1/2": (i + 1.0) ** -0.5,
        "gap 2": np.r_[2.0, np.linspace(1, 0, SIZE - 1)],
        "clustered": np.r_[1 - 1e-3 * np.arange(10), np.linspace(0.9, 0, SIZE - 10)],
        "slope": np.linspace(1, 0, SIZE),
        "random": np.linalg.svd(np.random.default_rng(0).standard_normal((500, 500)), compute_uv=False),
    }


class Counted:
    """A diagonal or wrapped J that counts its products, as a torch operator and as a SciPy one."""

    def __init__(self, forward, adjoint, shape):
        """Store the two products and start counting at zero."""
        self.forward, self.adjoint, self.shape, self.count = forward, adjoint, shape, 0

    def _counted(self, product, x):
        self.count += 1
        return product(torch.as_tensor(x, dtype=torch.float64).reshape(-1))

    def torch(self) -> LinearOperator:
        """Return the operator for howsmooth."""
        return FunctionOperator(
            lambda v: self._counted(self.forward, v),
            lambda u: self._counted(self.adjoint, u),
            self.shape,
            dtype=torch.float64,
        )

    def scipy(self) -> sla.LinearOperator:
        """Return the operator for SciPy."""
        return sla.LinearOperator(
            self.shape,
            dtype=np.float64,
            matvec=lambda v: self._counted(self.forward, v).numpy(),
            rmatvec=lambda u: self._counted(self.adjoint, u).numpy(),
        )


def diagonal(values: np.ndarray) -> Counted:
    """Return a diagonal J."""
    d = torch.from_numpy(np.ascontiguousarray(values))
    return Counted(lambda v: d * v, lambda u: d * u, (len(d), len(d)))


def ours(J: Counted, seed: int, steps: int) -> float:
    """Return σ₁ by howsmooth with a step limit."""
    return singular_values(J.torch(), tol=1e-14, max_steps=steps, seed=seed, strict=False).value.item()


def propack(J: Counted, seed: int, budget: tuple[float, int]) -> float:
    """Return σ₁ by PROPACK with a tolerance and an iteration limit."""
    return sla.svds(
        J.scipy(), k=1, solver="propack", tol=budget[0], maxiter=budget[1], rng=seed, return_singular_vectors=False
    ).max()


def arpack_svds(J: Counted, seed: int, budget: tuple[float, int]) -> float:
    """Return σ₁ by ARPACK's svds with a tolerance and a basis size."""
    return sla.svds(
        J.scipy(), k=1, solver="arpack", tol=budget[0], ncv=budget[1], rng=seed, return_singular_vectors=False
    ).max()


def arpack_eigsh(J: Counted, seed: int, budget: tuple[float, int]) -> float:
    """Return σ₁ by ARPACK's eigsh on JᵀJ with a tolerance and a basis size."""
    S = J.scipy()
    gram = sla.LinearOperator((J.shape[1],) * 2, matvec=lambda v: S.rmatvec(S.matvec(v)), dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(J.shape[1])
    top = sla.eigsh(gram, k=1, tol=budget[0], ncv=budget[1], v0=start, return_eigenvectors=False)
    return math.sqrt(top[0])


TOLERANCES = [10.0**-p for p in np.arange(0, 10, 0.5)]
BUDGETS = {
    ours: [*range(1, 60), *range(60, 200, 4)],
    propack: [(tol, size) for tol in TOLERANCES for size in (5, 10, 15, 20, 30, 40, 60, 80, 120, 160)],
    arpack_svds: [(tol, size) for tol in TOLERANCES for size in (3, 5, 10, 15, 20, 30, 40, 60)],
    arpack_eigsh: [(tol, size) for tol in TOLERANCES for size in (3, 5, 10, 15, 20, 30, 40, 60)],
}


def attempts(solver, J: Counted, truth: float, seed: int) -> list[tuple[int, float]]:
    """Return (products, true relative error) for every budget that gave a result."""
    found = []
    for budget in BUDGETS[solver]:
        J.count = 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = solver(J, seed, budget)
        except (np.linalg.LinAlgError, sla.ArpackError, ValueError):
            continue  # no result with this budget
        found.append((J.count, abs(value - truth) / truth))
        if solver is ours and found[-1][1] < 1e-9:
            break  # further steps cannot help
    return found


def cheapest(found: list[tuple[int, float]], error: float) -> tuple[float, float]:
    """Return the attempt with the fewest products that reaches the error."""
    return min(((count, err) for count, err in found if err <= error), default=(math.inf, math.nan))


def model_layers(name: str) -> dict[str, tuple[Counted, float]]:
    """Return attention Jacobians of a real model at n = 64, with σ₁ from a small residual in float64."""
    import howsmooth

    model = howsmooth.load(name, dtype=torch.float64)
    text = " ".join(f"On day {i} the river rose {i * 7 % 13} hands, and the ferry waited." for i in range(60))
    cases = {}
    for layer in sorted({0, model.layers // 2, model.layers - 1}):
        J = model.attention(layer).jacobian(model.inputs(text, layer, n=64))
        truth = singular_values(J, tol=1e-10, stop="residual", max_steps=400).value.item()
        cases[f"{name} layer {layer}"] = (Counted(J.matvec, J.rmatvec, J.shape), truth)
    return cases


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--error", type=float, action="append", help="true relative error (1e-4 and 1e-6)")
    parser.add_argument("--model", default="minilm", help="also the layers of this model; '' for none")
    options = parser.parse_args()
    errors = options.error or [1e-4, 1e-6]
    cases = {name: (diagonal(values), values.max()) for name, values in prescribed().items()}
    if options.model:
        try:
            cases |= model_layers(options.model)
        except Exception as problem:  # the comparison of solvers does not need the model
            print(f"model layers left out: {type(problem).__name__}: {problem}", file=sys.stderr)

    ratios = {error: [] for error in errors}
    print(
        f"{'case':22} {'error':>6}"
        + "".join(f"{solver.__name__:>21}" for solver in BUDGETS)
        + f"{'ours/best':>11}{'certified 1e-3':>16}"
    )
    for name, (J, truth) in cases.items():
        seeds = SEEDS if name in prescribed() else SEEDS[:3]  # products of a model take longer
        runs = {solver: [attempts(solver, J, truth, seed) for seed in seeds] for solver in BUDGETS}
        J.count = 0
        singular_values(J.torch(), tol=1e-3)
        certified = J.count
        for error in errors:
            # The mean over random starts; a solver that failed on one of them has no count.
            means = {s: np.mean([cheapest(found, error) for found in runs[s]], axis=0) for s in BUDGETS}
            best = min(means[s][0] for s in BUDGETS if s is not ours)
            ratios[error].append(means[ours][0] / best)
            print(
                f"{name:22} {error:6.0e}"
                + "".join(f"{c:11.1f} ({e:7.1e})" for c, e in means.values())
                + f"{ratios[error][-1]:11.2f}{certified:16d}",
                flush=True,
            )
    for error in errors:
        print(
            f"error {error:.0e}: geometric mean of ours/best {np.exp(np.mean(np.log(ratios[error]))):.2f} "
            f"(target at most 1.2)"
        )


if __name__ == "__main__":
    main()

"""Certified intervals have their confidence: 10,000 solves against dense references, with a binomial test per cell.

A cell is a shape, a spectrum, a dtype, k, a tolerance and a confidence. Its members have the same matrix and
independent starts. Every shape meets every kind of spectrum in both dtypes; the rest is drawn from the test's number.
So many intervals must hold that a sound solver fails one cell in a million.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import binom

from howsmooth.spectral import MatrixOperator, singular_values
from tests.oracles.spectra import largest, matrix_with

SHAPES = ((12, 12), (5, 30), (30, 5), (24, 16), (10, 30), (1, 20), (20, 1), (40, 40))
KINDS = ("uniform", "clustered", "repeated", "geometric", "one above", "flat", "low rank")
DTYPES = (torch.float64, torch.float32)
CELLS, MEMBERS = len(SHAPES) * len(KINDS) * len(DTYPES), 90


@dataclass(frozen=True)
class Cell:
    rows: int
    cols: int
    values: tuple[float, ...]
    dtype: torch.dtype
    k: int
    tol: float
    confidence: float

    @classmethod
    def drawn(cls, seed: int) -> Cell:
        draw = random.Random(seed)
        rest, kind = divmod(seed, len(KINDS))
        dtype, shape = divmod(rest, len(SHAPES))
        rows, cols = SHAPES[shape]
        rank = min(rows, cols)
        gap = 10 ** draw.uniform(-6, -3)
        values = {
            "uniform": [draw.random() for _ in range(rank)],
            "clustered": [1 - gap * i for i in range(rank)],
            "repeated": [1.0] * (rank // 3 + 1) + [draw.random() for _ in range(rank)],
            "geometric": [2.0**-i for i in range(rank)],
            "one above": [1.0] + [0.5] * rank,
            "flat": [1.0] * rank,
            "low rank": [draw.random() if i < 3 else 0.0 for i in range(rank)],
        }[KINDS[kind]][:rank]
        scale = 10 ** draw.uniform(-6, 6)
        return cls(
            rows,
            cols,
            tuple(scale * value for value in sorted(values, reverse=True)),
            DTYPES[dtype],
            draw.randint(1, min(3, rank)),
            10 ** draw.uniform(-8, -2),
            draw.choice([0.9, 0.99, 0.999]),
        )


@pytest.mark.parametrize("seed", range(CELLS))
def test_intervals_have_the_stated_confidence(seed):
    cell = Cell.drawn(seed)
    matrix = matrix_with(np.array(cell.values), rows=cell.rows, cols=cell.cols, seed=seed).to(cell.dtype)
    truth = largest(matrix, cell.k)
    found = singular_values(
        MatrixOperator(matrix.expand(MEMBERS, *matrix.shape)),
        k=cell.k,
        tol=cell.tol,
        confidence=cell.confidence,
        seed=seed,
        strict=False,
    )
    rounding = 1e-14 * truth[0]  # of the dense solver
    outside = ((found.lower > truth + rounding) | (found.upper < truth - rounding)).any(1)
    most = int(binom.ppf(1 - 1e-6, MEMBERS, 1 - cell.confidence))
    assert int(outside.sum()) <= most, cell
    reached = torch.tensor([status == "converged" for status in found.status])
    narrow = (found.upper - found.lower <= cell.tol * (1 + 1e-9) * found.value) | (
        found.upper <= cell.tol * (1 + 1e-9) * found.value[:, :1]
    )
    assert bool(narrow[reached].all()), cell

"""Which ranks do Gaussian flows tend to? Flows with random matrices, and the limiting rank of each covariance.

    python -m experiments.gaussian_census [--runs 40] [--dim 3] [--until 30] [--out docs/images/gaussian_census.jsonl]

The entries of A and V are independent with variance 1/d, so that eigenvalues are of size one in every dimension; the
start is N(0, I). No run is left out: those that blow up, overflow or exceed the step limit are counted with their
status. An interrupted census is resumed by the same command; with the records in docs/images it only prints the table.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from experiments.records import Record, Records
from howsmooth.attention.fields import Field, L2Field, LinearField, SinkhornField, SoftmaxField
from howsmooth.dynamics import GaussianState, gaussian_flow, limiting_rank
from howsmooth.errors import InputError
from howsmooth.report.table import plain_table

FIELDS: dict[str, Callable[[Tensor, Tensor], Field]] = {
    "softmax": SoftmaxField.of,
    "l2": lambda A, V: L2Field(A, torch.eye(len(A), dtype=A.dtype), V),
    "sinkhorn": SinkhornField,
    "linear": LinearField,
}


def census(
    kind: str,
    d: int,
    runs: int,
    until: float,
    *,
    seed: int = 0,
    rtol: float = 1e-7,
    max_steps: int = 2000,
    done: Mapping[tuple, Record] | None = None,
) -> Iterator[Record]:
    """Yield one record per run, in order; records in `done` (by `key_of`) are reused.

    Example:
        >>> [record["run"] for record in census("linear", 2, 3, 0.1)]
        [0, 1, 2]
    """
    if kind not in FIELDS or min(d, runs, max_steps) < 1 or not 0 < until < math.inf:
        raise InputError(
            f"expected a kind among {', '.join(FIELDS)}, a dimension, runs and steps of at least 1 and a "
            f"positive time, got {kind!r}, {d}, {runs}, {max_steps} and {until}"
        )
    generator = torch.Generator().manual_seed(seed)
    for run in range(runs):
        A, V = (torch.randn(d, d, dtype=torch.float64, generator=generator) / math.sqrt(d) for _ in range(2))
        where = {
            "record": "limiting rank",
            "run": run,
            "kind": kind,
            "d": d,
            "until": until,
            "rtol": rtol,
            "max_steps": max_steps,
            "seed": seed,
        }
        if done and (key := key_of(where)) in done:
            yield done[key]
            continue
        flow = gaussian_flow(FIELDS[kind](A, V), GaussianState.standard(d), until, rtol=rtol, max_steps=max_steps)
        yield {**where, "A": A.tolist(), "V": V.tolist(), **limiting_rank(flow).as_record()}


def key_of(record: Record) -> tuple:
    """Return the settings that identify a record; KeyError for a record of another kind."""
    return tuple(record[name] for name in ("run", "kind", "d", "until", "rtol", "max_steps", "seed"))


def census_table(records: Sequence[Record], title: str) -> Table:
    """Return a table of the outcomes with their numbers of runs, the most frequent first."""
    groups: dict[tuple, list[Record]] = {}
    for record in records:
        groups.setdefault((record["status"], record["rank"], record["shape_rank"]), []).append(record)
    table = plain_table(Text(title, style="bold cyan", no_wrap=True, overflow="ignore"))
    for heading, style in (
        ("runs", "bold green"),
        ("ended", ""),
        ("rank of S", ""),
        ("rank of S/‖S‖", ""),
        ("not settled", "dim"),
    ):
        table.add_column(heading, justify="left" if heading == "ended" else "right", style=style)
    for (status, rank, shape), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        unsettled = sum(not record["settled"] for record in members)
        table.add_row(str(len(members)), status, str(rank), str(shape), str(unsettled or ""))
    return table


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gaussian_census",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--kind", choices=list(FIELDS), default="softmax", help="kind of attention")
    parser.add_argument("--dim", type=int, default=3)
    parser.add_argument("--until", type=float, default=30.0, help="time at which a run ends")
    parser.add_argument("--max-steps", type=int, default=2000, help="steps of the integrator in one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images/gaussian_census.jsonl"), help="the records, one JSON line each"
    )
    chosen = parser.parse_args(given)
    records: list[Record] = []
    stopped = False
    try:
        saved = Records(chosen.out, key_of, "records of a census", '{"record": "limiting rank"')
        for record in census(
            chosen.kind,
            chosen.dim,
            chosen.runs,
            chosen.until,
            seed=chosen.seed,
            max_steps=chosen.max_steps,
            done=saved.done,
        ):
            if key_of(record) not in saved.done:
                saved.append(record)
            records.append(record)
    except InputError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # tabulate the runs so far
        stopped = True
    if records:
        title = (
            f"{len(records)} Gaussian flows of {chosen.kind} attention, d = {chosen.dim}, random A and V, up to "
            f"t = {chosen.until:g}"
        )
        Console(width=120).print(census_table(records, title))
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())

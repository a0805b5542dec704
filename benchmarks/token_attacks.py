"""Number of next tokens that each attack flips per call of the model.

    python benchmarks/token_attacks.py [--texts 12] [--n 128] [--edits 2] [--calls 24] [--corpus alice]
                                       [--first 0] [--every 1] [--methods hotflip,probe] [--json FILE]

All methods attack the same texts with the same edit budget and at most the same number of calls; a call is one forward
or backward pass of one sequence. Each method stops at its first flip. A flip counts if two plain forward passes on the
saved token ids confirm it. Goal: no fewer flips per call than HotFlip's rule, and 50 texts in 20 minutes, that is 24 s
per text. The rates of HotFlip and `probe` are compared by a paired bootstrap over the texts. CPU time is printed
beside wall time, because a shared machine may have other load.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from howsmooth import load
from howsmooth.attack.tokens import (
    EditLimits,
    Greedy,
    HotFlip,
    Probe,
    Random,
    Singular,
    TargetModel,
    attack_text,
    verify,
)
from howsmooth.records import json_line
from howsmooth.texts.corpora import read_corpus

METHODS = {method.name: method for method in (Random(), HotFlip(), Greedy(), Probe(), Singular())}
SAVED_FIELDS = (
    "method",
    "success",
    "value",
    "clean",
    "edits",
    "calls",
    "seconds",
    "ids",
    "attacked_ids",
    "objective",
    "limits",
)
BOOTSTRAP_SAMPLES = 10_000


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--corpus", default="embedded", help="embedded, alice, ag_news or a file")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="index of the first chunk of the corpus")
    parser.add_argument("--every", type=int, default=1, help="use every n-th chunk of the corpus")
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--edits", type=int, default=2)
    parser.add_argument("--calls", type=int, default=24)
    parser.add_argument("--allow", default="substitute,insert,duplicate")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--json", help="append each attack to this file, as JSON lines")
    given = parser.parse_args()

    target = TargetModel(load(given.model))
    corpus = read_corpus(given.corpus).content
    chunks = target.model.chunks(corpus, given.n, given.first + given.texts * given.every)[given.first :: given.every]
    limits = EditLimits(edits=given.edits, allow=tuple(given.allow.split(",")))
    totals = {name: [0.0, 0.0] for name in given.methods.split(",")}
    counts = {name: [] for name in totals}  # (flips, calls) of each text
    for number, chunk in enumerate(chunks):
        line = []
        for name, total in totals.items():
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            found = attack_text(target, chunk, METHODS[name], limits=limits, calls=given.calls, seed=number)
            total[0] += time.perf_counter() - wall_start
            total[1] += time.process_time() - cpu_start
            verification = verify(target, found.as_record())
            if not verification.holds:
                raise SystemExit(f"text {number}, {name}: {'; '.join(verification.wrong)}")
            counts[name].append((found.success, found.calls))
            line.append(f"{name} {'flip' if found.success else '-'} {found.calls}")
            if given.json:
                record = found.as_record()
                with open(given.json, "a", encoding="utf-8") as file:
                    file.write(json_line({"text": number, **{key: record[key] for key in SAVED_FIELDS}}) + "\n")
        print(f"text {number}: {found.clean:6.2f}   " + ", ".join(line), flush=True)
    print(f"\n{given.model}, {given.n} tokens of {given.corpus}, {given.edits} edits, at most {given.calls} calls\n")
    print(f"{'method':<10}{'verified flips':>16}{'calls':>8}{'flips per 100 calls':>22}{'s per text':>12}{'CPU s':>8}")
    for name, (seconds, cpu_seconds) in totals.items():
        flips, calls = np.sum(counts[name], axis=0)
        print(
            f"{name:<10}{flips:>9} of {len(chunks):<3}{calls:>8}{100 * flips / calls:>22.1f}"
            f"{seconds / len(chunks):>12.1f}{cpu_seconds / len(chunks):>8.1f}"
        )
    if {"hotflip", "probe"} <= set(counts):
        for rate, (low, value, high) in differences(counts["probe"], counts["hotflip"]).items():
            print(f"probe − hotflip, {rate}: {value:.1f}, 95 % interval {low:.1f} to {high:.1f}")


def differences(one: list[tuple[bool, int]], other: list[tuple[bool, int]]) -> dict[str, tuple[float, float, float]]:
    """Return the difference of the rates of two methods with its 95 % interval, by a paired bootstrap over the texts.

    Args:
        one: Success and calls of the first method on each text.
        other: The same of the second method.

    Returns:
        For each rate, the 2.5 % quantile, the value and the 97.5 % quantile.
    """
    pair = np.array([one, other], dtype=float)  # (method, text, flips | calls)
    texts = np.random.default_rng(0).integers(pair.shape[1], size=(BOOTSTRAP_SAMPLES, pair.shape[1]))
    intervals = {}
    for name, rate in (
        ("flips per 100 calls", lambda t: 100 * t[..., 0].sum(-1) / t[..., 1].sum(-1)),
        ("flips per 100 texts", lambda t: 100 * t[..., 0].mean(-1)),
    ):
        resampled, value = (np.subtract(*rate(t)) for t in (pair[:, texts], pair))
        intervals[name] = (*np.quantile(resampled, [0.025]), value, *np.quantile(resampled, [0.975]))
    return intervals


if __name__ == "__main__":
    main()

"""How fast is a study, compared with a corrected version of the paper's procedure? What does the engine cost?

Each cell of a subset of the MiniLM grid (layers × lengths × samples, one corpus) is computed by both in one run,
alternating cell by cell so that other load on the machine affects both:

    study   a bundle as a worker runs it: one forward pass for all layers and samples of a length, then certified
            solves, short samples in batches (interval of relative width 1e-3 at 0.999)
    paper   per sample and layer: a forward pass, then power iteration (`spectral.power_method`) on the derivative of
            transformers' own eager layer by autograd, in float32, stopped by the published rule or after 100 steps

Times are processor times of this process, on one thread if OMP_NUM_THREADS is 1. The error is relative to a float64
solve to 1e-9. The ratio for the whole grid is that of the total times of all cells. Then the engine alone, in
wall-clock time: tasks that compute nothing, through pipe, scheduler and store.

    OMP_NUM_THREADS=1 python benchmarks/study.py [--lengths 16,64,256] [--samples 4] [--text FILE]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from howsmooth import load, local_lipschitz
from howsmooth.lipschitz import AutodiffJacobian
from howsmooth.questions.spec import spec_of
from howsmooth.spectral import power_method
from howsmooth.studies.engines import local_engine
from howsmooth.studies.plan import prepare
from howsmooth.studies.store import Store
from howsmooth.studies.worker import run_bundle


def eager_layer(model, layer: int):
    """Return the attention of a layer as computed by transformers' eager modules."""
    attention = model.network.encoder.layer[layer].attention
    attention.self.config._attn_implementation = "eager"
    return lambda x: attention.output.dense(attention.self(x.unsqueeze(0))[0]).squeeze(0)


def paper(model, ids: torch.Tensor, layer: int) -> tuple[float, int]:
    """Return the constant and the steps by power iteration with the published stopping rule."""
    x = model.activations(ids, [layer])[layer]
    found = power_method(AutodiffJacobian(eager_layer(model, layer), x, check=False), threshold=1e-4, max_steps=100)
    return float(found.value[0]), found.steps


@dataclass(frozen=True)
class EmptyBundle:
    """Tasks that compute nothing."""

    tasks: list[str]

    def without(self, done: set[str]):
        """Return the bundle without the tasks that are done, or None if none is left."""
        left = [task for task in self.tasks if task not in done]
        return EmptyBundle(left) if left else None


def noop(bundle: EmptyBundle):
    """Yield a row for each task."""
    yield [(task, {"value": 1.0}, None) for task in bundle.tasks]


def engine_overhead(count: int) -> tuple[float, int]:
    """Return the seconds per task, and the growth of the driver's peak memory in KiB.

    The clock starts at the first row, so that the start of a worker is not counted.
    """
    with tempfile.TemporaryDirectory() as folder, Store.write(Path(folder) / "s.sqlite") as store:
        store.plan({}, (str(i) for i in range(count + 1)))
        began = peak = 0
        bundles = (EmptyBundle([str(i)]) for i in range(count + 1))
        for i, results in enumerate(local_engine(bundles, noop, workers=1, threads=1)):
            store.add(results)
            if i == 0:
                began, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert store.counts()["done"] == count + 1
        return (time.perf_counter() - began) / count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="16,32,64,128,256,512")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--text", default="embedded")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--tasks", type=int, default=5000)
    arguments = parser.parse_args()
    spec = spec_of(
        {
            "models": "minilm",
            "texts": arguments.text,
            "lengths": arguments.lengths,
            "samples": arguments.samples,
            "tol": arguments.tol,
            "special_tokens": "none",
        }
    )
    plan, model = prepare(spec), load("minilm")
    exact = load("minilm", dtype="float64")
    print(
        f"MiniLM, 6 layers × {arguments.samples} samples, float32, {torch.get_num_threads()} thread(s), "
        f"torch {torch.__version__}, interval {arguments.tol:g}"
    )
    print("   n   ours [s]  paper [s]  ratio   ours: worst error   paper: worst error, steps at most")
    totals = {"ours": 0.0, "paper": 0.0}
    by_length: dict[int, list] = {}
    for bundle in plan.bundles():
        began = time.process_time()
        records = [result.record for results in run_bundle(bundle) for result in results]
        ours = time.process_time() - began
        theirs, errors, their_errors, most = 0.0, [], [], 0
        for record in records:
            samples = bundle.samples
            ids = torch.tensor(samples.token_ids[samples.numbers.index(record["sample"])])
            began = time.process_time()
            value, steps = paper(model, ids, record["layer"])
            theirs += time.process_time() - began
            x = model.activations(ids, [record["layer"]])[record["layer"]].double()
            truth = local_lipschitz(exact.attention(record["layer"]), x, tol=1e-9, strict=False).value
            errors.append(abs(record["value"] / truth - 1))
            their_errors.append(abs(value / truth - 1))
            most = max(most, steps)
        by_length.setdefault(bundle.samples.n, []).append((ours, theirs, max(errors), max(their_errors), most))
    for n, cells in by_length.items():
        ours, theirs = (sum(cell[i] for cell in cells) for i in (0, 1))
        totals["ours"] += ours
        totals["paper"] += theirs
        print(
            f"{n:4d} {ours:10.2f} {theirs:10.2f} {theirs / ours:6.1f}   {max(c[2] for c in cells):17.1e}   "
            f"{max(c[3] for c in cells):18.1e}, {max(c[4] for c in cells)}",
            flush=True,
        )
    print(f"grid {totals['ours']:9.2f} {totals['paper']:10.2f} {totals['paper'] / totals['ours']:6.1f}   (target 4.5)")
    each, grown = engine_overhead(arguments.tasks)
    print(
        f"engine: {1e3 * each:.2f} ms a task over {arguments.tasks} tasks (target 5), driver's peak grew by {grown} KiB"
    )


if __name__ == "__main__":
    main()

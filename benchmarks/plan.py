"""Accuracy of `howsmooth plan`: predicted and actual time and peak memory of each case; PASS within 30 %.

    python benchmarks/plan.py [--weights gpt2_attention.safetensors] [--device cuda] [--cpu-time] [--out FILE.jsonl]

Each case is planned and then run, in its own process, by the functions behind `howsmooth plan` and `howsmooth
measure`. On a CPU, the cases are MiniLM on the embedded text and, with --weights, GPT-2's layers on random tokens;
with --device cuda, those layers at 4,096, 32,768 and 131,072 tokens, certified to 1 %. --cpu-time compares CPU time
instead of wall time, for machines with other load. Memory is that of the process on a CPU and that of PyTorch on a
GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

TOLERANCE = 0.3
CPU = [
    ("minilm", dict(lengths=(128,), samples=2, tol=1e-3)),
    ("minilm", dict(lengths=(64, 256), samples=1, tol=1e-3)),
    ("weights", dict(lengths=(512,), layers=(6,), samples=1, tol=1e-2)),
    ("weights", dict(lengths=(1024,), layers=(0, 6), samples=1, tol=1e-2)),
]
CUDA = [
    ("weights", dict(lengths=(4096,), layers=(0, 6), samples=1, tol=1e-2)),
    ("weights", dict(lengths=(32768,), layers=(0, 6), samples=1, tol=1e-2)),
    ("weights", dict(lengths=(131072,), layers=(6,), samples=1, tol=1e-2)),
]


def run(case: str, options: dict, weights: str | None, device: str, cpu_time: bool) -> dict:
    """Plan a case, run it, and return the record of both."""
    from howsmooth.models import load
    from howsmooth.models.memory import peak_memory, reset_peak_memory
    from howsmooth.records.provenance import provenance
    from howsmooth.studies import prepare_model, records_of, spec_of
    from howsmooth.studies.costs import PLAN_PAIR_SECONDS, CostModel

    clock = time.process_time if cpu_time else time.perf_counter
    inputs = "normalised" if case == "weights" else "text"
    model = load(weights if case == "weights" else case, device=device)
    plan = prepare_model(spec_of({"inputs": inputs, **options}), model)
    start = clock()
    forecast = CostModel(model, plan.planned_models[0], clock=clock, max_pair_seconds=PLAN_PAIR_SECONDS).forecast()
    planning = clock() - start
    if device == "cuda":
        torch.cuda.empty_cache()
    reset_peak_memory(device)
    start = clock()
    records = list(records_of(plan))
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = clock() - start
    return {
        "case": case,
        **options,
        "device": device,
        "planning": planning,
        "plan": forecast.as_record(),
        "predicted_seconds": forecast.seconds - forecast.first_call,
        "seconds": seconds,
        "predicted_bytes": forecast.bytes,
        "bytes": peak_memory(device),
        "steps": [record["steps"] for record in records],
        "status": sorted({record["status"] for record in records}),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "clock": clock.__name__,
        **provenance(),
    }


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="a safetensors file with GPT-2's attention layers")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each case")
    arguments = parser.parse_args()
    cases = CUDA if arguments.device == "cuda" else CPU
    cases = [(name, options) for name, options in cases if arguments.weights or name != "weights"]
    print(
        f"{'case':44} {'plan [s]':>9} {'pred. [s]':>9} {'took [s]':>9} {'ratio':>6} {'pred. GiB':>9} {'took GiB':>9} "
        f"{'ratio':>6}  steps predicted, taken"
    )
    for case, options in cases:
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawned) as pool:  # so that each case has its own memory
            found = pool.submit(run, case, options, arguments.weights, arguments.device, arguments.cpu_time).result()
        time_ratio = found["predicted_seconds"] / found["seconds"]
        ratio = found["predicted_bytes"] / found["bytes"]
        passed = all(1 - TOLERANCE <= r <= 1 + TOLERANCE for r in (time_ratio, ratio))
        predicted_steps = ", ".join(f"{cost['steps']:.0f}" for cost in found["plan"]["lengths"])
        shown = (f"{key}={options[key]}" for key in ("lengths", "layers") if key in options)
        label = " ".join([case, *shown])
        print(
            f"{label:44} {found['planning']:9.2f} {found['predicted_seconds']:9.2f} {found['seconds']:9.2f} "
            f"{time_ratio:6.2f} {found['predicted_bytes'] / 2**30:9.2f} {found['bytes'] / 2**30:9.2f} {ratio:6.2f}  "
            f"{predicted_steps}; {sum(found['steps']) / len(found['steps']):.1f}  {'PASS' if passed else 'MISS'}",
            flush=True,
        )
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

"""Does a run take what its plan said? Predicted and actual seconds and peak memory, case by case, PASS within 30 %.

    python benchmarks/plan.py [--weights gpt2_attention.safetensors] [--device cuda] [--cpu-time] [--out FILE.jsonl]

Each case is planned and then run, in one process of its own, by the functions behind `howsmooth plan` and `howsmooth
measure`. On a CPU MiniLM on the embedded text and, with --weights, GPT-2's layers on random tokens; with --device cuda
those layers at 4,096, 32,768 and 131,072 tokens, certified to 1 %. --cpu-time compares processor time instead of wall
time, for machines that are busy with other things. Memory is the process's on a CPU and PyTorch's on a GPU.
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

WITHIN = 0.3
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


def run(what: str, options: dict, weights: str | None, device: str, cpu_time: bool) -> dict:
    """One case: its plan, then the run itself."""
    from howsmooth.models import load
    from howsmooth.studies import prepare_model, records_of, spec_of
    from howsmooth.studies.costs import PLAN_PAIR_SECONDS, CostModel
    from howsmooth.studies.memory import peak_memory, reset_peak_memory
    from howsmooth.studies.provenance import provenance

    clock = time.process_time if cpu_time else time.perf_counter
    inputs = "normalised" if what == "weights" else "text"
    model = load(weights if what == "weights" else what, device=device)
    plan = prepare_model(spec_of({"inputs": inputs, **options}), model)
    began = clock()
    said = CostModel(model, plan.planned_models[0], clock=clock, max_pair_seconds=PLAN_PAIR_SECONDS).forecast()
    planning = clock() - began
    if device == "cuda":
        torch.cuda.empty_cache()
    reset_peak_memory(device)
    began = clock()
    records = list(records_of(plan))
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = clock() - began
    return {
        "case": what,
        **options,
        "device": device,
        "planning": planning,
        "plan": said.as_record(),
        "predicted_seconds": said.seconds - said.first_call,
        "seconds": seconds,
        "predicted_bytes": said.bytes,
        "bytes": peak_memory(device),
        "steps": [record["steps"] for record in records],
        "status": sorted({record["status"] for record in records}),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "clock": clock.__name__,
        **provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="a safetensors file with GPT-2's attention layers")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each case")
    arguments = parser.parse_args()
    cases = CUDA if arguments.device == "cuda" else CPU
    cases = [case for case in cases if arguments.weights or case[0] != "weights"]
    print(
        f"{'case':44} {'plan [s]':>9} {'said [s]':>9} {'took [s]':>9} {'ratio':>6} {'said GiB':>9} {'took GiB':>9} "
        f"{'ratio':>6}  steps said, taken"
    )
    for what, options in cases:
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawned) as pool:  # memory of one case is not another's
            found = pool.submit(run, what, options, arguments.weights, arguments.device, arguments.cpu_time).result()
        time_ratio = found["predicted_seconds"] / found["seconds"]
        ratio = found["predicted_bytes"] / found["bytes"]
        passed = all(1 - WITHIN <= r <= 1 + WITHIN for r in (time_ratio, ratio))
        said = ", ".join(f"{cost['steps']:.0f}" for cost in found["plan"]["lengths"])
        shown = (f"{key}={options[key]}" for key in ("lengths", "layers") if key in options)
        label = " ".join([what, *shown])
        print(
            f"{label:44} {found['planning']:9.2f} {found['predicted_seconds']:9.2f} {found['seconds']:9.2f} "
            f"{time_ratio:6.2f} {found['predicted_bytes'] / 2**30:9.2f} {found['bytes'] / 2**30:9.2f} {ratio:6.2f}  "
            f"{said}; {sum(found['steps']) / len(found['steps']):.1f}  {'PASS' if passed else 'MISS'}",
            flush=True,
        )
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

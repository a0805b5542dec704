"""What a monitor costs, and how far its values are from certified ones, over a whole training.

Processor time, not wall time: other programs may run beside it. The certified values are computed outside of both
times, with an interval of relative width 1e-3, at every measurement.

    python benchmarks/monitor.py --json monitor.jsonl
    python benchmarks/monitor.py --width 256 --length 256 --layers 6 --steps 300
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import mean

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

import howsmooth
from howsmooth.texts.corpora import read_corpus


def run(options: argparse.Namespace, maps: tuple[str, ...], every: int) -> dict[str, object]:
    """Train a small GPT on the letters of Alice, and return times and errors."""
    torch.manual_seed(0)
    content = "".join(read_corpus(options.text).documents)
    ids = torch.tensor([min(max(ord(letter) - 32, 0), 95) for letter in content])
    n = options.length
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=96,
            n_positions=n,
            n_embd=options.width,
            n_layer=options.layers,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    probe = ids[5000 : 5000 + n]
    monitor = howsmooth.Monitor(network, every=every, maps=maps, probe=probe)
    generator = torch.Generator().manual_seed(1)
    training = monitoring = 0.0
    errors: list[float] = []
    loss = torch.tensor(0.0)
    for step in range(options.steps):
        began = time.process_time()
        starts = torch.randint(len(ids) - n, (options.batch,), generator=generator)
        batch = torch.stack([ids[start : start + n] for start in starts])
        loss = network(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        middle = time.process_time()
        found = monitor.step(step)
        training, monitoring = training + middle - began, monitoring + time.process_time() - middle
        if found is not None and not options.no_certificates:
            model = howsmooth.load(network.eval())
            network.train()
            for record in found:
                at = model.map_at(probe, record["layer"], record["map"])
                exact = howsmooth.local_lipschitz(at.f, at.x, tol=1e-3)
                errors.append(abs(record["value"] / exact.value - 1))
    return {
        "width": options.width,
        "length": n,
        "layers": options.layers,
        "batch": options.batch,
        "steps": options.steps,
        "threads": torch.get_num_threads(),
        "maps": maps,
        "every": every,
        "training_seconds": training,
        "monitor_seconds": monitoring,
        "overhead": monitoring / training,
        "values": len(errors),
        "within_1_percent": mean(error < 0.01 for error in errors) if errors else None,
        "largest_error": max(errors, default=None),
        "mean_steps": mean(record["steps"] for record in monitor.records),
        "final_loss": loss.item(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Run each choice of maps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 128), ("length", 128), ("layers", 4), ("batch", 8), ("steps", 1000), ("every", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--text", default="alice")
    parser.add_argument("--maps", default="attention;layer", help="choices of maps, separated by ;")
    parser.add_argument("--no-certificates", action="store_true", help="only the times")
    parser.add_argument("--json", help="append the results to this file")
    options = parser.parse_args()
    logging.set_verbosity_error()
    for maps in options.maps.split(";"):
        line = json.dumps(run(options, tuple(maps.split(",")), options.every))
        print(line, flush=True)
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()

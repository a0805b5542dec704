"""Real data that some tests need, and small files in the same format for all others.

The folder `DATA` is $HOWSMOOTH_DATA, or `shared/data` beside the repository. Tests about the real files have the mark
`needs(...)`. Tests that need only the format write files with `make_gpt2`, `make_alice` and `make_ag_news`.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

DATA = Path(os.environ.get("HOWSMOOTH_DATA") or Path(__file__).parents[2] / "shared" / "data").expanduser()
GPT2, ALICE, AG_NEWS = "gpt2_attention.safetensors", "alice.txt", "ag_news_test.csv"
CONTENTS = {
    GPT2: "contains wpe.weight and, for layers 0, 6 and 11, ln_1, attn.c_attn and attn.c_proj of OpenAI's GPT-2 small, "
    "in float32 and named as on the Hugging Face Hub",
    ALICE: "is the text of Alice's Adventures in Wonderland (public domain)",
    AG_NEWS: "is the test split of AG_NEWS: 7600 rows of class, title and description",
}

HEADS = 12  # of GPT-2 small; the file does not contain it
LAYERS = (0, 6, 11)
WIDTH = 4 * HEADS
POSITIONS = 64

_TEXT = (
    "The river was low that summer, and the old bridge stood on dry stones.",
    "Every morning a clerk walked across it with a ledger under his arm and counted the boats below.",
    "There were never more than seven of them; on Sundays there were none.",
    "He wrote the number down, closed the ledger and went home by another road.",
    "Nobody had asked him to do this, but nobody had told him to stop either.",
    "When the rain came back in October, the stones were covered and the boats were too many to count.",
)
_NEWS = (
    (1, "Talks resume", "Ministers met on Monday to discuss the border, and agreed to meet again within a month."),
    (2, "Late goal settles the final", "A header in the last minute gave the visitors their first cup in nine years."),
    (3, "Oil falls for a third day", "Prices fell on Tuesday after stocks rose by more than analysts had expected."),
    (4, "Probe reaches its orbit", "Engineers said the spacecraft had fired its engine for forty minutes, as planned."),
    (3, "Bank raises rates", "The central bank raised its main rate by a quarter of a point, as was expected."),
    (4, "New chip uses less power", 'The maker says that "idle" phones with the new chip last two days longer.'),
)


def needs(*names: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test, with a reason, if one of the real files `names` is missing."""
    missing = [name for name in names if not (DATA / name).is_file()]
    return pytest.mark.skipif(bool(missing), reason=why_missing(missing))


def why_missing(names: list[str]) -> str:
    """Return the reason for a skip: the missing files, where they were searched, and how to get them."""
    listed = ", ".join(names)
    contents = "; ".join(f"{name} {CONTENTS[name]}" for name in names)
    return f"no {listed} in {DATA}: set HOWSMOOTH_DATA to a folder with {listed} ({contents})"


SOURCES = ["made", pytest.param("real", marks=needs(GPT2))]  # arguments of `gpt2_file`, for parametrize


def gpt2_file(source: str, folder: Path) -> Path:
    """Return the real file of GPT-2's attention layers, or write one with random weights to `folder`."""
    return DATA / GPT2 if source == "real" else make_gpt2(folder)


def make_gpt2(folder: Path, *, width: int = WIDTH, seed: int = 0) -> Path:
    """Write a file with the tensors of the real one, with a smaller width and random weights; return its path."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, spread: float) -> torch.Tensor:
        return spread * torch.randn(shape, generator=generator)

    tensors = {"wpe.weight": normal(POSITIONS, width, spread=0.1)}
    for layer in LAYERS:
        tensors |= {
            f"h.{layer}.ln_1.weight": 1 + normal(width, spread=0.2),
            f"h.{layer}.ln_1.bias": normal(width, spread=0.1),
            # Conv1D stores (in, out).
            f"h.{layer}.attn.c_attn.weight": normal(width, 3 * width, spread=width**-0.5),
            f"h.{layer}.attn.c_attn.bias": normal(3 * width, spread=0.1),
            f"h.{layer}.attn.c_proj.weight": normal(width, width, spread=width**-0.5),
            f"h.{layer}.attn.c_proj.bias": normal(width, spread=0.1),
        }
    path = folder / GPT2
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def make_alice(folder: Path) -> Path:
    """Write a short text with Windows line ends, like the real file; return its path."""
    path = folder / ALICE
    path.write_text("\n".join(_TEXT) + "\n", encoding="utf-8", newline="\r\n")
    return path


def make_ag_news(folder: Path) -> Path:
    """Write a few rows of class, title and description, quoted like the real file; return its path."""
    path = folder / AG_NEWS
    with open(path, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
            (str(label), title, description) for label, title, description in _NEWS
        )
    return path

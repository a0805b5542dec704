"""What is offered: limits on a computation, and the models that a visitor may name.

Embedded models, those in the folders that were given, and the Hub where it is allowed. A name that a visitor types is
looked up among these and never read as a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from howsmooth.errors import InputError
from howsmooth.models import EMBEDDED, Model, load

_KEPT = 2  # models in memory
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Limits:
    """Folders whose models are offered, whether names on the Hub are taken, and how much one computation may be.

    >>> Limits(max_tokens=128).max_tokens
    128
    """

    folders: tuple[Path, ...] = ()
    hub: bool = False
    max_tokens: int = 512
    max_memory: int = 2 * 2**30  # bytes, of one solve
    max_characters: int = 1_000_000  # of a text: tokens are counted before it is cut
    waiting: int = 16  # computations in the queue, of all visitors together

    def __post_init__(self):
        for folder in self.folders:
            if not Path(folder).is_dir():
                raise InputError(f"expected a folder of models, got {folder}; name one that exists")
        if self.max_tokens < 16:
            raise InputError(f"expected at least 16 tokens to be allowed, got {self.max_tokens}; allow more")


class ModelCatalog:
    """Names, what they stand for, and the few models that were loaded last."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._load = lru_cache(maxsize=_KEPT)(load)

    def names(self) -> list[str]:
        """Embedded models, then folders and GGUF files as FOLDER/NAME."""
        return [*EMBEDDED, *self._local()]

    def load(self, name: str) -> Model:
        """The model of this name; weights are safetensors or GGUF, and no code that comes with them is run."""
        return self._load(self.place(name))

    def place(self, name: str) -> str:
        """What `howsmooth.load` is asked for; refused unless it is on offer."""
        name = (name or "").strip()
        if name in EMBEDDED:
            return name
        local = self._local()
        if name in local:
            return str(local[name])
        if self.limits.hub and _HUB_NAME.fullmatch(name) and ".." not in name:
            if Path(name).exists():  # a folder beside the server goes before the Hub in `load`
                raise InputError(
                    f"expected a name on the Hub, got {name!r}, a place on this machine; offer its folder with --models"
                )
            return name
        more = "" if self.limits.hub else "; a server started with --hub also takes names on the Hugging Face Hub"
        raise InputError(f"expected a model among {', '.join(self.names())}, got {name[:80]!r}{more}")

    def _local(self) -> dict[str, Path]:
        found = {}
        for folder in self.limits.folders:
            root = Path(folder).resolve()
            for path in [root, *sorted(root.iterdir())]:
                try:
                    inside = path.resolve()  # a link may lead out
                except (OSError, RuntimeError):  # or to itself
                    continue
                if not inside.is_relative_to(root):
                    continue
                if (inside / "config.json").is_file() or (inside.is_file() and inside.suffix == ".gguf"):
                    found[root.name if path == root else f"{root.name}/{path.name}"] = inside
        return found

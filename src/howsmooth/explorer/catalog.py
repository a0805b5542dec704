"""The models that visitors may use.

These are the embedded models, the models in the folders that the server was given, and, if allowed, those on the Hub.
A name that a visitor types is looked up among them and never used as a path.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from howsmooth.attack.objectives import TEXT_OBJECTIVES
from howsmooth.errors import InputError
from howsmooth.explorer.limits import Limits
from howsmooth.models.embedded import EMBEDDED
from howsmooth.models.loading import load
from howsmooth.models.model import Model

_MAX_LOADED = 2  # models in memory
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class ModelCatalog:
    """The models on offer by name, with a cache of those loaded last."""

    def __init__(self, limits: Limits) -> None:
        """Offer the models that the limits allow."""
        self.limits = limits
        self._load = lru_cache(maxsize=_MAX_LOADED)(load)

    def names(self) -> list[str]:
        """Return the names of the embedded models, then of folders and GGUF files as FOLDER/NAME."""
        return [*EMBEDDED, *self._local()]

    def load(self, name: str) -> Model:
        """Load a model from safetensors or GGUF, without executing code that comes with it."""
        return self._load(self.location(name))

    def location(self, name: str | None) -> str:
        """Return the argument of `howsmooth.load` for a name; raise InputError unless the model is on offer."""
        name = (name or "").strip()
        if name in EMBEDDED:
            return name
        local = self._local()
        if name in local:
            return str(local[name])
        if self.limits.hub and _HUB_NAME.fullmatch(name) and ".." not in name:
            if Path(name).exists():  # `load` would prefer a local folder to the Hub
                raise InputError(
                    f"expected a name on the Hub, got {name!r}, a path on this machine; "
                    "offer its folder with --model-folder"
                )
            return name
        more = "" if self.limits.hub else "; a server started with --hub also takes names on the Hugging Face Hub"
        raise InputError(f"expected a model among {', '.join(self.names())}, got {name[:80]!r}{more}")

    def objectives(self, name: str) -> list[str]:
        """Return the objectives of attacks on tokens that a model has: those on the next token need a language head.

        A model that is not in the list is not loaded, and all objectives are returned.
        """
        if name not in self.names():
            return list(TEXT_OBJECTIVES)
        try:
            _ = self.load(name).language_head
        except InputError:
            return [name for name, objective in TEXT_OBJECTIVES.items() if not objective.uses_last_token]
        return list(TEXT_OBJECTIVES)

    def _local(self) -> dict[str, Path]:
        found = {}
        for folder in self.limits.folders:
            root = Path(folder).resolve()
            for path in [root, *sorted(root.iterdir())]:
                try:
                    target = path.resolve()  # a link may point outside of the folder
                except (OSError, RuntimeError):  # or to itself
                    continue
                if not target.is_relative_to(root):
                    continue
                if (target / "config.json").is_file() or (target.is_file() and target.suffix == ".gguf"):
                    found[root.name if path == root else f"{root.name}/{path.name}"] = target
        return found

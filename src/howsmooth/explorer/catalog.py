"""The models that visitors may use, and what a visitor asks of one of them.

These are the embedded models, the models in the folders that the server was given, and, if allowed, those on the Hub.
A name that a visitor types is looked up among them and never used as a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.attack.objectives import TEXT_OBJECTIVES
from howsmooth.errors import InputError
from howsmooth.models.embedded import EMBEDDED
from howsmooth.models.loading import load
from howsmooth.questions.command_line import command_line
from howsmooth.questions.inputs import resolve
from howsmooth.studies.plan import prepare_model
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.explorer.limits import Limits
    from howsmooth.models.model import Model
    from howsmooth.questions.spec import ModelSpec


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


@dataclass(frozen=True)
class Choice:
    """A spec that was checked and can be computed.

    Attributes:
        asked: What the visitor asked, with the lengths that are measured.
        model: The loaded model.
        text: The text.
        settings: The same with the memory limit, for `howsmooth.studies`.
        note: Which part of the text is measured.
    """

    asked: Any
    model: Model
    text: Corpus
    settings: Any
    note: str

    @property
    def command(self) -> str:
        """The command that computes the same, with the text in a file."""
        return command_line(self.asked.replace(texts="text.txt"))

    def layer(self, layer: int, *, each_head: bool = False) -> Choice:
        """Return the same work for one layer, or for each of its heads alone."""
        heads = tuple(range(self.model.heads)) if each_head else None
        changes = {"layers": (layer,), "heads": heads, "map": "head" if each_head else self.settings.map}
        return replace(self, settings=self.settings.model_copy(update=changes))


def prepare(
    spec: ModelSpec,
    text: str,
    catalog: ModelCatalog,
    lengths: Callable[[int], tuple[int, ...]] = lambda longest: (longest,),
) -> Choice:
    """Load the model, check the spec against it and the limits, and truncate the text.

    Args:
        spec: A question about one model on offer, with the longest length.
        text: The text.
        catalog: The models on offer.
        lengths: Returns the lengths to measure for the longest that the text, the model and the limits allow.

    Raises:
        InputError: With a message for the visitor, if it cannot be computed.
    """
    limits = catalog.limits
    if len(text) > limits.max_characters:
        raise InputError(
            f"expected a text of at most {limits.max_characters:,} characters, got {len(text):,}; paste a part of it"
        )
    model = catalog.load(spec.models[0].name)
    corpus = Corpus("pasted", (text,))
    cutter = model.cutter(corpus)
    total = cutter.tokens + cutter.special_count
    wanted = min(total, max(spec.lengths))
    n = min(wanted, limits.max_tokens)
    if model.positions is not None:
        n = min(n, model.positions)
    asked = spec.replace(lengths=lengths(n), samples=1)
    # Whatever is asked, its solves take about as much memory as a measurement: this raises before anything is computed.
    measured = asked.asking("measure", name=asked.name, max_memory=limits.max_memory)
    settings = resolve(model, corpus, measured)
    prepare_model(settings, model, corpus)
    if asked.question != "measure":
        settings = asked.model_copy(update={"max_memory": limits.max_memory})
    note = f"all {total:,} tokens" if n == total else f"the first {n:,} of {total:,} tokens"
    if n < wanted:
        reason = f"{model.name} has {n:,} positions" if n == model.positions else "the limit of this server"
        note += f" ({reason})"
    return Choice(asked, model, corpus, settings, note)

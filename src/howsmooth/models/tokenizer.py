"""The tokenizer that belongs to a model, or the one the user names; or why there is none."""

from __future__ import annotations

import os

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from howsmooth.errors import InputError
from howsmooth.models.place import Place, locate
from howsmooth.models.quiet import quiet_transformers


def find_tokenizer(
    asked: str | os.PathLike | PreTrainedTokenizerBase | None,
    place: Place,
    vocabulary: int,
    cache_dir,
    remote: dict,
) -> tuple[object | None, str, str | None]:
    """Return (tokenizer, why there is none, where it came from)."""
    if asked is None and place.path is not None:
        tokenizer, reason = _read(place, remote)
        return tokenizer, reason, None if tokenizer is None else "the model's own"
    if asked is None and place.tokenizer is None:
        return None, "a model given as an object comes without one", None
    if isinstance(asked, PreTrainedTokenizerBase):
        name = asked.name_or_path or type(asked).__name__
        _refuse_larger(asked, name, vocabulary)
        return asked, "", name
    if asked is not None and (not isinstance(asked, (str, os.PathLike)) or not os.fspath(asked)):
        what = "an empty one" if isinstance(asked, str) else f"an object of type {type(asked).__name__}"
        raise InputError(
            f"expected the name of a tokenizer, or a transformers tokenizer, got {what}; try 'minilm'"
        )
    name = os.fspath(place.tokenizer if asked is None else asked)
    tokenizer, reason = _read(locate(name, None, cache_dir), {**remote, "revision": None})
    if tokenizer is None and asked is None:
        return None, f"an architecture without weights has none of its own; {name}: {reason}", None
    if tokenizer is None:
        raise InputError(f"expected a tokenizer at {name!r}, got none ({reason}); name another one")
    _refuse_larger(tokenizer, name, vocabulary)
    return tokenizer, "", name


def _refuse_larger(tokenizer, name: str, vocabulary: int) -> None:
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocabulary:
        raise InputError(
            f"expected a tokenizer within the model's vocabulary of {vocabulary}, got {name!r} with token "
            f"numbers up to {largest}; name a smaller one"
        )


def _read(place: Place, remote: dict) -> tuple[object | None, str]:
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(place.path, local_files_only=place.local_only, **remote)
    except Exception as error:  # missing or damaged files surface as almost any exception
        if place.is_hub and place.local_only:
            return None, "not in the hub's local cache, and the hub cannot be reached"
        return None, (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
    # Without its files the library may hand out a tokenizer that knows special tokens only.
    if not tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"] or (
        len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids)
    ):
        return None, "the tokenizer's vocabulary is missing"
    return tokenizer, ""

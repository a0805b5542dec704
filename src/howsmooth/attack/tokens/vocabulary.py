"""Which tokens an attack may write: ordinary ones that a text can hold."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.errors import InputError

_BLOCK = 8192


def writable(model) -> Tensor:
    """True (vocabulary,) for tokens that are no special or added ones, that print, and that re-tokenise to themselves.

    A token re-tokenises to itself where the text that it stands for, alone, is read as that token again. Continuations
    of words (##ing) do not; neither do parts of a character.
    """
    tokenizer = model._need_tokenizer()
    size = model.network.config.vocab_size
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    known = [token for token in sorted(set(tokenizer.get_vocab().values())) if token < size and token not in special]
    mask = torch.zeros(size, dtype=torch.bool)
    for start in range(0, len(known), _BLOCK):
        block = known[start : start + _BLOCK]
        texts = tokenizer.batch_decode([[token] for token in block])
        again = tokenizer(texts, add_special_tokens=False, truncation=False, padding=False, verbose=False)["input_ids"]
        for token, text, ids in zip(block, texts, again, strict=True):
            mask[token] = ids == [token] and bool(text.strip()) and text.strip().isprintable()
    if not mask.any():
        raise InputError("expected tokens that re-tokenise to themselves, got none in the vocabulary of "
                         f"{model.name!r}; name another tokenizer")
    return mask


def round_trips(tokenizer, ids: list[int], special: list[bool]) -> bool:
    """Whether the text of these tokens, without the special ones, is read as the same tokens again."""
    body = [token for token, is_special in zip(ids, special, strict=True) if not is_special]
    text = tokenizer.decode(body, clean_up_tokenization_spaces=False)
    again = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    return again["input_ids"] == body

"""From text to token chunks: consecutive, of one length, each with the model's own special tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False)
class TokenChunk:
    """`n` consecutive tokens of a text, as the model would see them.

    ids: (n,) token numbers; special: (n,) True where the tokenizer, not the text, put the token;
    words: n readable strings for display.
    """

    ids: torch.Tensor
    special: torch.Tensor
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)


def tokenize(tokenizer, text: str) -> list[int]:
    """Return the token numbers of a text, without special tokens and without any cut."""
    if not isinstance(text, str):
        raise InputError(f"expected a text (str), got {type(text).__name__}; decode or join it first")
    if not text.strip():
        raise InputError("expected a text, got an empty one; give a text with words in it")
    encoded = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    ids = encoded["input_ids"]
    if not ids:
        raise InputError("expected a text, got one without a single token of this model; give another text")
    return list(ids)


def special_frame(tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after a text."""
    probe = tokenizer("a", return_special_tokens_mask=True, truncation=False, padding=False, verbose=False)
    ids, special = probe["input_ids"], probe["special_tokens_mask"]
    if not any(special):
        return [], []
    start = special.index(0)
    stop = len(special) - special[::-1].index(0)
    return ids[:start], ids[stop:]


def cut_chunks(
    tokenizer, text: str, n: int, samples: int | None, positions: int, special_tokens: bool
) -> list[TokenChunk]:
    """Cut a text into `samples` consecutive chunks of `n` tokens (all that fit if None), specials counted."""
    if not isinstance(n, int) or n < 1:
        raise InputError(f"expected a length n >= 1, got n = {n!r}; ask for at least one token")
    if n > positions:
        raise InputError(
            f"expected a length within the model's {positions} positions, got n = {n}; "
            f"ask for at most {positions}"
        )
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise InputError(f"expected samples >= 1, got {samples!r}; ask for at least one sample")
    before, after = special_frame(tokenizer) if special_tokens else ([], [])
    framed = len(before) + len(after)
    body = n - framed
    if body < 1:
        raise InputError(
            f"expected n >= {framed + 1} (the model adds {framed} special tokens), got n = {n}; "
            "ask for a larger n, or for none of them (special_tokens=False; --special-tokens none)"
        )
    ids = tokenize(tokenizer, text)
    fits = len(ids) // body
    if fits < (samples or 1):
        wanted = f"{samples or 1} × {body} = {(samples or 1) * body} tokens of text for n = {n}"
        raise InputError(
            f"expected {wanted}{f' ({framed} of each n are special)' if framed else ''}, got a text of "
            f"{len(ids)} tokens; give a longer text, a smaller n or fewer samples"
        )
    return [
        _chunk(tokenizer, before, ids[start : start + body], after)
        for start in range(0, (samples or fits) * body, body)
    ]


def _chunk(tokenizer, before: list[int], body: list[int], after: list[int]) -> TokenChunk:
    ids = [*before, *body, *after]
    special = [True] * len(before) + [False] * len(body) + [True] * len(after)
    return TokenChunk(torch.tensor(ids), torch.tensor(special), tuple(word(tokenizer, i) for i in ids))


def word(tokenizer, token: int) -> str:
    """Return a token as a reader would write it: no byte-level marks, blanks made visible."""
    text = tokenizer.decode([token])
    if "\ufffd" in text:  # part of a character: only the vocabulary's own spelling can name it
        return tokenizer.convert_ids_to_tokens(token)
    return text.strip() or repr(text)[1:-1]

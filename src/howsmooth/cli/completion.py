"""What the shell completes after Tab: names of models and texts, values of options, paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

MODELS = ("minilm", "smollm2", "mpnet", "random:bert", "random:gpt2", "random:llama", "random:mpnet")
TEXTS = ("embedded", "generated", "alice", "ag_news", "hf:")


def complete(words: Iterable[str] = (), *, paths: bool = False) -> Completer:
    """Return a function for `shell_complete` that completes words, and paths where no word matches.

    Example:
        >>> [item.value for item in complete(MODELS)(None, None, "random:g")]
        ['random:gpt2']
        >>> [item.type for item in complete(MODELS, paths=True)(None, None, "./my-mo")]
        ['file']
    """
    allowed = tuple(words)

    def completer(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(word) for word in allowed if word.startswith(incomplete)]
        return found or ([CompletionItem(incomplete, type="file")] if paths else [])

    return completer


complete_model = complete(MODELS, paths=True)

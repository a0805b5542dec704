"""What the explorer may do: limits on computations, and the address that it listens on; both checked without torch."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import InputError


@dataclass(frozen=True)
class Limits:
    """What visitors may compute.

    Attributes:
        folders: Folders whose models are on offer.
        hub: Whether names on the Hugging Face Hub are accepted.
        max_tokens: Longest text that is measured, in tokens.
        max_memory: Memory of one solve, in bytes.
        max_characters: Longest text that is accepted.
        waiting: Largest number of computations in the queue, of all visitors.

    Raises:
        InputError: If a folder does not exist, or `max_tokens` is below 16.

    Example:
        >>> Limits(max_tokens=128).max_tokens
        128
    """

    folders: tuple[Path, ...] = ()
    hub: bool = False
    max_tokens: int = 512
    max_memory: int = 2 * 2**30
    max_characters: int = 1_000_000  # the whole text is tokenized before it is truncated
    waiting: int = 16

    @property
    def max_body(self) -> int:
        """Largest request, in bytes: the longest text, of which JSON may escape every character, and a form."""
        return 6 * self.max_characters + 2**20

    def __post_init__(self) -> None:
        """Check the folders and the number of tokens."""
        for folder in self.folders:
            if not Path(folder).is_dir():
                raise InputError(f"expected a folder of models, got {folder}; name one that exists")
        if self.max_tokens < 16:
            raise InputError(f"expected at least 16 tokens to be allowed, got {self.max_tokens}; allow more")


def server_name(host: str | None, port: int | None = None) -> str | None:
    """Return the address in the form of Gradio, IPv6 in brackets.

    Args:
        host: Address or name of this machine; None for Gradio's own choice.
        port: The port that is asked for; None for any.

    Raises:
        InputError: If this machine cannot listen there.

    Example:
        >>> server_name("127.0.0.1")
        '127.0.0.1'
    """
    if host is None:
        return None
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare:
        raise InputError("expected an address of this machine to listen on, got an empty one; give 127.0.0.1")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(bare, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"expected an address of this machine to listen on, got {host[:60]!r} ({reason.lower()}); "
            "give 127.0.0.1, or 0.0.0.0 for all of them"
        ) from None
    if port is not None:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just released is free
                probe.bind((address[0], port, *address[2:]))
                probe.listen(1)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(
                f"expected a free port to listen on at {host}:{port}, got none ({reason}); use another --port"
            ) from None
    return f"[{bare}]" if family == socket.AF_INET6 and ":" in bare else bare

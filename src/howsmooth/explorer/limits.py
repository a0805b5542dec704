"""What the explorer may do: limits of computations, its address, requests that it refuses; checked without torch."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

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


Scope: TypeAlias = MutableMapping[str, Any]  # as ASGI defines them
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ANY_HOST = "*"


def host_name(header: str) -> str:
    """Return the name or address in a `Host` header, without the port, the brackets of IPv6 and a final dot.

    Example:
        >>> host_name("LocalHost:7860"), host_name("[::1]:7860"), host_name("example.org.")
        ('localhost', '::1', 'example.org')
    """
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def is_own_host(header: str, allowed: Sequence[str] = ()) -> bool:
    """Return whether a request with this `Host` header was meant for this server.

    A page of another site can let its own name point to this machine (DNS rebinding), and the browser then counts the
    explorer as a part of that site. Its requests still carry the name. An address cannot be used for this, so any
    address passes.

    Args:
        header: Value of the header.
        allowed: Names that pass besides localhost; "*" for every name.

    Example:
        >>> is_own_host("127.0.0.1:7860"), is_own_host("evil.example:7860"), is_own_host("a.org", ["a.org"])
        (True, False, True)
    """
    name = host_name(header)
    if name == "localhost" or ANY_HOST in allowed or name in map(host_name, allowed):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that refuses requests for another host, bodies that are too long, and uploads of files."""

    def __init__(self, app: Application, *, allowed_hosts: Sequence[str], max_body: int) -> None:
        """Take the application that gets all other requests.

        Args:
            app: The application.
            allowed_hosts: Names of hosts, as for `is_own_host`.
            max_body: Largest size of a body, in bytes.
        """
        self._app, self._allowed_hosts, self._max_body = app, tuple(allowed_hosts), max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, and pass any other on."""
        refused = self._refused(scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self._app(scope, self._limited(receive), send)
        elif scope["type"] == "websocket":  # closing it before it is accepted is answered as 403
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._answer(send, *refused)

    @staticmethod
    async def _answer(send: Send, status: HTTPStatus, reason: str) -> None:
        body = (reason + "\n").encode("utf-8", "backslashreplace")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),  # the rest of a long body is not read
        ]
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refused(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) != 1 or not is_own_host(hosts[0], self._allowed_hosts):
            name = host_name(hosts[0])[:100] if hosts else ""
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                f"This explorer does not answer for the host {name!r}. If it is a name of this server, start the "
                "explorer with --allowed-host and that name.",
            )
        for length in headers.get(b"content-length", []):
            if not length.isdigit() or int(length) > self._max_body:
                return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._too_large
        if scope["path"].rstrip("/").endswith("/upload"):
            return HTTPStatus.FORBIDDEN, "The explorer accepts no files."
        return None

    @property
    def _too_large(self) -> str:
        return f"The explorer accepts requests of at most {self._max_body} bytes."

    def _limited(self, receive: Receive) -> Receive:
        """Return `receive` with an error as soon as the body, whose length need not be announced, is too long."""
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b"") or b"")
            if received > self._max_body:
                from starlette.exceptions import HTTPException  # comes with gradio, and becomes the answer

                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._too_large)
            return message

        return limited

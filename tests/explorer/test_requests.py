"""Requests that the server of the explorer refuses before gradio reads them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests import reasons

pytest.importorskip("gradio", reason=reasons.GRADIO)

from howsmooth.explorer import Limits, explorer, launch

LIMITS = Limits(max_characters=1000)
JOIN = "/gradio_api/queue/join"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    page = explorer(LIMITS)
    found = urlsplit(launch(page, host="127.0.0.1", block=False, allowed_hosts=["proxy.example"]))
    yield found.hostname, found.port
    page.close(verbose=False)


def send(server, method: str, path: str, body=None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*server)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, headers, encode_chunked="Transfer-Encoding" in headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode("utf-8", "replace")
    connection.close()
    return found


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", ""])
@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/startup-events", "/theme.css"])
def test_another_host_is_refused(server, host, path):
    status, text = send(server, "GET", path, Host=host)
    assert status == 421 and "--allowed-host" in text and "gradio" not in text


@pytest.mark.parametrize("host", ["localhost:7860", "127.0.0.1", "[::1]:7860", "proxy.example", "PROXY.example:443"])
def test_own_names_and_addresses_are_answered(server, host):
    status, text = send(server, "GET", "/config", Host=host)
    assert status == 200 and json.loads(text)["title"] == "How smooth is attention?"


def test_two_host_headers_are_refused(server):
    connection = http.client.HTTPConnection(*server)
    connection.putrequest("GET", "/config", skip_host=True)
    connection.putheader("Host", "127.0.0.1")
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)
    connection.close()


def test_a_body_is_limited_by_its_announced_length(server):
    """Nothing of the body is sent: the announced length alone decides."""
    status, text = send(server, "POST", JOIN, Content_Length=str(LIMITS.max_body + 1), **JSON)
    assert status == 413 and str(LIMITS.max_body) in text


def test_a_body_is_limited_without_an_announced_length(server):
    parts = [b"[" + b"0," * 2**18] * 8  # four times the limit
    status, text = send(server, "POST", JOIN, iter(parts), Transfer_Encoding="chunked", **JSON)
    assert status == 413 and str(LIMITS.max_body) in text


def test_the_longest_text_is_not_a_long_body(server):
    """Also if JSON escapes each character, as it does with control characters."""
    body = json.dumps({"data": ["\x01" * LIMITS.max_characters], "fn_index": 0, "session_hash": "x"})
    assert send(server, "POST", JOIN, body, **JSON)[0] == 200


def test_no_file_is_accepted(server):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nx\r\n--x--\r\n'
    status, text = send(server, "POST", "/gradio_api/upload", body, Content_Type="multipart/form-data; boundary=x")
    assert status == 403 and "no files" in text

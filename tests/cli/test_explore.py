"""`howsmooth explore`: what it refuses, what it warns of; the page itself is tested in a browser."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests import reasons
from tests.cli.test_bad_input import assert_refused

gradio = pytest.importorskip("gradio", reason=reasons.GRADIO)

DOCS = Path(__file__).parents[2] / "docs" / "explore.md"


def test_bad_input_is_refused(howsmooth, tmp_path):
    assert_refused(howsmooth("explore", "--models", str(tmp_path / "none")), "folder of models", "none")
    assert_refused(howsmooth("explore", "--max-tokens", "3"), "--max-tokens")
    assert_refused(howsmooth("explore", "--max-memory", "much"), "size such as 4G")
    assert_refused(howsmooth("explore", "--port", "0"), "--port")


def test_a_port_in_use_is_refused(howsmooth):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(howsmooth("explore", "--port", port), "free port", port, "--port")


@pytest.mark.parametrize("host, warned", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_listening_elsewhere_is_warned_of(howsmooth, monkeypatch, host, warned):
    asked = {}

    def launch(blocks, **settings):
        asked.update(settings)
        return f"http://{settings['server_name']}:7860/"

    monkeypatch.setattr(gradio.Blocks, "launch", lambda blocks, **settings: (None, launch(blocks, **settings), None))
    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda blocks: None)
    result = howsmooth("explore", "--host", host, "--max-tokens", "64")
    assert result.code == 0 and ("no password" in result.err) is warned and f"http://{host}:7860/" in result.err
    assert asked["share"] is False and asked["allowed_paths"] == [] and asked["server_name"] == host


def test_the_page_of_the_docs_for_a_space(monkeypatch):
    from howsmooth.report import explorer as room

    (code,) = re.findall(r"```python\n# app\.py\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    launched = []
    monkeypatch.setattr(room, "launch", lambda page, **settings: launched.append((page, settings)))
    exec(compile(code, "app.py", "exec"), {"__name__": "__main__"})
    ((page, settings),) = launched
    assert isinstance(page, gradio.Blocks) and page.analytics_enabled is False and "host" not in settings

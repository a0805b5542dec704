"""`howsmooth explore`: errors and warnings; the page itself is tested in a browser."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import reasons
from tests.cli.test_bad_input import assert_rejected

gradio = pytest.importorskip("gradio", reason=reasons.GRADIO)

DOCS = Path(__file__).parents[2] / "docs" / "explore.md"


def test_bad_input(howsmooth, tmp_path):
    assert_rejected(howsmooth("explore", "--model-folder", str(tmp_path / "none")), "folder of models", "none")
    assert_rejected(howsmooth("explore", "--max-tokens", "3"), "--max-tokens")
    assert_rejected(howsmooth("explore", "--max-memory", "much"), "size such as 4G")
    assert_rejected(howsmooth("explore", "--port", "0"), "--port")
    assert_rejected(howsmooth("explore", "--allowed-host", " "), "--allowed-host", "empty")


def test_ctrl_c_ends_it_as_any_command(howsmooth, monkeypatch):
    """The exit code after Ctrl-C is the one that the page of the commands states; the server no longer listens."""
    from howsmooth.explorer import page

    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "time", SimpleNamespace(sleep=interrupt))
    result = howsmooth("explore")
    assert result.code == 130 and result.out == "" and result.errors[-1] == "howsmooth: interrupted"
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", result.err)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0


@pytest.mark.parametrize("host", ["", "nowhere.invalid", "300.1.1.1", "8.8.8.8", "::1::", "ü" * 80, "a..b"])
def test_an_address_of_another_machine(howsmooth, host):
    assert_rejected(howsmooth("explore", "--host", host), "address of this machine", "127.0.0.1")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6(howsmooth, monkeypatch, host):
    """The page is served if the machine has IPv6; otherwise this is an error, as for any unknown address."""
    monkeypatch.setattr("howsmooth.explorer.page.wait", lambda page: page.close(verbose=False))
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        assert_rejected(howsmooth("explore", "--host", host), "address of this machine")
        return
    result = howsmooth("explore", "--host", host)
    assert result.code == 0 and "http://[::1]:" in result.err and "no password" not in result.err


def test_circular_links_are_ignored(tmp_path):
    from howsmooth.explorer import Limits
    from howsmooth.explorer.catalog import ModelCatalog

    folder = tmp_path / "models"
    (folder / "good").mkdir(parents=True)
    (folder / "good" / "config.json").write_text("{}")
    for name, target in (("a", "b"), ("b", "a"), ("itself", "itself"), ("up", ".."), ("here", ".")):
        (folder / name).symlink_to(target)
    names = ModelCatalog(Limits(folders=(folder,))).names()
    assert [name for name in names if "/" in name] == ["models/good"]


def test_a_port_in_use(howsmooth):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_rejected(howsmooth("explore", "--port", port), "free port", port, "--port")


@pytest.mark.parametrize("host, warned", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_warning_for_addresses_other_than_localhost(howsmooth, monkeypatch, host, warned):
    asked = {}

    def launch(blocks, **settings):
        asked.update(settings)
        return f"http://{settings['server_name']}:7860/"

    monkeypatch.setattr(gradio.Blocks, "launch", lambda blocks, **settings: (None, launch(blocks, **settings), None))
    monkeypatch.setattr("howsmooth.explorer.page.wait", lambda page: None)
    result = howsmooth("explore", "--host", host, "--max-tokens", "64")
    assert result.code == 0 and ("no password" in result.err) is warned and f"http://{host}:7860/" in result.err
    assert asked["share"] is False and asked["allowed_paths"] == [] and asked["server_name"] == host


def test_the_page_of_the_docs_for_a_space(monkeypatch):
    from howsmooth import explorer as package

    (code,) = re.findall(r"```python\n# app\.py\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    launched = []
    monkeypatch.setattr(package, "launch", lambda page, **settings: launched.append((page, settings)))
    exec(compile(code, "app.py", "exec"), {"__name__": "__main__"})
    ((page, settings),) = launched
    assert isinstance(page, gradio.Blocks) and page.analytics_enabled is False and "host" not in settings

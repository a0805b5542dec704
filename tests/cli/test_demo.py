"""`howsmooth demo` with a tiny checkpoint in place of the embedded models."""

from __future__ import annotations

import json
import re

from howsmooth.cli import demo


def test_demo_writes_plot_records_and_page(howsmooth, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SPECS", ({"models": tiny, "layers": [0, 1], "lengths": [8, 16], "samples": 2},))
    out, picture = tmp_path / "new" / "demo", tmp_path / "table.svg"
    result = howsmooth(f"demo --out {out} --svg {picture}")
    assert result.code == 0, result.err
    assert sorted(path.name for path in out.iterdir()) == ["growth.png", "index.html", "measurements.jsonl"]
    for path in out.iterdir():
        assert str(path) in result.out
    assert len([json.loads(line) for line in (out / "measurements.jsonl").read_text().splitlines()]) == 8
    assert (out / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert "How smooth is attention?" in (out / "index.html").read_text()
    assert "99.9 % sure" in result.out and "Growth with length" in result.out
    drawn = picture.read_text()
    assert "interval" in drawn and not re.search(r"url\(.?http", drawn)

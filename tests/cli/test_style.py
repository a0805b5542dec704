"""`--style` on every command that draws; plot files that cannot be written are refused before anything is loaded."""

from __future__ import annotations

import struct

import click
import pytest

from howsmooth.cli.main import group
from howsmooth.report.style import STYLES
from tests import reasons

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)


def commands(command: click.Command = group) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    return [one for name in command.list_commands(context) for one in commands(command.get_command(context, name))]


def test_every_command_that_draws_has_the_option():
    drawing = {"--plot", "--figures"}
    for command in commands():
        options = {name for param in command.params for name in param.opts}
        draws = bool(options & drawing) or command.name in ("reproduce", "demo")
        assert draws == ("--style" in options), command.name


def width_of(png: bytes) -> int:
    return struct.unpack(">I", png[16:20])[0]


@pytest.mark.parametrize("style", STYLES)
def test_the_style_sets_the_size_of_the_figure(howsmooth, tmp_path, style):
    path = tmp_path / "regimes.png"
    result = howsmooth(f"meanfield regimes --gamma-r2 2 --to 4 --points 3 --style {style} --plot {path}")
    assert result.code == 0, result.err
    widths = STYLES[style].widths
    assert width_of(path.read_bytes()) == round((widths[0] if widths else 7.2) * STYLES[style].dpi)


def test_an_unknown_style_is_refused(howsmooth):
    result = howsmooth("meanfield regimes --style poster --plot x.png")
    assert result.code == 2 and "'poster'" in result.err and "'paper'" in result.err


def test_pgf_without_tex_is_refused_before_a_model_is_loaded(howsmooth, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    result = howsmooth(f"measure {tmp_path}/no-such-model --plot {tmp_path}/growth.pgf")
    assert result.code == 2 and len(result.err.splitlines()) == 1
    assert "expected xelatex for a .pgf file, got none installed; install TeX, or name a .pdf for --plot" in result.err

"""A flow that moves: GIF by Pillow, MP4 where ffmpeg is installed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.errors import InputError
from howsmooth.report.figure import THEMES
from howsmooth.report.flow_figure import MANY, fit_scales, palette, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_TAIL = 8  # saved depths that a token's tail reaches back
_RATE = 12  # frames per second
_HELD = 12  # frames that the last picture stays


def check_animation_path(path: str, option: str = "--animate") -> None:
    """Refuse an animation that could not be made later, before anything is computed."""
    try:
        from matplotlib import animation
    except ImportError:
        raise InputError(f"expected matplotlib for {option}, got none installed; "
                         "pip install 'howsmooth[plot]'") from None
    suffix = Path(path).suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise InputError(f"expected a file ending in .gif or .mp4 for {option}, got {path!r}")
    if suffix == ".mp4" and not animation.writers.is_available("ffmpeg"):
        raise InputError(f"expected ffmpeg for an .mp4, got none installed; install it, or name a .gif for {option}")


def save_animation(path: str | Path, times: Sequence[float], paths: NDArray, names: Sequence[str],
                   labels: Sequence[int], *, title: str, theme: str = "light") -> None:
    """One frame for each saved depth: tokens (T, n, 1 or 2) with short tails, coloured by the cluster they end in."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    check_animation_path(str(path))
    colours = THEMES[theme]
    every = max(1, paths.shape[1] // MANY)
    paths, tints = paths[:, ::every], palette(labels, colours)[::every]
    if paths.shape[2] == 1:  # on the line: depth runs to the right
        paths, names = _against_depth(times, paths), ("depth t", names[0])
    figure = Figure(figsize=(5.6, 5.2), dpi=110, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    low, high = paths.min((0, 1)), paths.max((0, 1))
    margin = 0.06 * (high - low) + 1e-9
    panel.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    if names[0] != "depth t":
        fit_scales(panel, paths, "box")  # limits are those of all frames
    panel.set_xlabel(names[0], color=colours["ink"])
    panel.set_ylabel(names[1], color=colours["ink"])
    plain(panel, colours)
    panel.set_title(textwrap.fill(title, 56), color=colours["ink"], fontsize=10.5, fontweight="bold", loc="left")
    tails = panel.add_collection(LineCollection([], colors=tints, linewidths=0.9, alpha=0.45))
    dots = panel.scatter(*paths[0].T, s=30, c=tints, edgecolors=colours["paper"], linewidth=0.5, zorder=3)
    clock = panel.text(1.0, -0.085, "", transform=panel.transAxes, color=colours["ink"], ha="right", va="top")

    def draw(frame: int) -> None:
        dots.set_offsets(paths[frame])
        tails.set_segments(list(paths[max(0, frame - _TAIL) : frame + 1].swapaxes(0, 1)))
        clock.set_text(f"t = {times[frame]:.3g}")

    save_frames(figure, draw, len(times), path)


def save_frames(figure: Figure, draw: Callable[[int], None], count: int, path: str | Path) -> None:
    """Write the figure after each draw(0) … draw(count − 1); the last picture stays for a while."""
    from matplotlib import animation

    writer = animation.PillowWriter(_RATE) if Path(path).suffix.lower() == ".gif" else animation.FFMpegWriter(_RATE)
    with writer.saving(figure, str(path), figure.dpi):
        for frame in range(count + _HELD):
            draw(min(frame, count - 1))
            writer.grab_frame(facecolor=figure.get_facecolor())


def _against_depth(times: Sequence[float], paths: NDArray) -> NDArray:
    import numpy

    depth = numpy.broadcast_to(numpy.asarray(times)[:, None, None], paths.shape)
    return numpy.concatenate([depth, paths], -1)

"""Files that a flow may leave, refused before anything is computed."""

from __future__ import annotations

from pathlib import Path


def check_pictures(json_path: str | None, plot_path: str | None, animation_path: str | None) -> None:
    """Refuse names that cannot be written or drawn."""
    from howsmooth.cli.outputs import check_writable, refuse_one_file_twice

    refuse_one_file_twice({"--json": json_path, "--plot": plot_path, "--animate": animation_path})
    if plot_path is not None:
        from howsmooth.report.figure import check_plot_path

        check_plot_path(plot_path)
        check_writable(Path(plot_path), "--plot")
    if animation_path is not None:
        from howsmooth.report.flow_animation import check_animation_path

        check_animation_path(animation_path)
        check_writable(Path(animation_path), "--animate")

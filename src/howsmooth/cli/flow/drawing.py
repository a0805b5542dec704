"""Files that a flow may leave, refused before anything is computed."""

from __future__ import annotations

from pathlib import Path


def check_pictures(json_path: str | None, plot_path: str | None, animation_path: str | None,
                   rate_path: str | None = None) -> None:
    """Refuse names that cannot be written or drawn."""
    from howsmooth.cli.outputs import check_writable, refuse_one_file_twice

    refuse_one_file_twice({"--json": json_path, "--plot": plot_path, "--plot-rate": rate_path,
                           "--animate": animation_path})
    for path, option in ((plot_path, "--plot"), (rate_path, "--plot-rate")):
        if path is not None:
            from howsmooth.report.figure import check_plot_path

            check_plot_path(path)
            check_writable(Path(path), option)
    if animation_path is not None:
        from howsmooth.report.flow_animation import check_animation_path

        check_animation_path(animation_path)
        check_writable(Path(animation_path), "--animate")

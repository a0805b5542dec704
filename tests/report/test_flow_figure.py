"""Figures of flows draw the values of the records."""

from __future__ import annotations

import numpy as np
import pytest

from howsmooth.errors import InputError
from howsmooth.report.flow_figures import cluster_colours, flow_figure, save_animation
from howsmooth.report.flow_tables import flow_table
from howsmooth.report.output_paths import check_animation_path
from howsmooth.report.style import THEMES

KEYS = (
    "clusters",
    "vertices",
    "hyperplanes",
    "leading_clusters",
    "leading_vertices",
    "rank",
    "undecided",
    "diameter",
    "w2_to_last",
    "log_energy",
    "local",
)
TIMES = [0.0, 1.0, 2.0]


def records(**known):
    return [
        {"t": t, **dict.fromkeys(KEYS), **{key: values[i] for key, values in known.items()}}
        for i, t in enumerate(TIMES)
    ]


@pytest.mark.parametrize("d, theme", [(1, "light"), (2, "dark")])
def test_lines_have_the_values_of_the_records(d, theme):
    paths = np.random.default_rng(0).normal(size=(3, 5, d))
    figure = flow_figure(
        records(clusters=[5, 3, 2], diameter=[4.0, 3.0, 0.0]),
        paths,
        ["one", "two"][:d],
        [0, 0, 1, 1, 1],
        title="A flow",
        theme=theme,
    )
    tokens, counts, sizes = figure.axes
    assert counts.lines[0].get_ydata().tolist() == [5, 3, 2] and len(counts.lines) == 1
    # exact: times as given
    assert sizes.lines[0].get_xdata().tolist() == [0.0, 1.0]  # a log scale cannot show 0
    assert len(tokens.lines) == 5 and figure.get_suptitle() == "A flow"


def test_a_coordinate_that_grows_fast_has_a_symlog_scale():
    paths = np.ones((3, 4, 2))
    paths[2, :, 1] = 1e4
    panel = flow_figure(records(clusters=[1, 1, 1]), paths, ["one", "two"], [0] * 4, title="").axes[0]
    assert panel.get_yscale() == "symlog" and panel.get_xscale() == "linear"


def test_colours():
    colours = THEMES["light"]
    assert cluster_colours([0, 1, 0], colours) == [colours["palette"][0], colours["palette"][1], colours["palette"][0]]
    assert len(set(cluster_colours(list(range(20)), colours))) == 20


def test_table_omits_empty_columns():
    table = flow_table(records(clusters=[5, 3, 2], local=[1.0, 2.0, None]), "A flow")
    assert table.headings == ["depth", "clusters", "Lip of Γ"] and len(table) == 3
    renormalised = flow_table(records(clusters=[5, 3, 2], local=[1.0, 2.0, None]), "A flow", renormalised=True)
    assert renormalised.headings[-1] == "Lip of ż"


@pytest.mark.parametrize("d", [1, 2])
def test_gif(tmp_path, d):
    from PIL import Image

    path = tmp_path / "a.gif"
    paths = np.random.default_rng(0).normal(size=(3, 5, d))
    save_animation(path, TIMES, paths, ["one", "two"][:d], [0] * 5, title="A flow")
    with Image.open(path) as found:
        assert found.n_frames >= 3


def test_bad_paths():
    with pytest.raises(InputError, match=r".gif or .mp4"):
        check_animation_path("a.avi")

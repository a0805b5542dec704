"""Figures of flows draw the values of the records."""

from __future__ import annotations

import numpy as np
import pytest

from howsmooth.errors import InputError
from howsmooth.report.flow_figures import cluster_colours, particle_figure, save_particle_animation
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


def records(paths=None, names=("one", "two"), labels=None, **known):
    paths = np.zeros((3, 5, 2)) if paths is None else paths
    shared = {"kind": "particles", "flow": "a", "title": "A flow", "axes": list(names), "labels": labels, "space": None}
    return [
        {
            **shared,
            "t": t,
            **dict.fromkeys(KEYS),
            "plane": paths[i].tolist(),
            **{key: values[i] for key, values in known.items()},
        }
        for i, t in enumerate(TIMES)
    ]


@pytest.mark.parametrize("d, theme", [(1, "light"), (2, "dark")])
def test_lines_have_the_values_of_the_records(d, theme):
    paths = np.random.default_rng(0).normal(size=(3, 5, d))
    flow = records(paths, labels=[0, 0, 1, 1, 1], clusters=[5, 3, 2], diameter=[4.0, 3.0, 0.0])
    figure = particle_figure(flow, theme=theme)
    tokens, counts, sizes = figure.axes
    assert counts.lines[0].get_ydata().tolist() == [5, 3, 2] and len(counts.lines) == 1
    # exact: times as given
    assert sizes.lines[0].get_xdata().tolist() == [0.0, 1.0]  # a log scale cannot show 0
    assert len(tokens.lines) == 5 and figure.get_suptitle() == "A flow"


def test_a_coordinate_that_grows_fast_has_a_symlog_scale():
    paths = np.ones((3, 4, 2))
    paths[2, :, 1] = 1e4
    panel = particle_figure(records(paths, clusters=[1, 1, 1])).axes[0]
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
    save_particle_animation(path, records(paths))
    with Image.open(path) as found:
        assert found.n_frames >= 3


def test_the_first_flow_of_several_is_drawn():
    two = [*records(clusters=[5, 3, 2]), *({**record, "flow": "b"} for record in records(clusters=[1, 1, 1]))]
    assert particle_figure(two).axes[1].lines[0].get_ydata().tolist() == [5, 3, 2]
    growth = {"kind": "perturbation growth", "flow": "a"}
    with pytest.raises(InputError, match="growth alone"):
        particle_figure([growth])


def test_bad_paths():
    with pytest.raises(InputError, match=r"ending in .gif"):
        check_animation_path("a.mp4")

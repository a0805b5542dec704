"""Figures of flows draw the values of the records."""

from __future__ import annotations

import numpy as np
import pytest

from howsmooth.errors import InputError
from howsmooth.report.figure import draw, save_animation
from howsmooth.report.flow_charts import particle_frames, particle_picture, paths_chart
from howsmooth.report.flow_tables import flow_table
from howsmooth.report.style import check_animation_path
from tests.tolerances import assert_close

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
    figure = draw(particle_picture(flow), theme=theme)
    tokens, counts, sizes = figure.axes
    drawn = [line for line in counts.lines if line.get_xydata().size]
    assert drawn[0].get_ydata().tolist() == [5, 3, 2] and len(drawn) == 1
    # exact: times as given
    assert sizes.lines[0].get_xdata().tolist() == [0.0, 1.0]  # a log scale cannot show 0
    lines = [line for line in tokens.lines if line.get_gid() and line.get_gid().endswith(("-0", "-1"))]
    drawn = np.concatenate([line.get_xydata() for line in lines])
    assert np.isnan(drawn[:, 1]).sum() == 5 and figure.get_suptitle() == "A flow"  # a gap after the path of each token
    coordinates = drawn[~np.isnan(drawn[:, 1]), -d:]
    assert_close(coordinates, paths.swapaxes(0, 1).reshape(-1, d))


def test_a_coordinate_that_grows_fast_has_a_symlog_scale():
    paths = np.ones((3, 4, 2))
    paths[2, :, 1] = 1e4
    panel = draw(particle_picture(records(paths, clusters=[1, 1, 1]))).axes[0]
    assert panel.get_yscale() == "symlog" and panel.get_xscale() == "linear"


def test_colours():
    def colours(labels):
        paths = np.zeros((3, len(labels), 2))
        return list(dict.fromkeys(s.colour for s in paths_chart(records(paths, labels=labels)).series if s.linestyle))

    assert colours([0, 1, 0]) == [0, 1]
    many = colours(list(range(20)))
    assert len(many) == 20 and all(isinstance(colour, float) for colour in many)


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
    save_animation(path, particle_frames(records(paths)))
    with Image.open(path) as found:
        assert found.n_frames >= 3


def test_the_first_flow_of_several_is_drawn():
    two = [*records(clusters=[5, 3, 2]), *({**record, "flow": "b"} for record in records(clusters=[1, 1, 1]))]
    assert draw(particle_picture(two)).axes[1].lines[0].get_ydata().tolist() == [5, 3, 2]
    growth = {"kind": "perturbation growth", "flow": "a"}
    with pytest.raises(InputError, match="growth alone"):
        particle_picture([growth])


def test_bad_paths():
    with pytest.raises(InputError, match=r"ending in .gif"):
        check_animation_path("a.mp4")

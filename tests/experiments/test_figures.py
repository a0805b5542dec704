"""The scripts for the figures of the documentation run, at a small size or from stored records."""

from __future__ import annotations

import importlib
import json
import math
import shutil

import pytest
import torch

from howsmooth.attack.configurations import castin
from howsmooth.models import AttentionFile
from tests.docs.comparison import ROOT
from tests.tolerances import at_most

pytest.importorskip("matplotlib")

FIGURES = sorted(path.stem for path in (ROOT / "experiments" / "figures").glob("*.py") if path.stem != "__init__")
IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def images(tmp_path):
    """Return a folder with copies of the stored records, so that nothing in docs/ is written."""
    for name in ("prediction.json", "depth.jsonl"):
        shutil.copy(IMAGES / name, tmp_path)
    return tmp_path


def is_png(path) -> bool:
    return path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", FIGURES)
def test_every_script_documents_its_command_and_is_in_the_readme(name):
    script = (ROOT / "experiments" / "figures" / f"{name}.py").read_text(encoding="utf-8")
    assert f"    python -m experiments.figures.{name}" in script
    assert f"`{name}`" in (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")


def test_prediction_is_drawn_from_stored_numbers(images, capsys):
    from experiments.figures.prediction import main

    main(["--out", str(images / "prediction")])
    assert is_png(images / "prediction.png") and "attacks on tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, options, written",
    [
        ("depth", ["--redraw"], "depth.png"),
        ("gpu", [str(ROOT / "benchmarks" / "results")], "gpu_time_memory.png"),
        ("long_context", [str(ROOT / "benchmarks" / "results" / "h200-long-context.jsonl")], "long_context.png"),
    ],
)
def test_figures_of_stored_records(name, options, written, images):
    importlib.import_module(f"experiments.figures.{name}").main([*options, "--out", str(images)])
    assert is_png(images / written)


@pytest.mark.parametrize("name", ["flows", "gaussian_flows", "robustness", "tightness"])
def test_scripts_that_take_minutes_start(name, capsys):
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"experiments.figures.{name}").main(["--help"])
    assert left.value.code == 0 and "--out" in capsys.readouterr().out


def test_splitting_on_the_line(images, monkeypatch, capsys):
    from experiments.figures import splitting

    monkeypatch.setattr(splitting, "PICTURES", (dict(resolution=20), dict(resolution=20, masked=True)))
    splitting.main(["--out", str(images)])
    assert is_png(images / "splitting-line.png") and capsys.readouterr().out.count("splits") == 2


def test_heads_of_models_are_summarised(images, tiny, monkeypatch):
    """Counts and the largest ratio are those of the records, one line for each file, of which the first is drawn."""
    import howsmooth
    from experiments.figures import splitting

    monkeypatch.setattr(splitting, "PICTURES", (dict(resolution=5),))
    spec = {"model": tiny, "inputs": "ids", "layers": [0], "heads": [0, 1]}
    whole, files = {"map": "attention", "heads": None}, []
    for name, options in (
        ("long", {"lengths": [4, 6]}),
        ("short", {"lengths": [3]}),
        ("all", {"lengths": [3], **whole}),
    ):
        found = howsmooth.Measurements(list(howsmooth.ask("splitting", **(spec | options))))
        files.append(images / f"{name}.jsonl")
        found.save(files[-1])
    splitting.main(["--records", *map(str, files), "--out", str(images)])
    long, short, together = map(json.loads, (images / "splitting-heads.jsonl").read_text(encoding="utf-8").splitlines())
    assert (long["n"], long["cases"], short["n"], short["cases"]) == ([4, 6], 4, [3], 2)
    assert [one["map"] for one in (long, short, together)] == ["head", "head", "attention"] and together["cases"] == 1
    records = howsmooth.read(files[0])
    top = max(records, key=lambda record: record["ratio"])
    assert long["largest"]["ratio"] == pytest.approx(top["ratio"]) and long["largest"]["n"] == top["n"]
    assert long["split"] == sum(record["verdict"] == "splits" for record in records) and len(long["median"]) == 2
    assert len(list(images.glob("splitting-*.png"))) == 2


def test_regimes_stay_between_their_bounds(images, monkeypatch):
    from experiments.figures import regimes

    monkeypatch.setattr(regimes, "LENGTHS", [2, 4, 8, 16])
    monkeypatch.setattr(regimes, "ASCENDED", [2, 4])
    regimes.main(["--out", str(images), "--restarts", "4", "--steps", "20"])
    rows = json.loads((images / "regimes.json").read_text(encoding="utf-8"))
    assert len(rows) == 8 and is_png(images / "regimes.png")
    assert all(at_most(row["value"], row["upper"]) for row in rows)


def test_mean_field_at_a_few_sizes(images, monkeypatch):
    from experiments.figures import mean_field

    for name, few in (("GAMMA_R2", (0.5, 2.0)), ("SIZES", (0.3,)), ("EXPONENTS", (2.0, float("inf")))):
        monkeypatch.setattr(mean_field, name, few)
    mean_field.main(["--out", str(images)])
    assert is_png(images / "mean_field_regimes.png") and is_png(images / "mean_field_masked.png")
    rows = (images / "mean_field_masked.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["p"] for row in rows] == [2.0, "inf"]  # exact: as given


def test_growth_along_flows(images, monkeypatch):
    from experiments.figures import flows

    for name, few in (("KINDS", ("softmax", "masked")), ("BETAS", (1.0,)), ("LAYERS", (8, 16))):
        monkeypatch.setattr(flows, name, few)
    flows.growth(images)
    found = json.loads((images / "flow_growth.json").read_text(encoding="utf-8"))
    assert is_png(images / "flow_growth.png") and {row["kind"] for row in found["local"]} == set(flows.KINDS)


def test_blow_up_time_agrees_with_the_closed_form(images):
    from experiments.figures import gaussian_flows

    found = gaussian_flows.blow_up(images)
    assert found["found"] == pytest.approx(found["closed_form"], rel=1e-3) and is_png(images / "gaussian_flow.png")


def test_linearity_of_two_layers(images, tiny, monkeypatch):
    from experiments.figures import robustness

    monkeypatch.setattr(robustness, "LAYERS", {tiny: (0,), f"{tiny}/": (1,)})
    robustness.main(["--n", "6", "--only", "linearity", "--out", str(images)])
    rows = json.loads((images / "linearity.json").read_text(encoding="utf-8"))
    assert [row["layer"] for row in rows] == [0, 1] and is_png(images / "linearity.png")


def test_tightness_of_one_layer(tiny):
    from experiments.figures.tightness import layers_of, measure
    from tests.tolerances import at_most

    (row,) = measure("tiny", layers_of(tiny, 6, [1]), 6, restarts=2, steps=5)
    assert row["layer"] == 1
    assert at_most(math.log(row["worst"]["value"]), row["bounds"]["this_project.upper"], tol=1e-5)
    assert at_most(math.log(row["on_tokens"]["value"]), row["bounds"]["this_project.local"], tol=1e-5)


def test_tightness_reads_the_layers_of_a_file(tmp_path):
    from experiments.figures.tightness import layers_of_gpt2
    from tests import data

    assert [layer for layer, *_ in layers_of_gpt2(data.make_gpt2(tmp_path), 4)] == [0, 6, 11]


def test_adversarial_curves_are_those_of_dense_jacobians_and_are_resumed(tmp_path, tiny, capsys):
    from experiments.figures import adversarial
    from tests import data

    gpt2 = data.make_gpt2(tmp_path)
    line = ["--model", tiny, "--gpt2", str(gpt2), "--layers", "0", "--heads", "1", "--lengths", "2", "3", "5", "8"]
    adversarial.main([*line, "--out", str(tmp_path)])
    assert is_png(tmp_path / "adversarial.png") and "larger of ±u" in capsys.readouterr().out
    written = (tmp_path / "adversarial.jsonl").read_text()
    records = [json.loads(row) for row in written.splitlines()]
    assert len(records) == 2 * 5  # models; three inputs of the layer and two of the head
    f = AttentionFile(gpt2).attention(0).to(torch.float64)
    for record in records:
        if record["model"] == "gpt2" and record["map"] == "attention" and record["input"] != "scripts":
            sign = adversarial.SIGNS[record["input"]]
            x = castin(f, 3, record["R"], head=0, sign=sign).tokens
            J = torch.autograd.functional.jacobian(f, x).reshape(x.numel(), -1)
            sigma = float(torch.linalg.matrix_norm(J, 2))
            assert at_most(record["lower"][1], sigma * (1 + 1e-5)) and at_most(sigma, record["upper"][1] * (1 + 1e-5))
    (tmp_path / "adversarial.jsonl").write_text("\n".join(written.splitlines()[:4]) + "\n")
    adversarial.main([*line, "--out", str(tmp_path)])
    assert (tmp_path / "adversarial.jsonl").read_text().splitlines()[:4] == written.splitlines()[:4]
    assert len((tmp_path / "adversarial.jsonl").read_text().splitlines()) == len(records)

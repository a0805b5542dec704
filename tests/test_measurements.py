"""`howsmooth.measure` and `howsmooth.read`: names and defaults of the command, records, laws, figures, pages, files."""

from __future__ import annotations

import csv
import inspect
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from pydantic_core import PydanticUndefined

import howsmooth
from howsmooth import InputError, Measurements
from howsmooth.fits import fit_law
from howsmooth.questions import record_error
from howsmooth.questions.measure import MeasureSpec
from howsmooth.questions.spec import ModelChoice, spec_of
from howsmooth.records import CURVE
from howsmooth.studies.store import Store
from howsmooth.texts.corpora import Corpus
from tests import reasons
from tests.studies.conftest import TEXT, save_tiny
from tests.tolerances import at_most, same_record

FEW = {"layers": [1], "lengths": [4, 6, 8, 12], "samples": 2, "tol": 1e-2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def river(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("text") / "river.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def found(tiny, river) -> Measurements:
    return howsmooth.measure(tiny, river, **FEW)


def same(one, other) -> bool:
    """Return whether two runs have the same records, except for their times."""
    return len(one) == len(other) and all(same_record(a, b, but=("seconds",)) for a, b in zip(one, other, strict=True))


def test_names_and_defaults_are_those_of_the_command():
    from howsmooth.cli.ask import question_command
    from howsmooth.cli.options import LOADING_FIELDS

    options = {option.name for option in question_command("measure").params} - {"model", "threads", "quiet", "verbose"}
    fields = {*MeasureSpec.options, *LOADING_FIELDS}
    assert fields <= options and {name for name in options - fields if not name.endswith("_path")} == {
        *("string", "style", "theme")  # the text itself is given as any other text
    }
    docstring = inspect.getdoc(howsmooth.measure)
    for name in fields - {"texts"}:
        assert f"`{name}`" in docstring, f"{name} is not in the docstring"
        field = (ModelChoice if name in LOADING_FIELDS else MeasureSpec).model_fields[name]
        assert field.default is not PydanticUndefined, "without a default in the spec, each caller would need its own"
    assert spec_of({}) == spec_of({"models": ["minilm"], "texts": ["embedded"]})
    assert inspect.signature(howsmooth.measure).parameters["model"].default == spec_of({}).models[0].name


def test_measurements_are_a_sequence_of_records(found):
    assert isinstance(found, Measurements) and len(found) == 8 == len(list(found))
    assert [(record["n"], record["sample"]) for record in found] == [(n, s) for n in FEW["lengths"] for s in (0, 1)]
    assert found[0] is found.records[0] and found[0] in found
    assert isinstance(found[:2], Measurements) and len(found[:2]) == 2
    assert all(record_error(record) is None for record in found)
    assert "8 records of" in repr(found) and "n = 4, 6, 8, 12" in repr(found)
    assert repr(Measurements([])) == "Measurements(0 records of nothing at n = –)"
    assert repr(found[:1]).startswith("Measurements(1 record of")
    many = Measurements([{**found[0], "n": n} for n in range(1, 21)])
    assert "at n = 1 … 20 (20 lengths)" in repr(many)


def test_intervals_contain_the_norm_of_the_dense_jacobian(found, tiny):
    """In float64, at the tokens that the model computed."""
    model = howsmooth.load(tiny)
    for record in found:
        # Both samples in one forward pass, as measured: one by one, float32 tokens differ by rounding.
        x = model.activations(model.chunks(TEXT, record["n"], 2), [1])[1][record["sample"]].double()
        J = model.attention(1, record["n"]).to(torch.float64).jacobian(x).dense()
        assert at_most(record["lower"], float(torch.linalg.matrix_norm(J, 2)), record["upper"], tol=1e-10)


@pytest.mark.parametrize("given", ["path", "content", "corpus"])
def test_a_text_is_given_by_name_or_as_a_string(found, tiny, river, given):
    text = {"path": river, "content": TEXT, "corpus": Corpus("river.txt", (TEXT,))}[given]
    again = howsmooth.measure(tiny, text, **FEW)
    but = ("seconds", *(("text", "task") if given == "content" else ()))
    assert all(same_record(a, b, but=but) for a, b in zip(found, again, strict=True))


def test_a_model_is_given_by_name_loaded_or_as_a_transformers_model(found, tiny, river):
    model = howsmooth.load(tiny)
    loaded = howsmooth.measure(model, river, **FEW)  # it may have been changed in memory: its tasks are its own
    assert all(same_record(a, b, but=("seconds", "task")) for a, b in zip(found, loaded, strict=True))
    assert not {record["task"] for record in found} & {record["task"] for record in loaded}
    for given, tokenizer in ((model.network, tiny), (model.network, model.tokenizer), (tiny, model.tokenizer)):
        whole = howsmooth.measure(given, river, **FEW, tokenizer=tokenizer)
        assert [record["value"] for record in whole] == pytest.approx([record["value"] for record in found], rel=1e-6)
    with pytest.raises(howsmooth.InputError, match="expected tokenizer only with a model that is yet to be loaded"):
        howsmooth.measure(model, river, **FEW, tokenizer=model.tokenizer)


def test_numpy_and_torch_values_are_accepted(found, tiny, river):
    again = howsmooth.measure(
        tiny,
        river,
        layers=np.array([1]),
        lengths=np.array([4, 6, 8, 12]),
        samples=np.int64(2),
        tol=np.float64(1e-2),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert same(found, again)
    listed = howsmooth.measure(tiny, river, **{**FEW, "layers": [np.int64(1)], "lengths": range(4, 7, 2)})
    json.dumps(listed.records)
    assert {record["n"] for record in listed} == {4, 6} and {record["layer"] for record in listed} == {1}


def test_progress_is_called_with_every_record(tiny, river):
    received: list[dict] = []
    again = howsmooth.measure(tiny, river, progress=received.append, layers=[0], lengths=[4], samples=2)
    assert received == again.records


def test_a_file_of_attention_layers_is_measured_on_random_tokens(tmp_path):
    from tests.data import make_gpt2

    (record,) = howsmooth.measure(make_gpt2(tmp_path), layers=[6], lengths=[5], samples=1)
    assert (record["inputs"], record["layer"]) == ("normalised", 6)


def test_laws(found):
    ((key, law),) = found.fits.items()
    values = [record["value"] for record in found]
    assert dict(zip(CURVE, key, strict=True))["layer"] == 1 and law.lengths == 4 and law.points == 8
    assert law == fit_law([record["n"] for record in found], values, [record["sample"] for record in found])
    assert all(law.exponent is None for law in found[:6].fits.values()), "three lengths have no exponent"
    assert "no exponent from 3 lengths" in str(found[:6])


def test_the_terminal_table_has_the_largest_value_of_each_length(found):
    from howsmooth.report.rows import number

    for n in FEW["lengths"]:
        assert number(max(record["value"] for record in found if record["n"] == n)) in str(found)


def test_tables_in_a_notebook(found):
    from howsmooth.report.rows import number

    html = found._repr_html_()
    assert html.count("<table>") == 2 == html.count("</table>"), "the constants, and their growth"
    assert html.count("<svg") == 1 == html.count('class="words"'), "the growth, and the worst direction over the text"
    for n in FEW["lengths"]:
        assert number(max(record["value"] for record in found if record["n"] == n)) in html
    assert "<svg" not in found[:2]._repr_html_(), "one length"
    assert Measurements([])._repr_html_().endswith("<p>Measurements(0 records of nothing at n = –)</p></div>")
    hostile = Measurements([{**record, "model": "<script>"} for record in found])
    assert "<script>" not in hostile._repr_html_()


def test_pandas(found):
    pytest.importorskip("pandas", reason="needs pandas, which is not installed: pip install pandas")
    frame = found.to_pandas()
    assert len(frame) == 8 and list(frame["n"]) == [record["n"] for record in found]
    assert list(frame["value"]) == [record["value"] for record in found]  # exact: copied
    assert frame["source"][0] == found[0]["source"]


def test_a_figure(found, tmp_path):
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    figure = found.plot(tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert "layer 1" in figure.axes[0].get_legend_handles_labels()[1][0]
    with pytest.raises(InputError, match=r"ending in .png, .svg or .pdf for path, got 'growth.doc'"):
        found.plot("growth.doc")


def test_a_page(found, tmp_path):
    path = found.report(tmp_path / "page.html", title="the tiny one")
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "the tiny one" in page
    assert not re.search(r'(src|href)="https?:', page), "the page must be self-contained"


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_saved_and_read_back(found, tmp_path, ending):
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason=reasons.extra("pyarrow", "parquet"))
    path = found.save(tmp_path / f"records{ending}")
    again = howsmooth.read(path)
    assert again.records == found.records and not again.notes  # exact: written in full
    assert again.fits == found.fits
    twice = howsmooth.read(path, path)
    assert len(twice) == 8 and twice.notes == ["8 records came twice and count once."]


def test_a_store_is_read(found, tmp_path):
    with Store.write(tmp_path / "s.sqlite") as store:
        store.plan({"name": "s"}, [record["task"] for record in found] + ["one more"])
        store.add((record["task"], record, None) for record in found)
    again = howsmooth.read(tmp_path / "s.sqlite")
    assert again.records == found.records  # exact: written in full
    assert "8 of 9 tasks are done" in again.notes[0]


def test_csv_can_be_written_but_not_read(found, tmp_path):
    path = found.save(tmp_path / "records.csv")
    with open(path, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["value"]) for row in rows] == [record["value"] for record in found]  # exact: written in full
    with pytest.raises(InputError, match=r"expected JSON lines, Parquet or a store, got .*records\.csv: CSV .*\.jsonl"):
        howsmooth.read(path)


def test_invalid_files_are_refused(found, tmp_path):
    with pytest.raises(InputError, match=r"ending in .jsonl"):
        found.save(tmp_path / "records.txt")
    with pytest.raises(InputError, match="folder that exists"):
        found.save(tmp_path / "no" / "records.jsonl")
    with pytest.raises(InputError, match="no such file"):
        howsmooth.read(tmp_path / "nothing.jsonl")
    (tmp_path / "old.jsonl").write_text('{"model": "minilm", "value": 2.0}\n', encoding="utf-8")
    with pytest.raises(InputError, match="expected a record with a kind"):
        howsmooth.read(tmp_path / "old.jsonl")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"lenghts": [4]}, "measure: unknown key 'lenghts'; did you mean 'lengths'"),
        ({"samples": 0}, "measure: samples"),
        ({"tokens": "none"}, "measure: tokens.0"),
        ({"quantities": "entropy"}, "expected a quantity among lipschitz"),
        ({"dtype": "int8"}, "measure: models.0.dtype"),
        ({"models": ["minilm"]}, "expected one model and one text, measured in this process, got 'models'"),
        ({"texts": ["embedded"]}, "got 'texts'; for several"),
        ({"engine": {"workers": 2}}, "got 'engine'"),
        ({"text": "no/such/file"}, "no such file"),
        ({"text": ""}, "texts.0.source: expected a value with at least 1 character, got ''"),
        ({"inputs": "normalised", "map": "layer"}, "expected a text for the map layer"),
    ],
)
def test_invalid_fields_are_refused_before_a_model_is_loaded(fields, words, monkeypatch):
    monkeypatch.setattr("howsmooth.models.loading.load", lambda **_: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=words):
        howsmooth.measure("a model that is not there", **fields)


def test_fields_that_do_not_fit_the_model_are_refused_before_anything_is_computed(tiny, river, monkeypatch):
    model = howsmooth.load(tiny)
    monkeypatch.setattr("howsmooth.questions.quantities.local_lipschitz", lambda *_, **__: pytest.fail("computed"))
    for fields, words in (
        ({"layers": [2]}, "between 0 and 1, got 2"),
        ({"lengths": [33]}, "at most 32 tokens"),
        ({"lengths": [8], "samples": 200}, "expected 1600 tokens of text"),
        ({"max_memory": 1000}, "max_memory of at least"),
    ):
        with pytest.raises(InputError, match=words):
            howsmooth.measure(model, river, **{"lengths": [8], "samples": 1, **fields})
    with pytest.raises(InputError, match="expected dtype only with a model that is yet to be loaded"):
        howsmooth.measure(model, river, dtype="float64")
    with pytest.raises(InputError, match="expected the name of a model"):
        howsmooth.measure(3.5, river)


def test_looking_up_measure_does_not_import_torch():
    code = "import howsmooth, sys; howsmooth.measure; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

"""Study files: errors name the key, options override the file, torch is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from howsmooth.errors import InputError
from howsmooth.questions.spec import read_study, spec_of

GOOD = {"models": "minilm", "lengths": [8]}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"lenghts": [4]}, "unknown key 'lenghts'; did you mean 'lengths'"),
        ({"zebra": 1}, "unknown key 'zebra'; known are question, name"),
        ({"models": [{"name": "m", "revison": "x"}]}, "unknown key 'revison' in models; did you mean 'revision'"),
        ({"texts": [{"source": "a", "spilt": "x"}]}, "'spilt' in texts; did you mean 'split'"),
        ({"engine": {"adress": "x"}}, "'adress' in engine; did you mean 'address'"),
        ({"engine": {"name": "rya"}}, "engine.name.*'rya'"),
        ({"layers": [1.5]}, r'layers: expected "all" or numbers such as.*\[1.5\]'),
        ({"layers": "some"}, "layers: expected"),
        ({"lengths": []}, "lengths"),
        ({"lengths": [0]}, "lengths.0"),
        ({"lengths": "8..4"}, "range that grows"),
        ({"lengths": "1..x"}, "2..98"),
        ({"samples": 0}, "samples"),
        ({"tol": 0}, "tol"),
        ({"confidence": 1}, "confidence"),
        ({"tokens": "none"}, "tokens.0"),
        ({"heads": [0], "map": "attention"}, 'heads only with map = "head"'),
        ({"quantities": "released", "tokens": "no-first"}, "quantity released, which moves every token"),
        ({"quantities": "released-map", "map": "layer"}, 'map = "attention" for .* released-map, got "layer"'),
        ({"quantities": "lipschitz,entropy"}, "a quantity among lipschitz, .*, got 'entropy'"),
        ({"special_tokens": True}, "special_tokens: expected 'add' or 'none', got True"),
        ({"max_memory": "lots"}, "4G"),
        ({"max_memory": "9" * 5000}, "4G"),
        ({"lengths": "1..1000000000000"}, "at most 10000 lengths"),
        ({"models": []}, "models"),
        ({"models": [{"name": "m", "checkpoints": ["a"], "revisions": ["b"]}]}, "got both"),
        ({"base": "/x", "cuting": "x"}, "'cuting'; did you mean 'cutting'"),
    ],
)
def test_invalid_specs_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        spec_of({**GOOD, **change})


def test_short_forms():
    study = spec_of(
        {
            "models": ["minilm", {"name": "gpt2", "weights": "random"}],
            "lengths": "2..8+2,16..64*2",
            "tokens": "all",
            "max_memory": "2G",
            "heads": 3,
        }
    )
    assert study.lengths == (2, 4, 6, 8, 16, 32, 64)
    assert [model.name for model in study.models] == ["minilm", "gpt2"]
    assert (study.map_name, study.heads, study.max_memory) == ("head", (3,), 2 << 30)


def test_a_series_becomes_its_checkpoints():
    spec = spec_of({**GOOD, "models": {"name": "run", "checkpoints": ["a", "b"], "dtype": "float64"}}).models[0]
    assert [(m.name, m.series, m.checkpoint, m.dtype) for m in spec.members()] == [
        ("a", "run", "a", "float64"),
        ("b", "run", "b", "float64"),
    ]
    spec = spec_of({**GOOD, "models": {"name": "hub/model", "revisions": ["step1", "step2"]}}).models[0]
    assert [(m.name, m.revision, m.checkpoint) for m in spec.members()] == [
        ("hub/model", "step1", "step1"),
        ("hub/model", "step2", "step2"),
    ]


def test_a_file_with_overrides(tmp_path):
    file = tmp_path / "growth.toml"
    file.write_text('models = "minilm"\nlengths = [8]\n[engine]\nworkers = 3\nretries = 1\n')
    study = read_study(file, {"lengths": "4..8+4", "engine": {"workers": 1}})
    assert (study.name, study.lengths, study.engine.workers, study.engine.retries) == ("growth", (4, 8), 1, 1)
    (tmp_path / "text.txt").write_text("x")
    assert study.path("text.txt") == str(tmp_path / "text.txt") and study.path("minilm") == "minilm"


@pytest.mark.parametrize("content, words", [("models = ", "TOML"), ("base = '/'\nmodels='m'\nlengths=[1]", "'base'")])
def test_files_that_are_not_studies_are_refused(tmp_path, content, words):
    file = tmp_path / "x.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=words):
        read_study(file)
    with pytest.raises(InputError, match="no such file"):
        read_study(tmp_path / "none.toml")


def test_reading_a_study_needs_no_torch():
    code = "import sys; from howsmooth.questions.spec import spec_of; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_random_models_are_parsed_alike_in_all_forms():
    assert spec_of({"models": ["random:gpt2"]}) == spec_of({"models": [{"name": "gpt2", "weights": "random"}]})
    for models in ("a.safetensors", ["a.safetensors"], [{"name": "a.safetensors", "dtype": "float64"}]):
        assert spec_of({"models": models}).inputs == "normalised"
        assert spec_of({"models": models, "texts": ["alice"]}).inputs == "text"
    assert spec_of({"models": ["a.safetensors", "minilm"]}).inputs == "text"

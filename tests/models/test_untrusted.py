"""Models of strangers: no code of theirs runs unless it is allowed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import howsmooth
from howsmooth.errors import InputError
from howsmooth.models import inputs, load
from tests.models.tiny import tiny_network, tiny_tokenizer

SOURCE = Path(howsmooth.__file__).parent
LOADERS = {"from_pretrained", "from_config", "_from_config", "load_dataset"}


def loading_calls(source: str) -> list[ast.Call]:
    """Return the calls by which transformers and datasets may load code."""
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS
    ]


def is_explicit(call: ast.Call) -> bool:
    """Return whether a call passes trust_remote_code by its name, and not as None."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "trust_remote_code"]
    return bool(given) and not (isinstance(given[0], ast.Constant) and given[0].value is None)


def test_every_loading_call_says_whether_code_is_trusted():
    """Without the argument, the libraries ask on the terminal, and "yes" on stdin is an answer."""
    found = 0
    for path in sorted(SOURCE.rglob("*.py")):
        for call in loading_calls(path.read_text(encoding="utf-8")):
            found += 1
            assert is_explicit(call), f"{path.relative_to(SOURCE)}:{call.lineno} does not pass trust_remote_code"
    assert found >= 5


@pytest.mark.parametrize(
    "call, explicit",
    [
        ("A.from_pretrained(p)", False),
        ("A.from_pretrained(p, **more)", False),
        ("A.from_config(c, trust_remote_code=None)", False),
        ("datasets.load_dataset(n, split=s)", False),
        ("A.from_config(c, trust_remote_code=False)", True),
        ("A.from_pretrained(p, trust_remote_code=trusted, **more)", True),
    ],
)
def test_the_walk_recognises_calls_that_do_not(call, explicit):
    assert [is_explicit(each) for each in loading_calls(call)] == [explicit]


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Write evil.py, which leaves a marker, and the files that name it; every prompt is answered by yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "yes")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = tmp_path / "marker"

    def write(folder: Path, file: str, **content: object) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
        path = folder / file
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **content}))
        return marker

    return write


TOKENIZER = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
EVERY_CLASS = dict.fromkeys(
    ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoImageProcessor", "AutoFeatureExtractor"), "evil.Evil"
)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    tiny_network("gpt2").save_pretrained(path)
    tiny_tokenizer("gpt2").save_pretrained(path)
    return path


@pytest.mark.parametrize("random", ["", "random:"])
@pytest.mark.parametrize("known", [True, False])
def test_a_config_that_names_code(folder, hostile, random, known):
    marker = hostile(folder, "config.json", auto_map=EVERY_CLASS, **({} if known else {"model_type": "evil"}))
    if known:  # transformers has code of its own for this family
        assert load(f"{random}{folder}").family == "gpt2"
    else:
        with pytest.raises(InputError, match="custom code") as refusal:
            load(f"{random}{folder}")
        assert "\n" not in str(refusal.value)
    assert not marker.exists()


def test_a_tokenizer_that_names_code(folder, hostile):
    marker = hostile(folder, "tokenizer_config.json", **TOKENIZER)
    load(folder)
    load("random:bert", tokenizer=folder)
    load(tiny_network("gpt2"), tokenizer=folder)
    assert not marker.exists()


def test_a_tokenizer_that_makes_texts_longer(folder, monkeypatch):
    """Ten replacements of one letter by ten make ten billion letters of one, as soon as it is loaded."""
    content = json.loads((folder / "tokenizer.json").read_text())
    tenfold = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    content["normalizer"] = {"type": "Sequence", "normalizers": [tenfold] * 10}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    monkeypatch.setattr(inputs, "AutoTokenizer", None)  # nor is the library given the file
    model = load(folder)
    assert model.tokenizer is None
    with pytest.raises(InputError, match=r"may make a text 1e\+10 times as long, and at most 1000 is allowed"):
        model.chunks("a text", 2)


@pytest.mark.parametrize(
    "pattern, content, factor",
    [
        ({"String": " "}, "▁", 1),
        ({"String": "``"}, '"', 1),
        ({"String": "ab"}, "abcdef", 3),
        ({"Regex": " {2,}"}, " ", 1),
        ({"Regex": "x*"}, "a", 2),
        ({"Regex": "(?!broken"}, "aaa", 4),
        ({"String": ""}, "aaa", 4),
        (7, None, 2),
    ],
)
def test_the_growth_by_a_replacement(pattern, content, factor):
    assert (
        inputs.normalised_growth({"type": "Replace", "pattern": pattern, "content": content}) == factor
    )  # exact: whole


def test_a_processor_that_names_code(tmp_path, hostile):
    from transformers import ViTConfig, ViTModel

    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8)
    ViTModel(ViTConfig(**sizes, patch_size=4)).save_pretrained(tmp_path / "vit")
    marker = hostile(tmp_path / "vit", "preprocessor_config.json", image_processor_type="Evil", auto_map=EVERY_CLASS)
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8))
    image.save(tmp_path / "a.png")
    with pytest.raises(InputError, match="image processor") as refusal:
        load(tmp_path / "vit").images(tmp_path / "a.png")
    assert "\n" not in str(refusal.value) and not marker.exists()


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "vocab.txt", "generation_config.json", "chat_template.jinja"]
)
def test_a_text_of_a_model_that_is_too_large_is_not_read(folder, name):
    """A file without content, of which the disk keeps nothing; the library would fill the memory with it."""
    with (folder / name).open("w") as file:
        file.truncate(60 << 30)
    with pytest.raises(
        InputError, match=rf"expected at most 256 MiB of (JSON|text), got 61440 MiB in .*{name}"
    ) as refusal:
        load(folder)
    assert "\n" not in str(refusal.value)
    with pytest.raises(InputError, match=r"at most 256 MiB"):
        load("random:bert", tokenizer=folder)

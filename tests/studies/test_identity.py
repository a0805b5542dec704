"""The identity of a number: a record is used again only if everything that determines it is the same."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import howsmooth
from howsmooth.models.identity import file_states, folder_hashes, model_identity
from howsmooth.studies import prepare_model, run_study, spec_of
from howsmooth.studies.plan import prepare
from howsmooth.studies.store import Store
from howsmooth.texts.corpora import read_corpus
from tests.studies.conftest import save_tiny
from tests.tolerances import close


def change_config(folder: Path, **fields) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.fixture
def copy(tiny, tmp_path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def tasks(declared, folder) -> set[str]:
    return set(prepare(spec_of({**declared, "models": [str(folder)]}), timed=False).tasks())


@pytest.mark.parametrize(
    "change",
    [{"n_head": 4}, {"layer_norm_epsilon": 0.5}, {"scale_attn_weights": False}, {"activation_function": "relu"}],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_config_is_measured_anew(declared, copy, tmp_path, change):
    """The weights stay the same: their hash alone would keep the old numbers."""
    study, path = spec_of({**declared, "models": [str(copy)], "map": "layer", "lengths": [8]}), tmp_path / "s.sqlite"
    run_study(study, path)
    change_config(copy, **change)
    counts = run_study(study, path)
    assert counts["other"] == counts["planned"] == counts["done"]
    run_study(study, tmp_path / "fresh.sqlite")
    with Store.read(path) as store, Store.read(tmp_path / "fresh.sqlite") as fresh:
        both = list(zip(store.records(), fresh.records(), strict=True))
    assert len(both) == counts["planned"] and all(close(a["value"], b["value"], tol=1e-6) for a, b in both)


def test_python_measures_a_changed_folder_anew(copy):
    def value() -> float:
        return howsmooth.measure(str(copy), inputs="ids", lengths=[8], samples=1, layers=[0])[0]["value"]

    first = value()
    change_config(copy, n_head=4)
    assert not close(value(), first, tol=1e-3)


def test_shards_that_an_index_names_are_hashed(tiny, tmp_path):
    """An index beside no weights of its own: before, the record had no hash at all."""
    folder = tmp_path / "indexed"
    shutil.copytree(tiny, folder)
    shard = (folder / "model.safetensors").rename(folder / "a.safetensors")
    with safe_open(shard, "pt") as tensors:
        names = dict.fromkeys(tensors.keys(), shard.name)
    index = {"metadata": {"total_size": shard.stat().st_size}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    before = folder_hashes(folder)
    assert {shard.name, "model.safetensors.index.json", "config.json", "tokenizer.json"} <= before.keys()
    shutil.copy(Path(save_tiny(tmp_path / "other", seed=1)) / "model.safetensors", shard)
    after = folder_hashes(folder)
    assert {name for name in before if before[name] != after[name]} == {shard.name}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_every_file_that_is_read_is_in_the_identity(declared, copy, name):
    base = tasks(declared, copy)
    assert tasks(declared, copy) == base
    file = copy / name
    if file.suffix == ".json":
        file.write_text(file.read_text() + "\n")
    else:
        other = save_tiny(copy.with_name("other"), seed=1)
        shutil.copy(Path(other) / name, file)
    assert not tasks(declared, copy) & base


def test_a_file_is_hashed_once(copy, monkeypatch):
    from howsmooth.models import embedded

    monkeypatch.setattr(embedded, "_SETTLED", 0)
    monkeypatch.setattr(embedded, "_hashes", {})
    read, real = [], embedded.hashlib.file_digest
    monkeypatch.setattr(
        embedded.hashlib, "file_digest", lambda stream, kind: read.append(stream.name) or real(stream, kind)
    )
    first = folder_hashes(copy)
    assert folder_hashes(copy) == first and len(read) == len(first)
    change_config(copy, n_head=4)
    assert folder_hashes(copy)["config.json"] != first["config.json"] and len(read) == len(first) + 1


def test_nothing_is_used_again_where_the_code_cannot_be_hashed(declared, tiny, tmp_path):
    spec, corpus = spec_of({**declared, "lengths": [8]}), read_corpus(declared["texts"][0])

    def planned(model, **options) -> set[str]:
        return set(prepare_model(spec, model, corpus, **options).tasks())

    model = howsmooth.load(tiny)
    assert planned(model, from_files=True) == planned(howsmooth.load(tiny), from_files=True)
    assert not planned(model) & planned(model)  # its weights may have been changed in Python
    given = howsmooth.load(model.network, tokenizer=model.tokenizer)
    assert not planned(given, from_files=True) & planned(given, from_files=True)
    plan, path = prepare_model(spec, given, corpus), tmp_path / "given.sqlite"
    assert run_study(plan, path)["other"] == 0 and run_study(plan, path)["other"] == 0  # one plan can be resumed
    assert run_study(prepare_model(spec, given, corpus), path)["other"] == plan.count


def test_hooks_and_replaced_methods_are_code_of_their_own(tiny):
    def same() -> bool:
        return model_identity(model) == model_identity(model)

    model = howsmooth.load(tiny)
    first = next(module for module in model.network.modules() if isinstance(module, torch.nn.LayerNorm))
    assert same()
    for register in (first.register_forward_hook, first.register_forward_pre_hook):
        handle = register(lambda *_: None)
        assert not same()
        handle.remove()
        assert same()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not same()
    handle.remove()
    first.forward = lambda x: x
    assert not same()


def test_a_method_replaced_in_a_class_is_code_of_its_own(tiny, monkeypatch):
    """The files are the same, and what `howsmooth.load` makes of them is another map."""
    model = howsmooth.load(tiny)
    kind = type(next(module for module in model.network.modules() if type(module).__name__.endswith("Attention")))
    assert model_identity(model) == model_identity(model)
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args, **options: plain(self, *args, **options))
    assert model_identity(model) != model_identity(model)


def test_a_file_whose_time_is_set_back_is_read_again(copy):
    before, state = file_states(str(copy)), (copy / "config.json").stat()
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text.replace('"n_head": 2', '"n_head": 4'))
    os.utime(copy / "config.json", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (copy / "config.json").stat().st_size == state.st_size
    assert file_states(str(copy)) != before


def test_measuring_does_not_change_the_identity(tiny):
    model = howsmooth.load(tiny)
    before = model_identity(model)
    howsmooth.measure(model, inputs="ids", lengths=[8], samples=1, layers=[0], map="layer")
    assert model_identity(model) == before


def test_more_samples_of_images_are_further_tasks(tmp_path):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8)
    config.patch_size = 4
    ViTModel(config).save_pretrained(tmp_path / "vit")

    def planned(samples: int) -> list[str]:
        declared = {"models": [str(tmp_path / "vit")], "inputs": "images", "lengths": [5], "samples": samples}
        return list(prepare(spec_of(declared), timed=False).tasks())

    assert set(planned(2)) < set(planned(3)) and len(set(planned(3))) == 3

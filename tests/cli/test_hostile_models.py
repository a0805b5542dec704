"""Models of strangers on the command line: no code of theirs runs, and what is wrong is said in one line."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reasons
from tests.cli.conftest import ENVIRONMENT

YES = "yes\n" * 20  # the answer to any question on the terminal


@pytest.fixture
def gguf_with_code(tmp_path) -> tuple[Path, Path]:
    """A GGUF file beside a config and a tokenizer that name code, and the marker that the code would leave."""
    pytest.importorskip("gguf", reason=reasons.GGUF)
    from tests.models.test_cache_gguf import write_gguf

    folder, marker = tmp_path / "download", tmp_path / "marker"
    folder.mkdir()
    write_gguf(folder / "x.gguf")
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
    auto_map = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": auto_map}))
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto_map}))
    return folder / "x.gguf", marker


@pytest.mark.parametrize("by_study", [False, True])
def test_the_neighbours_of_a_gguf_file_are_not_read(gguf_with_code, by_study, howsmooth, tmp_path, monkeypatch):
    file, marker = gguf_with_code
    line = f"measure {file} --inputs ids --lengths 4,8 --samples 1 --layers 0"
    if by_study:
        study = {"name": "hostile", "models": [str(file)], "inputs": "ids", "lengths": [4, 8], "layers": [0]}
        keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in study.items())
        (tmp_path / "s.toml").write_text(f"{keys}[engine]\nworkers = 0\n")
        line = f"study run {tmp_path / 's.toml'} --store {tmp_path / 's.sqlite'}"
    monkeypatch.setenv("HOWSMOOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(YES.encode())))
    done = howsmooth(line)
    assert not marker.exists()
    assert done.code == 0 and "howsmooth:" not in done.err, done.err  # the file itself is sound
    assert "custom code" not in done.out + done.err and "[y/N]" not in done.out + done.err
    assert not list((tmp_path / "cache").rglob("*.py"))  # the cache does not keep the code for a later load


def test_a_config_that_cannot_be_built_is_refused_in_one_line(tiny, tmp_path, howsmooth):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    for content in ('{"a":' * 200_000 + "1" + "}" * 200_000, json.dumps({**config, "n_layer": 10**9})):
        (folder / "config.json").write_text(content)
        refused = howsmooth(f"measure {folder} --lengths 4,8 --layers 0")
        assert refused.code == 2 and len(refused.errors) == 1, refused.errors


@pytest.mark.parametrize("chosen, disabled", [(None, "True"), ("0", "False")])
def test_telemetry_of_the_hub_is_off_unless_the_user_chose(chosen, disabled):
    code = """
from howsmooth.cli import main
try:
    main(["models"])
except SystemExit:
    from huggingface_hub import constants
    print(constants.HF_HUB_DISABLE_TELEMETRY)
"""
    others = {"HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE"}
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in others}
    if chosen is not None:
        environment["HF_HUB_DISABLE_TELEMETRY"] = chosen
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split()[-1] == disabled, done.stderr

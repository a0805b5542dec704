"""Every command that takes `--device`, on the CPU and on a GPU: both finish, and their intervals overlap.

A new command with `--device` fails `test_every_command_with_a_device_is_run` until it has a line here.
"""

from __future__ import annotations

import json

import click
import pytest
import torch

from howsmooth.cli.main import group
from tests.cli.conftest import howsmooth, text_file, tiny  # noqa: F401  fixtures
from tests.tolerances import at_most, close

TEXT = "--text {text} --lengths 8,16"
ONE = "--text {text} --lengths 8 --layers 0"
COMMANDS = {
    "measure": f"{TEXT} --quantities lipschitz",
    "compare": "{tiny} --text {text} --layers 0 --lengths 4,8",
    "bound": f"{TEXT} --radius 2",
    "attack worst-case": f"{ONE} --steps 3 --restarts 1",
    "attack ball": f"{ONE} --heads 1 --eps 0.01 --steps 3 --restarts 1",
    "attack configuration": "--lengths 4,8 --layers 0",
    "attack layer": f"{ONE} --attack singular --budget 0.01",
    "attack model": "--text {text} --lengths 8 --attack sign --budget 0.01",
    "attack tokens": "--text {text} --lengths 12 --method hotflip --edits 1 --calls 20",
    "meanfield splitting": ONE,
    "meanfield splitting-copies": "--text {text} --layers 0 --lengths 4",
    "meanfield distance": "--text {text} --layers 0 --lengths 8 --p 2",
    "flow weights": "--text {text} --layers 0 --lengths 6 --until 0.5",
    "flow model": "--text {text} --lengths 6 --depths 2",
    "plan": TEXT,
}


def commands_with_a_device(command: click.Command = group, path: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(command, click.Group):
        return [" ".join(path)] * any(parameter.name == "device" for parameter in command.params)
    context = click.Context(command)
    inner = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return [found for name, one in inner for found in commands_with_a_device(one, (*path, name))]


def test_every_command_with_a_device_is_run():
    # Distances of files are computed on the CPU; --device is that of a model that is asked for as well.
    assert sorted([*COMMANDS, "meanfield file-distance"]) == sorted(commands_with_a_device())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_on_every_device_there_is(command, howsmooth, tiny, text_file, tmp_path):  # noqa: F811
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    records = {}
    for device in devices:
        file = tmp_path / f"{device}.jsonl"
        line = f"{command} {tiny} {COMMANDS[command].format(text=text_file, tiny=tiny)} --device {device} --json {file}"
        result = howsmooth(line)
        assert result.code == 0, result.err
        records[device] = [json.loads(one) for one in file.read_text().splitlines()]
        assert records[device]
    if len(devices) == 1:  # the line itself is right; make test-gpu compares
        return
    assert len(records["cpu"]) == len(records["cuda"])
    for here, there in zip(records["cpu"], records["cuda"], strict=True):
        if here.get("lower") is not None and here.get("upper") is not None:
            assert at_most(max(here["lower"], there["lower"]), min(here["upper"], there["upper"]), tol=1e-4)
        elif isinstance(here.get("value"), float):
            assert close(here["value"], there["value"], tol=1e-2)

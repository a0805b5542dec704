"""Training through a JVP with activation checkpointing and with sharded parameters."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils.checkpoint import checkpoint

from howsmooth import attend
from tests import reasons
from tests.attention.cases import normal
from tests.tolerances import assert_close

# In 2.7.1 checkpoints have no forward mode, and sharded parameters cannot be gathered in `torch.func.jvp`: neither
# works for an `nn.Linear`. Both work in 2.11 and 2.13; versions in between were not tried.
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11)


class Block(torch.nn.Module):
    """Attention of four heads with a residual connection."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).unbind()
        return x + self.out(attend(q, k, v, causal=True).transpose(1, 2).flatten(-2))


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block()).double()


def gradients(blocks, value_and_tangent):
    y, dy = value_and_tangent(blocks, normal(1, 2, 5, 16), normal(2, 2, 5, 16))
    (y.square().sum() + dy.pow(3).sum()).backward()
    return [p.grad for p in blocks.parameters()]


def whole(blocks, x, dx):
    return torch.func.jvp(blocks, (x,), (dx,))


def block_by_block(blocks, x, dx):
    """The recipe of docs/howto/forward_mode.md: the JVP of a block is recomputed in the backward pass."""
    for block in blocks:
        x, dx = checkpoint(lambda block, x, dx: torch.func.jvp(block, (x,), (dx,)), block, x, dx, use_reentrant=False)
    return x, dx


def test_checkpoints_around_the_jvp_of_each_block_change_nothing():
    for found, expected in zip(gradients(network(), block_by_block), gradients(network(), whole), strict=True):
        assert_close(found, expected)


@pytest.mark.skipif(IS_OLD, reason=reasons.OLD_TORCH)
def test_checkpoints_in_a_dual_level_change_nothing():
    blocks = network()
    with forward_ad.dual_level():
        z = forward_ad.make_dual(normal(1, 2, 5, 16), normal(2, 2, 5, 16))
        for block in blocks:
            z = checkpoint(block, z, use_reentrant=False)
        y, dy = forward_ad.unpack_dual(z)
        (y.square().sum() + dy.pow(3).sum()).backward()
    for found, expected in zip(blocks.parameters(), gradients(network(), whole), strict=True):
        assert_close(found.grad, expected)


SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tests.attention.test_training import block_by_block, gradients, network, whole
from tests.tolerances import assert_close

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
for value_and_tangent in (whole, block_by_block):
    blocks = network()
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(blocks, mesh=mesh)
    for found, expected in zip(gradients(blocks, value_and_tangent), gradients(network(), whole), strict=True):
        assert_close(found.full_tensor(), expected)
dist.destroy_process_group()
"""


@pytest.mark.skipif(IS_OLD, reason=reasons.OLD_TORCH)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of PyTorch has no torch.distributed")
def test_sharded_parameters_change_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]

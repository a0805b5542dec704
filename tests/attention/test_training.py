"""Training through a JVP with activation checkpointing, and in two processes: DDP and FSDP2."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
from torch import multiprocessing
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


def gradients(blocks, value_and_tangent, share=slice(None)):
    y, dy = value_and_tangent(blocks, normal(1, 2, 5, 16)[share], normal(2, 2, 5, 16)[share])
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


@pytest.mark.skipif(IS_OLD, reason=reasons.OLD_TORCH)
@pytest.mark.skipif(not dist.is_available(), reason="this build of PyTorch has no torch.distributed")
@pytest.mark.parametrize(
    "wrapping, value_and_tangent",
    [("fsdp", block_by_block), pytest.param("fsdp", whole, marks=pytest.mark.slow), pytest.param("ddp", whole)],
    ids=["sharded, block by block", "sharded", "replicated"],
)
def test_two_processes_compute_what_one_does(wrapping, value_and_tangent, tmp_path):
    multiprocessing.spawn(gradients_of_process, (wrapping, value_and_tangent, str(tmp_path)), nprocs=2)
    expected = [gradient / 2 for gradient in gradients(network(), whole)]  # the mean over processes
    for rank in range(2):
        for found, gradient in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            assert_close(found, gradient)


def gradients_of_process(rank, wrapping, value_and_tangent, folder):
    """Write the gradients of one of two processes, each of which has one of the two sequences."""
    from torch.distributed.device_mesh import init_device_mesh  # not in every build
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    blocks = model = network()
    if wrapping == "fsdp":
        mesh = init_device_mesh("cpu", (2,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(blocks, mesh=mesh)
    else:
        model = DistributedDataParallel(blocks)
    found = gradients(model, value_and_tangent, slice(rank, rank + 1))
    torch.save(
        [gradient.full_tensor() if wrapping == "fsdp" else gradient for gradient in found], f"{folder}/{rank}.pt"
    )
    dist.barrier()  # one process may not leave while the other still reads from it
    dist.destroy_process_group()

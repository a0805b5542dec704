"""MeanFlow on synthetic data: a small diffusion transformer that is trained through a JVP.

    python examples/meanflow.py --compare [--gradient semi|full] [--steps 500] [--tokens 1024] [--compile]

The average velocity u(z, r, t) between the times r and t satisfies u = v − (t − r) du/dt along the flow (Geng et al.,
2025). The total derivative du/dt is a JVP of the network along (v, 0, 1), so that attention needs a forward mode, and a
gradient through it. "semi" takes the right-hand side as a constant target; "full" differentiates it as well, which is
a second derivative of attention. --compare trains two networks from one seed, with howsmooth's attention and with
PyTorch's MATH backend, the one that has a forward mode, and prints both loss curves, the time of a step and the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import howsmooth

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def math_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention by PyTorch's MATH backend."""
    with sdpa_kernel(SDPBackend.MATH):
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Block(nn.Module):
    """Attention and an MLP, both modulated by the times."""

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        """Make the layers; the modulation starts at zero, so that the block starts as the identity."""
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """Return the tokens (b, n, d) after this block; `times` is (b, d)."""
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(times).unsqueeze(1).chunk(6, -1)
        y = nn.functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        x = x + gate * self.out(self.attention(q, k, v).transpose(1, 2).flatten(-2))
        y = nn.functional.layer_norm(x, x.shape[-1:]) * (1 + scale2) + shift2
        return x + gate2 * self.mlp(y)


class DiT(nn.Module):
    """A diffusion transformer for tokens (b, n, channels) and two times."""

    def __init__(self, channels: int, tokens: int, width: int, depth: int, heads: int, attention: Attention) -> None:
        """Make the layers."""
        super().__init__()
        self.inward, self.outward = nn.Linear(channels, width), nn.Linear(width, channels)
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.times = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(depth))

    def forward(self, z: Tensor, r: Tensor, t: Tensor) -> Tensor:
        """Return the average velocity between r and t, both (b,)."""
        frequencies = torch.exp(torch.arange(16, device=z.device) * (-math.log(1000) / 16))
        angles = torch.stack([t, t - r], -1).unsqueeze(-1) * frequencies * 2 * math.pi
        times = self.times(torch.cat([angles.sin(), angles.cos()], -1).flatten(1))
        x = self.inward(z) + self.positions
        for block in self.blocks:
            x = block(x, times)
        return self.outward(x)


def loss_of(network: nn.Module, z: Tensor, v: Tensor, r: Tensor, t: Tensor, gradient: str) -> Tensor:
    """Return the MeanFlow loss of a batch."""
    u, du_dt = torch.func.jvp(network, (z, r, t), (v, torch.zeros_like(r), torch.ones_like(t)))
    target = v - (t - r).view(-1, 1, 1) * du_dt
    return (u - (target.detach() if gradient == "semi" else target)).square().mean()


def draw(batch: int, tokens: int, channels: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw (z, v, r, t): waves of random phase as data, noise, and two times r ≤ t."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device)

    place = torch.linspace(0, 4 * math.pi, tokens, device=generator.device).view(1, -1, 1)
    data = torch.sin(place * (1 + uniform(batch, 1, channels)) + 2 * math.pi * uniform(batch, 1, channels))
    noise = torch.randn(data.shape, generator=generator, device=generator.device)
    r, t = uniform(2, batch).sort(0).values
    at = t.view(-1, 1, 1)
    return (1 - at) * data + at * noise, noise - data, r, t


def train(arguments: argparse.Namespace, attention: Attention, device: torch.device) -> dict:
    """Train a network and return its losses, the time of a step and the memory."""
    torch.manual_seed(arguments.seed)
    network = DiT(8, arguments.tokens, arguments.width, arguments.depth, arguments.heads, attention).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=arguments.lr)
    generator = torch.Generator(device).manual_seed(arguments.seed)
    loss_function = torch.compile(loss_of, fullgraph=True) if arguments.compile else loss_of
    losses, start = [], 0.0
    for step in range(arguments.steps):
        if step == 5:  # compiled and warm
            _wait(device)
            start = time.perf_counter()
        loss = loss_function(network, *draw(arguments.batch, arguments.tokens, 8, generator), arguments.gradient)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    _wait(device)
    ms = 1e3 * (time.perf_counter() - start) / max(1, arguments.steps - 5)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {"losses": torch.stack(losses).tolist(), "ms": ms, "gib": memory}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(given: list[str] | None = None) -> dict:
    """Train as the options say, print the comparison and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="train with PyTorch's MATH backend as well")
    parser.add_argument("--gradient", choices=("semi", "full"), default="semi")
    parser.add_argument("--compile", action="store_true")
    for name, default in (("steps", 500), ("tokens", 1024), ("batch", 16), ("width", 256), ("depth", 4), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(given)
    device = torch.device(arguments.device)
    found = {}
    for name, attention in {"howsmooth": howsmooth.attend, "math": math_attention}.items():
        if name == "howsmooth" or arguments.compare:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            found[name] = train(arguments, attention, device)
            losses = found[name]["losses"]
            shown = [round(losses[i], 4) for i in range(0, len(losses), max(1, len(losses) // 10))]
            print(json.dumps({"attention": name, **found[name], "losses": [*shown, round(losses[-1], 4)]}), flush=True)
    if arguments.compare:
        pairs = zip(found["howsmooth"]["losses"], found["math"]["losses"], strict=True)
        found["difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
        print(json.dumps({"largest relative difference of the losses": found["difference"]}))
    return found


if __name__ == "__main__":
    main()

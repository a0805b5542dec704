"""One training: a small language model, healthy or with a fault, and the signals every few steps until it ends.

A fault has a severity, drawn with the seed of the run, so that some runs of each fault diverge and others do not.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

import howsmooth

FAULTS = ("none", "learning rate", "no warm-up", "rounded attention", "no QK norm", "initialisation")
SIGNALS = {
    "sigma_attention": "σ₁ of attention",
    "sigma_layer": "σ₁ of the layer",
    "sigma_model": "σ₁ of all layers",
    "largest_logit": "largest logit",
    "softmax_condition": "κ of softmax",
    "spectral_entropy": "spectral entropy of QK",
    "gradient_norm": "gradient norm",
    "loss": "loss",
}
ABOVE = 1.0  # diverged: the loss is this much above its minimum for a twentieth of the steps
VOCABULARY = 96  # printable ASCII
RATE, WARM_UP, SPREAD = 3e-3, 40, 0.02  # of a healthy training


@dataclass(frozen=True)
class Size:
    """The size of a model and of its training.

    Attributes:
        layers: Layers.
        width: Width of the tokens.
        n: Tokens of a sequence.
        steps: Training steps.
        batch: Sequences of a step.
        every: Steps from one measurement to the next.
    """

    layers: int
    width: int
    n: int
    steps: int
    batch: int = 8
    every: int = 10

    @property
    def lasting(self) -> int:
        """For how many steps the loss of a diverged training is high: 50 of 1,000."""
        return max(1, self.steps // 20)


@dataclass(frozen=True)
class Setting:
    """What differs from a healthy training."""

    rate: float = RATE
    warm_up: int = WARM_UP
    spread: float = SPREAD
    bits: int | None = None
    qk_norm: bool = True

    @property
    def attention(self) -> str:
        """The name of the attention in transformers."""
        return "sdpa" if self.bits is None else f"rounded_{self.bits}"


def setting_of(fault: str, seed: int) -> Setting:
    """Return the setting of a run; its severity is drawn from the seed."""
    severity = float(torch.rand((), generator=torch.Generator().manual_seed(7919 * seed + FAULTS.index(fault))))
    rate = RATE * 10 ** (2 + 0.9 * severity)
    if fault == "learning rate":
        return Setting(rate=rate)
    if fault == "no warm-up":
        return Setting(rate=rate, warm_up=0)
    if fault == "rounded attention":
        return Setting(rate=rate, bits=1)
    if fault == "no QK norm":
        return Setting(rate=rate, qk_norm=False)
    if fault == "initialisation":
        return Setting(rate=rate / 2, spread=SPREAD * 10 ** (1 + 0.7 * severity))
    return Setting(rate=RATE * 10 ** (1.5 * severity - 0.5))


def letters(text: str) -> Tensor:
    """Return a text as numbers of printable characters."""
    return torch.tensor([min(max(ord(letter) - 32, 0), VOCABULARY - 1) for letter in text])


def make_network(size: Size, setting: Setting, seed: int) -> Qwen3ForCausalLM:
    """Return a model with the initialisation of the seed, with or without normalised queries and keys."""
    heads = max(2, size.width // 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=VOCABULARY,
                hidden_size=size.width,
                intermediate_size=3 * size.width,
                num_hidden_layers=size.layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                head_dim=size.width // heads,
                max_position_embeddings=size.n,
                initializer_range=setting.spread,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )
    if not setting.qk_norm:
        for layer in network.model.layers:
            layer.self_attn.q_norm, layer.self_attn.k_norm = torch.nn.Identity(), torch.nn.Identity()
    if setting.bits is not None:
        AttentionInterface.register(setting.attention, _rounded_attention(setting.bits))
    network.set_attn_implementation(setting.attention)
    return network.train()


def rounded(x: Tensor, bits: int) -> Tensor:
    """Return x with so many bits of mantissa; its derivative is that of x."""
    mantissa, exponent = torch.frexp(x.detach())
    scale = 2.0 ** (bits + 1)
    return x + (torch.ldexp(torch.round(mantissa * scale) / scale, exponent) - x.detach())


def _rounded_attention(bits: int) -> Any:
    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        n = query.shape[-2]
        scores = scaling * rounded(query, bits) @ rounded(key, bits).mT
        scores = scores.masked_fill(torch.ones(n, n, device=scores.device).tril() == 0, -math.inf)
        weights = rounded(scores.softmax(-1), bits)
        return (weights @ rounded(value, bits)).transpose(1, 2).contiguous(), weights

    return attention


def softmax_condition(weights: Tensor) -> float:
    """Return the largest ‖J‖ ‖s‖ / ‖p‖ over the rows of P (…, n, n), where p = softmax(s) and Σ s = 0.

    ‖J‖ = ‖diag p − p pᵀ‖ is at most p₁ (1 − p₁ + p₂) for the two largest entries, which is taken in its place.
    """
    n = weights.shape[-1]
    if n < 2:
        return 0.0
    visible = torch.ones(n, n, device=weights.device).tril().bool()
    log_p = weights.clamp(min=1e-30).log()
    counts = visible.sum(-1, keepdim=True)
    centred = (log_p - (log_p * visible).sum(-1, keepdim=True) / counts) * visible
    first, second = weights.topk(2, -1).values.unbind(-1)
    condition = first * (1 - first + second) * centred.norm(dim=-1) / weights.norm(dim=-1)
    return float(condition.max())


def spectral_entropy(wq: Tensor, wk: Tensor, heads: int) -> float:
    """Return the smallest entropy over heads of σᵢ² / Σ σ², of the singular values of W_Qᵀ W_K.

    Example:
        >>> round(spectral_entropy(torch.eye(2), torch.eye(2), 1), 4)
        0.6931
    """
    q, k = (w.detach().double().unflatten(0, (heads, -1)) for w in (wq, wk))
    powers = torch.linalg.svdvals(q.mT @ k)[:, : q.shape[1]].square()
    shares = powers / powers.sum(-1, keepdim=True)
    return float(-torch.special.xlogy(shares, shares).sum(-1).min())


def probe_signals(network: Qwen3ForCausalLM, probe: Tensor, implementation: str) -> dict[str, float]:
    """Return κ of softmax and the spectral entropy of QK, the worst over layers; then attention is as it was."""
    network.eval().set_attn_implementation("eager")
    with torch.no_grad():
        attentions = network(input_ids=probe[None], output_attentions=True).attentions
    network.train().set_attn_implementation(implementation)
    layers = network.model.layers
    return {
        "softmax_condition": max(softmax_condition(weights[0]) for weights in attentions),
        "spectral_entropy": min(
            spectral_entropy(
                layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, network.config.num_attention_heads
            )
            for layer in layers
        ),
    }


def monitored(monitor: howsmooth.Monitor, step: int) -> dict[str, float]:
    """Return the largest constants and logits over layers; none once the monitor is off."""
    found: dict[str, float] = {}
    for record in monitor.step(step) or ():
        name = f"sigma_{record['map']}"
        found[name] = max(found.get(name, 0.0), record["value"])
        if record.get("largest_logit") is not None:
            found["largest_logit"] = max(found.get("largest_logit", -math.inf), record["largest_logit"])
    return found


def onset_of(losses: list[float], lasting: int) -> int | None:
    """Return the step at which a training diverges: from there the loss is 1.0 above its minimum for `lasting` steps.

    Example:
        >>> onset_of([3.0] * 10 + [9.0] * 60, 50), onset_of([3.0] * 80, 50)
        (10, None)
        >>> onset_of([3.0, *[9.0] * 20, *[3.0] * 60], 50) is None  # it recovers
        True
    """
    lowest, since = math.inf, None
    for step, loss in enumerate(losses):
        lowest = min(lowest, loss) if loss == loss else lowest
        if loss == loss and loss <= lowest + ABOVE:
            since = None
        elif since is None:
            since = step
        if since is not None and step - since + 1 >= lasting:
            return since
    return None


def run(size: Size, fault: str, seed: int, ids: Tensor, device: str = "cpu") -> dict[str, Any]:
    """Train once, and return the signals at each measurement and where the training diverges."""
    setting = setting_of(fault, seed)
    network = make_network(size, setting, seed).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=setting.rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / (setting.warm_up + 1)))
    generator = torch.Generator().manual_seed(1_000_003 * seed + 17)
    probe = ids[: size.n].to(device)
    monitor = howsmooth.Monitor(
        network, every=size.every, maps=("attention", "layer", "model"), probe=probe, tol=0.1, seed=seed
    )
    losses: list[float] = []
    norms: list[float] = []
    logs: list[dict[str, float | None]] = []
    for step in range(size.steps):
        starts = torch.randint(size.n, len(ids) - size.n, (size.batch,), generator=generator)
        batch = torch.stack([ids[start : start + size.n] for start in starts]).to(device)
        loss = network(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), math.inf)
        losses.append(loss.item())
        norms.append(float(norm))
        if not (math.isfinite(losses[-1]) and math.isfinite(norms[-1])):
            break  # nothing is learnt from NaN
        optimiser.step()
        schedule.step()
        if onset_of(losses, size.lasting) is not None:
            break  # it has diverged
        if step % size.every == 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a monitor that is off has no signals
                found = monitored(monitor, step)
            recent = losses[-size.every :]
            signals = {
                **found,
                **probe_signals(network, probe, setting.attention),
                "gradient_norm": max(norms[-size.every :]),
                "loss": sum(recent) / len(recent),
            }
            logs.append({"step": step, **{name: _short(signals.get(name)) for name in SIGNALS}})
    onset = onset_of(losses, size.lasting)
    if onset is None and len(losses) < size.steps:
        onset = len(losses) - 1  # not a number
    return {
        "fault": fault,
        "seed": seed,
        "size": [size.layers, size.width, size.n, size.steps],
        "rate": setting.rate,
        "onset": onset,
        "final_loss": _short(losses[-1]),
        "lowest_loss": _short(min(losses)),
        "logs": logs,
    }


def _short(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(f"{number:.5g}")

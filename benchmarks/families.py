"""Which maps of which families of the installed transformers are served: one tiny random network for each model type.

    python benchmarks/families.py benchmarks/results/families.json [model_type ...]

Each network runs in float64 in a process of its own, with a limit of time and of memory. For the maps "attention",
"layer" and "model" the record says how the map is served ("formula", "attend", "autodiff"), or why it is refused. A
served map of a layer is compared with the network's own eager code: its value, and a product with Jᵀ by backward.
Configurations are the defaults of each family with all sizes made small; families whose defaults cannot be made small
in this way are counted as not built, which says nothing about howsmooth.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoModel
from transformers.utils import logging

from howsmooth import InputError, SelfAttention, load
from howsmooth.lipschitz.local import jacobian
from howsmooth.models.calls import first_tensor
from howsmooth.models.network import quiet_transformers

SECONDS, GIBIBYTES = 150, 12
KINDS = ("attention", "layer", "model")
# (pattern of the name of a size, its small value); the first that matches.
SIZES = (
    (r"^(max|min|num|n)?_?(text_)?(position_embeddings|positions|ctx)$|max_.*position|max_seq|block_size$", 64),
    (r"vocab_size|n_words", 99),
    (r"feat_extract|conv_", 10**9),
    (r"(num_)?(key_value|kv)_heads|num_key_value|n_kv|n_groups?$|num_groups$", 2),
    (r"n_group$|num_group$|num_expert_group|topk_group", 1),
    (r"num_experts_per|top_k$|moe_topk|moe_k$", 2),
    (r"(num|n)_.*experts|num_local_experts|moe_num_experts", 4),
    (r"shared_experts", 1),
    (r"heads?$", 4),
    (r"layers$|n_layer$|num_blocks$|^depth$", 2),
    (r"head_dim|head_size|d_kv|attention_size$|channels_per_head", 8),
    (r"lora_rank|rope_head_dim", 8),
    (r"dt_rank", 4),
    (r"(state_size|d_state|conv_kernel|d_conv)$", 4),
    (r"intermediate|ffn|d_ff|n_inner|ff_size|mlp_dim|feed_forward|feedforward", 32),
    (
        r"hidden_size|d_model|n_embd|embed_dim|^dim$|embedding_size|hidden_dim|projection_dim|width|d_embed|embedding_dim",
        32,
    ),
    (r"image_size", 32),
    (r"patch_size", 8),
)
# Lists with one number for each stage.
STAGES = (
    (r"conv_", []),
    (r"mrope_section", [2, 1, 1]),
    (r"heads$", [1, 2, 4, 8]),
    (r"depths$|_depth$|layers$", [2, 2, 1, 1, 1]),
    (r"hidden_sizes|dims?$|sizes$|widths$", [16, 32, 64, 128, 128]),
)
# Fields that a config derives from others.
DERIVED = {
    *("layer_types", "mlp_layer_types", "per_layer_config", "stage_names", "out_features", "out_indices"),
    *("_out_features", "_out_indices", "no_rope_layers", "attention_layers"),
}
# What the defaults of a family need beyond small sizes.
CHANGES: dict[str, dict[str, Any]] = {
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=4),
    "gptj": dict(rotary_dim=4),
    "codegen": dict(rotary_dim=4),
    "falcon_h1": dict(mamba_n_heads=4, mamba_d_head=8, mamba_d_ssm=32, mamba_n_groups=1),
    "bamba": dict(mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1),
    "mamba2": dict(num_heads=8, head_dim=8, n_groups=1),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=0),
    "qwen3_next": dict(linear_num_value_heads=4, linear_num_key_heads=2),
    "longformer": dict(attention_window=[10, 10]),
    "swin": dict(patch_size=2, window_size=4),
    "donut-swin": dict(patch_size=2, window_size=4),
    "maskformer-swin": dict(patch_size=2, window_size=4),
    "swinv2": dict(patch_size=2, window_size=4),
    "reformer": dict(axial_pos_embds=False, attn_layers=["local", "lsh"], num_hidden_layers=2),
    "deberta": dict(relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "deberta-v2": dict(relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True, position_buckets=4),
    "lfm2": dict(layer_types=["conv", "full_attention"]),
}


def shrink(value: Any, key: str = "") -> Any:
    """Return a configuration, as a dictionary, with all sizes made small."""
    if isinstance(value, dict):
        return {k: shrink(v, k) for k, v in value.items() if k not in DERIVED}
    if value is None:
        return {"head_dim": 8, "num_key_value_heads": 2}.get(key)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return next((small[: len(value)] or value for pattern, small in STAGES if re.search(pattern, key)), value)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.search(r"token_id$|_token_index$|_id$", key):
        return value if value < 90 else 3
    for pattern, small in SIZES:
        if re.search(pattern, key):
            return min(value, small)
    return value


def build(kind: str) -> Any:
    """Return a tiny random network of a model type."""
    config_class = CONFIG_MAPPING[kind]
    small = shrink(config_class().to_dict()) | CHANGES.get(kind, {})
    if small.get("num_hidden_layers") == 2 and re.search(
        "linear|mamba|recurrent|interval|layer_period", " ".join(small)
    ):
        small["num_hidden_layers"] = 4  # a hybrid: its period is four layers at most
    if "kv_lora_rank" in small:  # latent attention has a key for each head
        small["num_key_value_heads"] = small["num_attention_heads"]
    for key in ("full_attention_interval", "full_attn_idxs"):
        if key in small:
            small[key] = 4 if key.endswith("interval") else None
    config = config_class.from_dict(small)
    for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        if isinstance(rope := getattr(part, "rope_parameters", None), dict):
            rope.setdefault("mrope_section", [2, 1, 1])  # families whose default is for wider heads
        for name in ("dtype", "torch_dtype"):
            with contextlib.suppress(Exception):
                setattr(part, name, torch.float32)
    torch.manual_seed(0)
    network = AutoModel.from_config(config)
    size = sum(p.numel() for p in network.parameters())
    if size > 5e7:
        raise ValueError(f"too large: {size:.1e} weights")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.is_floating_point():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return network.double().eval()


def given_to(model: Any) -> Any:
    """Return an input of a model."""
    if model.modality == "text":
        return torch.randint(5, min(90, model.vocabulary), (10,), generator=torch.Generator().manual_seed(2))
    return model._placeholder_input(None)


def gap_to_eager(network: Any, model: Any, given: Any, at: Any, ours: torch.Tensor, u: torch.Tensor) -> float:
    """Return the relative error of a map's value and of Jᵀu against the network's own eager code."""
    names = {id(module): name for name, module in model.instrumented.named_modules()}
    site = model._sites(model._inputs(given), [at.layer])[at.layer]
    call = site.layer if at.map == "layer" else site.attention
    end = call.module if at.map == "layer" else site.projection
    own = copy.deepcopy(model.network)
    with contextlib.suppress(Exception):
        own.set_attn_implementation("eager")
    with contextlib.suppress(Exception):
        own.set_experts_implementation("eager")
    own.config.use_cache = False
    x, seen = at.x.clone().requires_grad_(), {}

    def enter(_module: Any, args: Any, kwargs: Any) -> Any:
        if "entered" in seen:
            return None
        seen["entered"] = old = args[0] if args else kwargs["hidden_states"]
        new = x.view_as(old)
        same = lambda value: new if value is old else value  # noqa: E731
        return tuple(map(same, args)), {key: same(value) for key, value in kwargs.items()}

    def leave(_module: Any, _args: Any, output: Any) -> None:
        seen.setdefault("y", first_tensor(output, _module) if "entered" in seen else None)

    with quiet_transformers(), torch.no_grad():
        own(**model._inputs(given))  # BigBird replaces modules when it sees a short text
    own.get_submodule(names[id(call.module)]).register_forward_pre_hook(enter, with_kwargs=True)
    own.get_submodule(names[id(end)]).register_forward_hook(leave)
    with quiet_transformers(), torch.enable_grad():
        own(**model._inputs(given))
    (theirs,) = torch.autograd.grad(seen["y"], x, u.view_as(seen["y"]))
    value, gap = at().reshape(-1), theirs.reshape(-1) - ours
    return max(float((value - seen["y"].detach().reshape(-1)).norm() / value.norm()), float(gap.norm() / ours.norm()))


def served(at: Any) -> str:
    """Return how a map is served."""
    if isinstance(at.f, SelfAttention):
        return "formula"
    return "attend" if at.map == "attention" and getattr(at.f, "attends", True) else "autodiff"


def observe(kind: str) -> dict[str, Any]:
    """Return the record of one model type."""
    record: dict[str, Any] = {"family": kind, "maps": {}}
    if type(MODEL_MAPPING.get(CONFIG_MAPPING[kind], None)) not in (type, tuple):
        return record | {"built": "no model of its own"}
    try:
        with quiet_transformers():
            network = build(kind)
    except BaseException as error:
        return record | {"built": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    parts: list[str | None] = [None]
    try:
        load(network)
    except InputError as error:
        if named := re.findall(r"part='(\w+)'", str(error)):
            parts = list(dict.fromkeys(named))
    if network.config.is_encoder_decoder and None in parts:
        parts = ["encoder", "decoder"]
    for part in parts:
        where = part or "whole"
        record["maps"][where] = found = {}
        try:
            model = load(network, part=part)
            model._available_maps = lambda *_: []  # they are observed below
            given = given_to(model)
        except BaseException as error:
            found["load"] = f"refused: {_message(error)}"
            continue
        layers = range(min(model.layers, 4))
        for name in KINDS:
            for layer in [None] if name == "model" else layers:
                try:
                    at = model.map_at(given, layer, name)
                    J = jacobian(at.f, at.x)
                    generator = torch.Generator().manual_seed(3)
                    v, u = (torch.randn(size, generator=generator).double() for size in J.shape[::-1])
                    assert torch.isfinite(J.matvec(v)).all()
                    verdict = served(at)
                    if layer is not None:
                        gap = gap_to_eager(network, model, given, at, J.rmatvec(u), u)
                        verdict += f" {gap:.0e}" if gap < 1e-4 else f" DIFFERS {gap:.1e}"
                except InputError as error:
                    verdict = f"refused: {_message(error)}"
                except BaseException as error:
                    verdict = f"ERROR: {_message(error)} {traceback.format_exc().splitlines()[-4:-1]}"
                found[name if layer is None else f"{name} {layer}"] = verdict
    return record


def _message(error: BaseException) -> str:
    return f"{'' if isinstance(error, InputError) else type(error).__name__ + ': '}{error}"[:400]


def in_a_process(kind: str) -> dict[str, Any]:
    """Return the record of one model type, observed in a child with limits."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (GIBIBYTES << 30, GIBIBYTES << 30))
        with open(os.devnull, "w") as null, os.fdopen(write, "w") as out:
            os.dup2(null.fileno(), 2)
            os.dup2(null.fileno(), 1)
            json.dump(observe(kind), out)
            out.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"family": kind, "maps": {}, "built": f"ended with status {status}"}


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count families by the best that any of their layers gets, for each map."""
    counts: dict[str, dict[str, int]] = {}
    for name in KINDS:
        tally: collections.Counter[str] = collections.Counter()
        for record in records:
            if "built" in record:
                tally["not built"] += 1
                continue
            verdicts = [v for part in record["maps"].values() for k, v in part.items() if k.split()[0] == name]
            order = ("formula", "attend", "autodiff", "ERROR", "refused")
            best = next((o for o in order if any(v.startswith(o) for v in verdicts)), "refused")
            tally[best] += 1
        counts[name] = dict(tally)
    return counts


def main() -> None:
    """Observe the model types of the command line, or all, and write their records."""
    out, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.set_verbosity(logging.CRITICAL)
    records = []
    for kind in kinds or list(CONFIG_MAPPING):
        started = time.time()
        records.append(in_a_process(kind))
        print(f"{kind}: {time.time() - started:.1f} s {records[-1].get('built', '')}", flush=True)
        Path(out).write_text(json.dumps({"counts": summary(records), "families": records}, indent=1))
    print(json.dumps(summary(records), indent=1))


if __name__ == "__main__":
    main()

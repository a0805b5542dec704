"""One tiny random network per family, with the paths of its modules, to check those that `find_sites` finds.

Paths are relative to the layer. `norm` is the normalisation before attention: a path, or "below" and a path in the
layer below (post-norm). `block` is where the sum of attention and residual appears: ("input" | "output", path), or
"sum" if no module takes the sum (attention and MLP in parallel).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModel

D, HEADS, LAYERS, VOCABULARY = 16, 4, 2, 60
_SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=D,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=20,
    max_position_embeddings=40,
)
_GROUPED = dict(_SHAPE, num_key_value_heads=2, head_dim=6)
_VISION = dict(
    hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=20, image_size=8, patch_size=4
)
_WHISPER = dict(
    vocab_size=VOCABULARY,
    d_model=D,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=20,
    decoder_ffn_dim=20,
    num_mel_bins=6,
    max_source_positions=5,
    max_target_positions=20,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=3,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)


@dataclass(frozen=True)
class Tiny:
    model_type: str
    sizes: dict
    layers: str  # path of the list of layers
    attention: str = ""
    projection: str = ""
    norm: str | tuple[str, str] | None = None
    block: str | tuple[str, str] = "sum"
    part: str | None = None
    refused: tuple[str, ...] = ()  # the maps that its layers do not have
    shape: tuple[int, int, int] = (LAYERS, HEADS, D)  # layers, heads, width of the model
    tokens: int = 5
    changes: dict = field(default_factory=dict)

    def network(self, dtype=torch.float64, **changes):
        return tiny(self.model_type, {**self.sizes, **self.changes, **changes}, dtype)


_BERT = ("attention.self", "attention.output.dense", ("below", "output.LayerNorm"), ("output", "attention"))
_LLAMA = ("self_attn", "self_attn.o_proj", "input_layernorm", ("input", "post_attention_layernorm"))
_GEMMA = (*_LLAMA[:3], ("input", "pre_feedforward_layernorm"))
_CLIP = ("self_attn", "self_attn.out_proj", "layer_norm1", ("input", "layer_norm2"))
_WHISPER_PARTS = ("self_attn", "self_attn.out_proj", "self_attn_layer_norm")

ZOO = {
    "bert": Tiny("bert", _SHAPE, "encoder.layer", *_BERT),
    "roberta": Tiny("roberta", _SHAPE, "encoder.layer", *_BERT),
    "distilbert": Tiny(
        "distilbert",
        dict(vocab_size=VOCABULARY, dim=D, n_layers=LAYERS, n_heads=HEADS, hidden_dim=20, max_position_embeddings=40),
        "transformer.layer",
        "attention",
        "attention.out_lin",
        ("below", "output_layer_norm"),
        ("output", "sa_layer_norm"),
    ),
    "albert": Tiny(
        "albert",
        dict(_SHAPE, embedding_size=10),
        "encoder.albert_layer_groups.0.albert_layers",
        "attention",
        "attention.dense",
        ("below", "full_layer_layer_norm"),
        ("output", "attention"),
    ),
    "mpnet": Tiny(
        "mpnet",
        _SHAPE,
        "encoder.layer",
        "attention.attn",
        "attention.attn.o",
        ("below", "output.LayerNorm"),
        ("output", "attention.LayerNorm"),
    ),
    "modernbert": Tiny(
        "modernbert",
        dict(
            _SHAPE,
            local_attention=4,
            global_attn_every_n_layers=2,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        "layers",
        "attn",
        "attn.Wo",
        "attn_norm",
        ("input", "mlp_norm"),
    ),
    "gpt2": Tiny(
        "gpt2",
        dict(vocab_size=VOCABULARY, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_positions=40),
        "h",
        "attn",
        "attn.c_proj",
        "ln_1",
        ("input", "ln_2"),
    ),
    "gpt_neox": Tiny("gpt_neox", _SHAPE, "layers", "attention", "attention.dense", "input_layernorm", "sum"),
    "opt": Tiny(
        "opt",
        dict(
            vocab_size=VOCABULARY,
            hidden_size=D,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            ffn_dim=20,
            max_position_embeddings=40,
            word_embed_proj_dim=D,
        ),
        "decoder.layers",
        "self_attn",
        "self_attn.out_proj",
        "self_attn_layer_norm",
        ("input", "final_layer_norm"),
    ),
    "llama": Tiny("llama", _GROUPED, "layers", *_LLAMA),
    "mistral": Tiny("mistral", dict(_GROUPED, sliding_window=3), "layers", *_LLAMA),
    "qwen2": Tiny("qwen2", dict(_SHAPE, num_key_value_heads=2), "layers", *_LLAMA),
    "qwen3": Tiny("qwen3", _GROUPED, "layers", *_LLAMA),
    "gemma2": Tiny(
        "gemma2",
        dict(_GROUPED, sliding_window=3, attn_logit_softcapping=2.0, query_pre_attn_scalar=6),
        "layers",
        *_GEMMA,
    ),
    "gemma3_text": Tiny("gemma3_text", dict(_GROUPED, sliding_window=3, query_pre_attn_scalar=6), "layers", *_GEMMA),
    "phi": Tiny(
        "phi",
        dict(_SHAPE, partial_rotary_factor=0.5),
        "layers",
        "self_attn",
        "self_attn.dense",
        "input_layernorm",
        "sum",
    ),
    "falcon": Tiny(
        "falcon",
        dict(_SHAPE, num_kv_heads=2, new_decoder_architecture=True, alibi=False, bias=True),
        "h",
        "self_attention",
        "self_attention.dense",
        "ln_attn",
        "sum",
    ),
    "bloom": Tiny(
        "bloom",
        dict(vocab_size=VOCABULARY, hidden_size=D, n_layer=LAYERS, n_head=HEADS),
        "h",
        "self_attention",
        "self_attention.dense",
        "input_layernorm",
        ("input", "post_attention_layernorm"),
    ),
    "t5": Tiny(
        "t5",
        dict(
            vocab_size=VOCABULARY,
            d_model=D,
            d_kv=6,
            d_ff=20,
            num_layers=LAYERS,
            num_heads=HEADS,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=10,
        ),
        "encoder.block",
        "layer.0.SelfAttention",
        "layer.0.SelfAttention.o",
        "layer.0.layer_norm",
        ("output", "layer.0"),
        part="encoder",
    ),
    "vit": Tiny(
        "vit", _VISION, "layers", "attention", "attention.o_proj", "layernorm_before", ("input", "layernorm_after")
    ),
    "dinov2": Tiny(
        "dinov2",
        dict(_VISION, mlp_ratio=2),
        "encoder.layer",
        "attention",
        "attention.o_proj",
        "norm1",
        ("input", "norm2"),
    ),
    "clip_vision": Tiny(
        "clip",
        dict(vision_config=_VISION, text_config=dict(_SHAPE), projection_dim=8),
        "vision_model.encoder.layers",
        *_CLIP,
        part="vision",
    ),
    "clip_text": Tiny(
        "clip",
        dict(vision_config=_VISION, text_config=dict(_SHAPE), projection_dim=8),
        "text_model.encoder.layers",
        *_CLIP,
        part="text",
    ),
    "whisper_encoder": Tiny(
        "whisper", _WHISPER, "encoder.layers", *_WHISPER_PARTS, ("input", "final_layer_norm"), part="encoder"
    ),
    "whisper_decoder": Tiny(
        "whisper", _WHISPER, "decoder.layers", *_WHISPER_PARTS, ("input", "encoder_attn_layer_norm"), part="decoder"
    ),
}

_NO_ATTENTION = ("attention", "head", "normed", "block")
_MIXER = ("mixer", "mixer", "norm")  # in the place of attention and its projection
_GPTJ = dict(vocab_size=VOCABULARY, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_positions=40, rotary_dim=2)
_DEBERTA = dict(_SHAPE, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=6, pad_token_id=0)
_MAMBA = dict(mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4, mamba_d_conv=2, mamba_chunk_size=8)
_SSM = dict(vocab_size=VOCABULARY, hidden_size=D, num_hidden_layers=LAYERS, state_size=4, conv_kernel=2)
_EXPERTS = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8)
_LINEAR = dict(
    _GROUPED,
    layer_types=["linear_attention", "full_attention"],
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=6,
    linear_value_head_dim=6,
    linear_conv_kernel_dim=2,
)

# Families whose attention is not computed by `attend`, whose layers differ, or that have layers without attention.
HYBRID = ("qwen3_next", "qwen3_5", "jamba", "lfm2")  # attention in layer 1 alone
FIRST = tuple(ZOO)
ZOO |= {
    "gptj": Tiny("gptj", _GPTJ, "h", "attn", "attn.out_proj", "ln_1", "sum"),
    "codegen": Tiny("codegen", _GPTJ, "h", "attn", "attn.out_proj", "ln_1", "sum"),
    "gpt_neo": Tiny(
        "gpt_neo",
        dict(
            vocab_size=VOCABULARY,
            hidden_size=D,
            num_layers=LAYERS,
            num_heads=HEADS,
            intermediate_size=20,
            max_position_embeddings=40,
            attention_types=[[["global", "local"], 1]],
            window_size=3,
        ),
        "h",
        "attn.attention",
        "attn.attention.out_proj",
        "ln_1",
        ("input", "ln_2"),
    ),
    "mpt": Tiny(
        "mpt",
        dict(vocab_size=VOCABULARY, d_model=D, n_layers=LAYERS, n_heads=HEADS, max_seq_len=40, expansion_ratio=2),
        "blocks",
        "attn",
        "attn.out_proj",
        "norm_1",
        ("input", "norm_2"),
    ),
    "deberta": Tiny("deberta", _DEBERTA, "encoder.layer", *_BERT),
    "deberta_v2": Tiny("deberta-v2", dict(_DEBERTA, position_buckets=4, share_att_key=True), "encoder.layer", *_BERT),
    "longformer": Tiny("longformer", dict(_SHAPE, attention_window=4), "encoder.layer", *_BERT, tokens=8),
    "swin": Tiny(
        "swin",
        dict(image_size=16, patch_size=2, embed_dim=D, depths=[2, 1], num_heads=[4, 8], window_size=4, mlp_ratio=1.5),
        "encoder.layers.0.blocks",
        "attention",
        "attention.o_proj",
        refused=("normed", "block"),
        shape=(3, HEADS, 32),
    ),
    "gpt_oss": Tiny(
        "gpt_oss", dict(_GROUPED, sliding_window=3, num_local_experts=3, num_experts_per_tok=2), "layers", *_LLAMA
    ),
    "qwen3_next": Tiny("qwen3_next", dict(_LINEAR, **_EXPERTS), "layers", *_LLAMA),
    "qwen3_5": Tiny("qwen3_5_text", _LINEAR, "layers", *_LLAMA),
    "jamba": Tiny(
        "jamba",
        dict(
            _SHAPE,
            num_key_value_heads=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=0,
            num_experts=2,
            mamba_d_state=4,
            mamba_d_conv=2,
            mamba_dt_rank=2,
        ),
        "layers",
        *_LLAMA[:3],
        ("input", "pre_ff_layernorm"),
    ),
    "falcon_h1": Tiny(
        "falcon_h1",
        dict(_SHAPE, num_key_value_heads=2, head_dim=6, mamba_d_ssm=32, **_MAMBA),
        "layers",
        *_LLAMA[:2],
        refused=("normed", "block"),
    ),
    "lfm2": Tiny(
        "lfm2",
        dict(_SHAPE, num_key_value_heads=2, layer_types=["conv", "full_attention"], conv_L_cache=2),
        "layers",
        "self_attn",
        "self_attn.out_proj",
        "operator_norm",
        ("input", "ffn_norm"),
    ),
    "dinov3": Tiny(
        "dinov3_vit",
        dict(_VISION, num_register_tokens=2),
        "model.layer",
        "attention",
        "attention.o_proj",
        "norm1",
        ("input", "norm2"),
    ),
    "mobilebert": Tiny(
        "mobilebert", dict(_SHAPE, embedding_size=8, intra_bottleneck_size=8), "encoder.layer", refused=_NO_ATTENTION
    ),
    "mamba": Tiny("mamba", _SSM, "layers", *_MIXER, refused=_NO_ATTENTION, shape=(LAYERS, 0, D)),
    "mamba2": Tiny(
        "mamba2",
        dict(_SSM, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
        "layers",
        *_MIXER,
        refused=_NO_ATTENTION,
    ),
    "rwkv": Tiny(
        "rwkv",
        dict(vocab_size=VOCABULARY, hidden_size=D, num_hidden_layers=LAYERS, intermediate_size=20),
        "blocks",
        "attention",
        "attention",
        "ln1",
        refused=_NO_ATTENTION,
        shape=(LAYERS, 0, D),
    ),
}


def tiny(model_type: str, sizes: dict, dtype=torch.float64):
    """Return a seeded network of this type: no weight is zero, no norm trivial, softmax far from uniform."""
    config = AutoConfig.for_model(model_type, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            mean = 1.0 if parameter.ndim == 1 and not name.endswith("bias") else 0.0
            parameter.copy_(mean + 0.3 * torch.randn(parameter.shape, generator=generator))
    return network.to(dtype).eval()


def inputs(name: str, n: int | None = None) -> dict:
    """Return the keyword arguments of the network, in float64."""
    family, generator = ZOO[name], torch.Generator().manual_seed(2)
    n = family.tokens if n is None else n
    if family.model_type == "swin":
        return {"pixel_values": torch.randn(1, 3, 16, 16, generator=generator).double()}
    ids = torch.randint(5, VOCABULARY, (1, n), generator=generator)
    if family.part == "vision" or family.model_type in ("vit", "dinov2", "dinov3_vit"):
        return {"pixel_values": torch.randn(1, 3, 8, 8, generator=generator).double()}
    if family.model_type == "whisper":
        features = torch.randn(1, 6, 10, generator=generator).double()
        return {"input_features": features, **({"decoder_input_ids": ids} if family.part == "decoder" else {})}
    return {"input_ids": ids}

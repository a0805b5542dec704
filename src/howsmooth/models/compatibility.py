"""The table of supported families: `howsmooth models` prints it, the docs show it, and the tests cover each row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
        key: The name of the family in the tests.
        name: The name in the table.
        modality: "text", "vision" or "audio".
        how: How attention is differentiated, a key of HOW.
        includes: What the map includes.
        weights: The weights that it is tested with.
        part: The part of the network, if it has two.
    """

    key: str
    name: str
    modality: str
    how: str
    includes: str
    weights: str = "tiny random"
    part: str | None = None


HOW = {"formula": "exact formula", "attend": "autodiff (attend)", "autodiff": "autodiff (module)", "refused": "refused"}

FAMILIES = (
    Family(
        "bert", "BERT", "text", "formula", "post-norm; bidirectional, or causal as a decoder", "tiny random; MiniLM"
    ),
    Family("roberta", "RoBERTa", "text", "attend", "post-norm; positions counted after padding"),
    Family("distilbert", "DistilBERT", "text", "attend", "post-norm"),
    Family(
        "albert",
        "ALBERT",
        "text",
        "attend",
        "post-norm; one set of weights for all layers; no norm in front of layer 0",
    ),
    Family(
        "mpnet",
        "MPNet",
        "text",
        "formula",
        "post-norm; learnt bias per distance and head",
        "tiny random; all-mpnet-base-v2",
    ),
    Family("modernbert", "ModernBERT", "text", "attend", "pre-norm; rotary; two-sided windows in most layers"),
    Family(
        "gpt2",
        "GPT-2",
        "text",
        "formula",
        "pre-norm; causal; scaling by layer",
        "tiny random; layers 0, 6, 11 of GPT-2 small",
    ),
    Family("gpt_neox", "GPT-NeoX, Pythia", "text", "attend", "pre-norm; causal; partly rotary; MLP in parallel"),
    Family("opt", "OPT", "text", "attend", "pre-norm; causal"),
    Family("llama", "Llama", "text", "formula", "pre-norm; causal; rotary; grouped keys", "tiny random; SmolLM2"),
    Family("mistral", "Mistral", "text", "attend", "pre-norm; causal; rotary; sliding window"),
    Family("qwen2", "Qwen2", "text", "attend", "pre-norm; causal; rotary; biases"),
    Family("qwen3", "Qwen3", "text", "attend", "pre-norm; causal; rotary; norms of queries and keys"),
    Family(
        "gemma2",
        "Gemma 2",
        "text",
        "attend",
        "norms before and after attention; causal; rotary; soft cap; window in every other layer",
    ),
    Family(
        "gemma3_text",
        "Gemma 3",
        "text",
        "attend",
        "norms before and after attention; causal; rotary; norms of queries and keys; windows in most layers",
    ),
    Family("phi", "Phi", "text", "attend", "pre-norm; causal; partly rotary; MLP in parallel"),
    Family("falcon", "Falcon", "text", "formula", "pre-norm; causal; rotary or ALiBi; shared keys; MLP in parallel"),
    Family("bloom", "BLOOM", "text", "formula", "pre-norm; causal; ALiBi"),
    Family(
        "t5", "T5 encoder", "text", "attend", "pre-norm; learnt bias per distance and head; no scaling", part="encoder"
    ),
    Family("vit", "ViT", "vision", "attend", "pre-norm"),
    Family("dinov2", "DINOv2", "vision", "attend", "pre-norm; layer scale in the block"),
    Family("clip_vision", "CLIP, images", "vision", "attend", "pre-norm", part="vision"),
    Family("clip_text", "CLIP, text", "text", "attend", "pre-norm; causal", part="text"),
    Family("whisper_encoder", "Whisper encoder", "audio", "attend", "pre-norm", part="encoder"),
    Family(
        "whisper_decoder",
        "Whisper decoder",
        "text",
        "attend",
        "pre-norm; causal; self-attention, with the encoder's output fixed",
        part="decoder",
    ),
    Family("gptj", "GPT-J", "text", "autodiff", "pre-norm; causal; partly rotary; MLP in parallel"),
    Family("codegen", "CodeGen", "text", "autodiff", "pre-norm; causal; partly rotary; MLP in parallel"),
    Family("gpt_neo", "GPT-Neo", "text", "autodiff", "pre-norm; causal; no scaling; window in every other layer"),
    Family("mpt", "MPT", "text", "autodiff", "pre-norm; causal; ALiBi"),
    Family("deberta", "DeBERTa", "text", "autodiff", "post-norm; disentangled positions"),
    Family("deberta_v2", "DeBERTa v2, v3", "text", "autodiff", "post-norm; disentangled positions in buckets"),
    Family("longformer", "Longformer", "text", "autodiff", "post-norm; two-sided window; n a multiple of the window"),
    Family("swin", "Swin", "vision", "attend", "pre-norm; windows, shifted in every other layer; widths by stage"),
    Family("gpt_oss", "gpt-oss", "text", "attend", "pre-norm; causal; rotary; sinks; windows; experts"),
    Family("qwen3_next", "Qwen3-Next", "text", "attend", "pre-norm; gate after the heads; linear attention; experts"),
    Family("qwen3_5", "Qwen3.5", "text", "attend", "pre-norm; gate after the heads; linear attention"),
    Family("jamba", "Jamba", "text", "attend", "pre-norm; causal; Mamba layers; experts"),
    Family("falcon_h1", "Falcon-H1", "text", "attend", "pre-norm; causal; rotary; Mamba-2 in parallel"),
    Family("lfm2", "LFM2", "text", "attend", "pre-norm; causal; rotary; convolution layers"),
    Family("dinov3", "DINOv3", "vision", "attend", "pre-norm; rotary; layer scale in the block"),
    Family("mobilebert", "MobileBERT", "text", "refused", "values come from wider tokens than queries and keys"),
    Family("mamba", "Mamba", "text", "refused", "no softmax: a selective scan"),
    Family("mamba2", "Mamba-2", "text", "refused", "no softmax: a selective scan"),
    Family("rwkv", "RWKV", "text", "refused", "no softmax: a recurrence"),
)

# What cannot be measured, and why; loading raises an error that names the reason.
REFUSED = {"quantised weights": "their layers have no exact derivative; a GGUF file is dequantised instead"}

COLUMNS = ("family", "takes", "attention", "part of the map, and its shape", "shown with")


def rows() -> list[tuple[str, ...]]:
    """Return the table, one row per family, in the order of COLUMNS."""
    parts = {family: "" if family.part is None else f" (part {family.part})" for family in FAMILIES}
    return [(f.name + parts[f], f.modality, HOW[f.how], f.includes, f.weights) for f in FAMILIES]


def markdown() -> str:
    """Return both tables, of supported families and of what is refused, as Markdown.

    Example:
        >>> markdown().splitlines()[0]
        '| family | takes | attention | part of the map, and its shape | shown with |'
    """
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows()]
    refused = [("refused", "why"), ("---", "---"), *REFUSED.items()]
    return "\n\n".join("\n".join(f"| {' | '.join(row)} |" for row in table) for table in (lines, refused)) + "\n"

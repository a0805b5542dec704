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
        how: "adapter" (derivatives by formula) or "generic" (derivatives of the model's own modules).
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


FAMILIES = (
    Family(
        "bert", "BERT", "text", "adapter", "post-norm; bidirectional, or causal as a decoder", "tiny random; MiniLM"
    ),
    Family("roberta", "RoBERTa", "text", "generic", "post-norm; positions counted after padding"),
    Family("distilbert", "DistilBERT", "text", "generic", "post-norm"),
    Family(
        "albert",
        "ALBERT",
        "text",
        "generic",
        "post-norm; one set of weights for all layers; no norm in front of layer 0",
    ),
    Family(
        "mpnet",
        "MPNet",
        "text",
        "adapter",
        "post-norm; learnt bias per distance and head",
        "tiny random; all-mpnet-base-v2",
    ),
    Family("modernbert", "ModernBERT", "text", "generic", "pre-norm; rotary; two-sided windows in most layers"),
    Family(
        "gpt2",
        "GPT-2",
        "text",
        "adapter",
        "pre-norm; causal; scaling by layer",
        "tiny random; layers 0, 6, 11 of GPT-2 small",
    ),
    Family("gpt_neox", "GPT-NeoX, Pythia", "text", "generic", "pre-norm; causal; partly rotary; MLP in parallel"),
    Family("opt", "OPT", "text", "generic", "pre-norm; causal"),
    Family("llama", "Llama", "text", "adapter", "pre-norm; causal; rotary; grouped keys", "tiny random; SmolLM2"),
    Family("mistral", "Mistral", "text", "generic", "pre-norm; causal; rotary; sliding window"),
    Family("qwen2", "Qwen2", "text", "generic", "pre-norm; causal; rotary; biases"),
    Family("qwen3", "Qwen3", "text", "generic", "pre-norm; causal; rotary; norms of queries and keys"),
    Family(
        "gemma2",
        "Gemma 2",
        "text",
        "generic",
        "norms before and after attention; causal; rotary; soft cap; window in every other layer",
    ),
    Family(
        "gemma3_text",
        "Gemma 3",
        "text",
        "generic",
        "norms before and after attention; causal; rotary; norms of queries and keys; windows in most layers",
    ),
    Family("phi", "Phi", "text", "generic", "pre-norm; causal; partly rotary; MLP in parallel"),
    Family("falcon", "Falcon", "text", "adapter", "pre-norm; causal; rotary or ALiBi; shared keys; MLP in parallel"),
    Family("bloom", "BLOOM", "text", "adapter", "pre-norm; causal; ALiBi"),
    Family(
        "t5", "T5 encoder", "text", "generic", "pre-norm; learnt bias per distance and head; no scaling", part="encoder"
    ),
    Family("vit", "ViT", "vision", "generic", "pre-norm"),
    Family("dinov2", "DINOv2", "vision", "generic", "pre-norm; layer scale in the block"),
    Family("clip_vision", "CLIP, images", "vision", "generic", "pre-norm", part="vision"),
    Family("clip_text", "CLIP, text", "text", "generic", "pre-norm; causal", part="text"),
    Family("whisper_encoder", "Whisper encoder", "audio", "generic", "pre-norm", part="encoder"),
    Family(
        "whisper_decoder",
        "Whisper decoder",
        "text",
        "generic",
        "pre-norm; causal; self-attention, with the encoder's output fixed",
        part="decoder",
    ),
)

# What cannot be measured, and why; loading raises an error that names the reason.
REFUSED = {
    "mamba": "no softmax attention",
    "gptj": "does not use transformers' attention registry, and has no adapter",
    "deberta_v2": "does not use transformers' attention registry, and has no adapter; scores with learnt positions",
    "swin": "stages of different sizes",
    "cross attention": "queries and keys come from two sequences: no map of one sequence of tokens",
    "quantised weights": "their layers have no exact derivative; a GGUF file is dequantised instead",
}

COLUMNS = ("family", "takes", "path", "part of the map, and its shape", "shown with")


def rows() -> list[tuple[str, ...]]:
    """Return the table, one row per family, in the order of COLUMNS."""
    parts = {family: "" if family.part is None else f" (part {family.part})" for family in FAMILIES}
    return [(f.name + parts[f], f.modality, f.how, f.includes, f.weights) for f in FAMILIES]


def markdown() -> str:
    """Return both tables, of supported families and of what is refused, as Markdown.

    Example:
        >>> markdown().splitlines()[0]
        '| family | takes | path | part of the map, and its shape | shown with |'
    """
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows()]
    refused = [("refused", "why"), ("---", "---"), *REFUSED.items()]
    return "\n\n".join("\n".join(f"| {' | '.join(row)} |" for row in table) for table in (lines, refused)) + "\n"

"""Every other family: its own modules are the map, with `attend` inside through transformers' attention registry."""

from __future__ import annotations

from transformers import PreTrainedModel

NETWORK = PreTrainedModel
UNUSED = ("pooler.", "pooler_", "vision_model.head", "layernorm_pooler.")  # they read the last hidden state
TOKENIZER = None

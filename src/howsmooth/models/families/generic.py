"""All other families: the map is the model's own module, with `attend` through transformers' attention registry."""

from __future__ import annotations

from transformers import PreTrainedModel

NETWORK = PreTrainedModel
UNUSED = ("pooler.", "pooler_", "vision_model.head", "layernorm_pooler.")  # applied to the last hidden state
TOKENIZER = None

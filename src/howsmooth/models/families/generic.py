"""All other families: the map is the model's own module.

Attention is computed by `attend` where the module uses transformers' attention registry, else by the module's own code.
"""

from __future__ import annotations

from transformers import PreTrainedModel

NETWORK = PreTrainedModel
UNUSED = ("pooler.", "pooler_", "vision_model.head", "layernorm_pooler.")  # applied to the last hidden state
TOKENIZER = None

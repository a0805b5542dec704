"""Models: pretrained or random transformers, the tokens entering their attention, and the map itself.

The one room that imports transformers.
"""

from __future__ import annotations

from howsmooth.models.chain import Chain, layer_chain
from howsmooth.models.hook import register
from howsmooth.models.load import load
from howsmooth.models.model import Model
from howsmooth.models.tokens import TokenChunk

__all__ = ["Chain", "Model", "TokenChunk", "layer_chain", "load", "register"]

from howsmooth.models.loading import load as load
from howsmooth.models.model import Model as Model
from howsmooth.models.maps import MapAt as MapAt
from howsmooth.models.map_types import MAPS as MAPS
from howsmooth.models.hook import register as register
from howsmooth.models.layers import layer_chain as layer_chain, Chain as Chain, replace_attention as replace_attention
from howsmooth.models.maps import OwnTokenMap as OwnTokenMap
from howsmooth.models.embedding import (
    TokenEmbedding as TokenEmbedding,
    PrefixCache as PrefixCache,
    LanguageHead as LanguageHead,
)
from howsmooth.models.gpt2_file import AttentionFile as AttentionFile
from howsmooth.models.embedded import EMBEDDED as EMBEDDED
from howsmooth.models.cache import cache_root as cache_root

"""Turn what is given (the default model's wheel, a GGUF file) into a folder transformers can load.

Each source is converted once, into the user's cache folder; see `cache` for how that stays whole.
"""

from .default import prepare_default
from .gguf import prepare_gguf

__all__ = ["prepare_default", "prepare_gguf"]

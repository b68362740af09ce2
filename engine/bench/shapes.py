"""Architectures whose speed can be measured without their weights: random ones are read as fast.

Of the Llama 3 family, as its configurations give them.
"""

from __future__ import annotations

from typing import Any

_COMMON = {"num_key_value_heads": 8, "vocab_size": 128256}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-1b": {
        **_COMMON,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "llama-3b": {
        **_COMMON,
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "llama-8b": {
        **_COMMON,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
        "tie_word_embeddings": False,
    },
}

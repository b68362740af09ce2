r"""How a byte-level BPE vocabulary wants its text split, by the name a GGUF file gives the rule.

A GGUF file does not hold the rule, only its name (``tokenizer.ggml.pre``). transformers knows some of
the names and takes GPT-2's rule for all others, without a word: SmolLM2's digits then stick to the
white space before them ("\n\n1" becomes three tokens instead of two) and prompts are no longer what
the model was trained on.
"""

from __future__ import annotations

from typing import Any

from resispec.models.base import ModelError

# The rules llama.cpp gives these names (llm_tokenizer_bpe in its src/llama-vocab.cpp).
GPT2_RULE = frozenset({"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"})
DIGITS_THEN_GPT2_RULE = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)


def apply_splitting(tokenizer: Any, kind: str | None, rule: str | None) -> None:
    """Give a tokenizer made by transformers from a GGUF file the splitting rule the file names.

    kind, rule: the file's ``tokenizer.ggml.model`` and ``tokenizer.ggml.pre``. Raises ModelError for
    a rule nobody here knows.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if kind != "gpt2" or rule in GPT2_RULE or rule in GGUF_PRE_TOKENIZER_SPLITS:
        return  # not byte-level BPE, or done right by transformers
    if rule not in DIGITS_THEN_GPT2_RULE:
        raise ModelError(
            f"its rule for splitting text, {rule!r}, is not known here, so prompts would be tokenised "
            "wrongly; use the model's safetensors folder instead"
        )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )

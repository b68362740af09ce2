"""Load a causal language model and its tokenizer from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from resispec.models.base import ModelError
from resispec.models.quiet import quiet

from .architecture import check_config, check_model


def load_causal(
    folder: Path, *, device: torch.device, dtype: torch.dtype, attn_implementation: str
) -> tuple[Any, Any]:
    """A checked transformers model in evaluation mode, and its tokenizer. Touches no network.

    attn_implementation: a name transformers knows, "eager" or a registered one. Raises ModelError for
    damaged files, missing weights, an architecture that cannot be served, and too little memory.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with quiet():
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
            check_config(config)
            tokenizer = load_tokenizer(folder)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                attn_implementation=attn_implementation,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
            model, loading = loaded
            missing = sorted(loading["missing_keys"]) + sorted(str(key) for key in loading["mismatched_keys"])
            if missing:  # transformers fills them with random numbers
                raise ModelError(f"weights are missing: {', '.join(missing[:3])} ({len(missing)} in all)")
            check_model(model)
            return model.requires_grad_(False).eval().to(device), tokenizer
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(f"{folder} does not fit into the memory of {device}") from error
    except Exception as error:
        raise ModelError(f"{folder} cannot be loaded ({type(error).__name__}: {error})") from error


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"{folder}: the tokenizer cannot be loaded ({type(error).__name__}: {error})"
        ) from error

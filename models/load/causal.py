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
            tokenizer = _load_tokenizer(folder)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                attn_implementation=attn_implementation,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, where its own error names no weight
            )
            model, loading = loaded
            # Transformers fills both with random numbers.
            if missing := sorted(loading["missing_keys"]):
                raise ModelError(f"weights are missing: {', '.join(missing[:3])} ({len(missing)} in all)")
            if mismatched := sorted(loading["mismatched_keys"]):
                name, found, wanted = mismatched[0]
                raise ModelError(
                    f"weights do not fit config.json: {name} is {list(found)}, not {list(wanted)} "
                    f"({len(mismatched)} in all)"
                )
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
    try:
        with quiet():
            return _load_tokenizer(folder)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error


def _load_tokenizer(folder: Path) -> Any:
    """Raises ModelError that does not name the folder."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise ModelError(f"the tokenizer cannot be loaded ({type(error).__name__}: {error})") from error

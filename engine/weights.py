"""How the weights of target and draft are rounded and laid out: what the settings say, and may not say."""

from __future__ import annotations

import torch

from resispec.models.device import device_for
from resispec.models.native.products import native_products

from .config import AUTO, DRAFT_QUANTIZATIONS, QUANTIZATIONS, ConfigError, EngineConfig


def check_weights(config: EngineConfig, device: torch.device, *, has_draft: bool) -> None:
    """Raises ConfigError."""
    there = device_for(device)
    if config.quantization not in QUANTIZATIONS:
        raise ConfigError(
            f"quantization is {config.quantization!r}; use {', '.join(QUANTIZATIONS)}", "quantization"
        )
    if config.quantization != "none" and not there.quantizes:
        raise ConfigError(
            f"quantization is {config.quantization}, which works on a CPU only; use none on {device}",
            "quantization",
        )
    if config.draft_quantization not in DRAFT_QUANTIZATIONS:
        raise ConfigError(
            f"draft_quantization is {config.draft_quantization!r}; use {', '.join(DRAFT_QUANTIZATIONS)}",
            "draft_quantization",
        )
    if config.draft_quantization == "int8" and not there.quantizes:
        raise ConfigError(
            f"draft_quantization is int8, which works on a CPU only; use auto or none on {device}",
            "draft_quantization",
        )
    if config.draft_quantization == "int8" and not has_draft:
        raise ConfigError(
            "draft_quantization is int8, but no draft is used; use auto, or give a draft that proposes",
            "draft_quantization",
        )
    if config.compile and not there.compiles:
        raise ConfigError(f"compile works on a CPU only; leave it out on {device}", "compile")
    if config.compile and config.quantization == "int4":
        raise ConfigError(
            "compile does not go with quantization int4; use int8 or none, or leave it out", "compile"
        )


def settle_draft_weights(setting: str, device: torch.device, dtype: torch.dtype) -> str:
    """What ``auto`` means for a draft in ``dtype``: none, or int8 where kernels of our own multiply it."""
    if setting != AUTO:
        return setting
    quick = device_for(device).quantizes and dtype is torch.bfloat16 and native_products() is not None
    return "int8" if quick else "none"

"""A small model in training: some of the target's layers, between its embedding and its output matrix.

What it shares with the target stays as it is, so that one tokenizer, one vocabulary and one output matrix
serve both, and its states can be compared with the target's as a head's are.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..base import ModelError
from ..files import unwritable
from ..layers import decoder_layers
from ..quiet import quiet
from .batches import Batch


class LayersTrainee:
    """A causal model of transformers with fewer layers than its target."""

    levels = 1  # it reads nothing but tokens, so it says the same of a place whatever was drafted before

    def __init__(self, model: Any, tokenizer: Any, chosen: tuple[int, ...], name: str) -> None:
        """``model`` comes from `fewer_layers`, ``chosen`` are its layers in the target called ``name``."""
        self.module: nn.Module = model
        self.vocab_ids = torch.arange(model.get_output_embeddings().weight.shape[0])
        self._model, self._tokenizer = model, tokenizer
        self._chosen, self._name = chosen, name
        self._dtype = model.get_output_embeddings().weight.dtype

    def states(self, batch: Batch, passes: int) -> list[Tensor]:  # noqa: ARG002  it has one level
        # Padding stands at the right, where the causal order keeps it out of sight.
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            decoder = self._model.get_decoder()
            return [decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state]

    def save(self, folder: Path) -> None:
        """An ordinary folder of transformers, in the target's dtype, with the tokenizer."""
        parts = folder.with_name(f"{folder.name}.parts")
        shutil.rmtree(parts, ignore_errors=True)
        try:
            with quiet():
                self._model.to(self._dtype).save_pretrained(parts)
                self._tokenizer.save_pretrained(parts)
            folder.mkdir(parents=True, exist_ok=True)
            for part in sorted(parts.iterdir(), key=lambda path: path.name == "config.json"):
                part.replace(folder / part.name)
        except OSError as error:
            raise unwritable(folder, error) from error
        except Exception as error:  # a full disk, as safetensors and tokenizers tell it
            raise ModelError(f"cannot write {folder}: {error}") from error
        finally:
            shutil.rmtree(parts, ignore_errors=True)

    def describe(self) -> str:
        trained = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
        numbers = ", ".join(str(number + 1) for number in self._chosen)
        return f"""# Draft model for {self._name}

Layers {numbers} of the target ({trained / 1e6:.1f} M weights) with its tokenizer, its embedding and
its output matrix, trained further to say by themselves what all layers say. A model like any other, that
drafts for its target and for others of the same vocabulary.
"""


def layer_numbers(of: int, count: int) -> tuple[int, ...]:
    """``count`` of ``of`` layers, evenly spaced, the first and the last among them.

    Raises ModelError where there are not so many, or no fewer.
    """
    if not 1 <= count < of:
        raise ModelError(f"layers is {count}; the target has {of}, so a draft has 1 to {of - 1} of them")
    if count == 1:
        return (0,)
    return tuple(round(number * (of - 1) / (count - 1)) for number in range(count))


def fewer_layers(target: Any, chosen: tuple[int, ...]) -> Any:
    """A model of the target's architecture with the layers ``chosen``, float32, on the target's device.

    The embedding and the output matrix are the target's own tensors and are not trained.
    """
    from transformers import AutoModelForCausalLM

    config, of = copy.deepcopy(target.config), int(target.config.num_hidden_layers)
    config.num_hidden_layers = len(chosen)
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == of:  # a kind for each layer
            setattr(config, name, [value[number] for number in chosen])
    with quiet():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    path, layers = decoder_layers(target)
    for own, number in zip(model.get_submodule(path), chosen, strict=True):
        own.load_state_dict(layers[number].state_dict())
    rest = {name: value for name, value in target.state_dict().items() if not name.startswith(f"{path}.")}
    model.load_state_dict(rest, strict=False)
    model.set_input_embeddings(target.get_input_embeddings())
    model.set_output_embeddings(target.get_output_embeddings())
    model.to(target.device).eval().requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Embedding) or module is model.get_output_embeddings():
            module.requires_grad_(False)
    return model

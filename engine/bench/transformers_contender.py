"""``transformers.generate`` as a contender: the same weights, dtype and threads, one request at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from resispec.models.load.causal import load_causal

from .contenders import TRANSFORMERS, BenchError
from .measurement import Measurement, pool
from .workload import Workload

_LOOKUP_TOKENS = 10  # of each n-gram match; transformers' own example has as many


class TransformersContender:
    """A model of its own, with transformers' own attention ("sdpa")."""

    def __init__(
        self, model: Any, name: str = TRANSFORMERS, assistance: Mapping[str, Any] | None = None
    ) -> None:
        """assistance: what `generate` is told to speculate with; None: it does not."""
        self.name = name
        self._model = model
        self._assistance = dict(assistance or {})
        # The model's own would bring its EOS, and sampling that nobody asked for.
        model.generation_config = GenerationConfig(pad_token_id=0)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> TransformersContender:
        """Raises ModelError."""
        model, _ = load_causal(folder, device=device, dtype=dtype, attn_implementation="sdpa")
        return cls(model)

    def assisted(self, assistant: Any | None) -> TransformersContender:
        """The same model with its own speculation: by a draft model, else by n-grams of the text."""
        own: dict[str, Any] = {"prompt_lookup_num_tokens": _LOOKUP_TOKENS}
        assistance = own if assistant is None else {"assistant_model": assistant}
        return TransformersContender(self._model, f"{TRANSFORMERS} assisted", assistance)

    def takes(self, workload: Workload) -> bool:
        return workload.batch == 1 and not workload.forms

    def run(self, workload: Workload) -> Measurement:
        return pool(self._generate(prompt, workload) for prompt in workload.requests)

    def _generate(self, prompt: tuple[int, ...], workload: Workload) -> Measurement:
        sampling: dict[str, Any] = {"do_sample": False}
        if workload.temperature > 0:
            sampling = {"do_sample": True, "temperature": workload.temperature, "top_k": 0, "top_p": 1.0}
        began = time.perf_counter()
        ids = torch.tensor([prompt], device=self._model.device)
        clock = _Clock()
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=workload.tokens,
                streamer=clock,
                **self._assistance,
                **sampling,
            )
        generated = output[0, len(prompt) :].tolist()  # to the host, as a server would
        seconds = time.perf_counter() - began
        if len(generated) != workload.tokens:
            raise BenchError(f"{len(generated)} tokens came instead of {workload.tokens}")
        _, first, *others = clock.times  # the prompt itself is the first thing put
        return Measurement(
            tokens=len(generated),
            seconds=seconds,
            first_token_seconds=(first - began,),
            decoded_tokens=len(generated) - 1,
            deliveries=len(others),
            decode_steps=len(others),
            decode_seconds=(others or [first])[-1] - first,
            gap_seconds=tuple(b - a for a, b in pairwise((first, *others))),
        )


class _Clock(BaseStreamer):
    """Notes when tokens come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:  # noqa: ARG002
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

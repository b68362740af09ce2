"""``transformers.generate`` as a contender: the same weights, dtype and threads, one request at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from resispec.models.load.causal import load_causal

from .contenders import TRANSFORMERS, BenchError
from .measurement import Measurement, pool
from .workload import Workload


class TransformersContender:
    """A model of its own, with transformers' own attention ("sdpa")."""

    name = TRANSFORMERS

    def __init__(self, model: Any) -> None:
        self._model = model
        # The model's own would bring its EOS, and sampling that nobody asked for.
        model.generation_config = GenerationConfig(pad_token_id=0)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> TransformersContender:
        """Raises ModelError."""
        model, _ = load_causal(folder, device=device, dtype=dtype, attn_implementation="sdpa")
        return cls(model)

    def takes(self, workload: Workload) -> bool:
        return workload.batch == 1

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
            decoded_tokens=len(others),
            deliveries=len(others),
            decode_steps=len(others),
            decode_seconds=others[-1] - first,
        )


class _Clock(BaseStreamer):
    """Notes when tokens come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:  # noqa: ARG002
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

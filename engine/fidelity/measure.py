"""Next-token laws of one model in several number formats, over the text that it writes in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from resispec.models.causal import CausalModel, chunk_inputs
from resispec.models.fit import fit, lay_out
from resispec.models.kv import KVMemory
from resispec.models.load.causal import load_tokenizer
from resispec.models.load.resolve import resolve

from ..bench.prompts import PROMPT_SETS
from ..bench.workload import encode_prompts
from ..config import QUANTIZATIONS, ConfigError, EngineConfig
from ..load import load_pair

FORMATS = ("float32", "bfloat16", "float16", *QUANTIZATIONS[1:])
REFERENCE = "float32"


@dataclass(frozen=True, slots=True)
class FidelitySettings:
    """Raises ConfigError, naming the option, for what cannot be measured."""

    target: str = "default"
    formats: tuple[str, ...] = ("bfloat16", "int8", "int4")
    prompts: int = 24  # built-in ones, from all sets in turn
    tokens: int = 32  # of each answer
    num_threads: int | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if not self.formats or not set(self.formats) <= set(FORMATS):
            raise ConfigError(f"--formats is {','.join(self.formats)!r}; use some of {', '.join(FORMATS)}")
        if self.prompts < 1 or self.tokens < 1:
            raise ConfigError("--prompts and --tokens must be 1 or more")


@dataclass(frozen=True, slots=True)
class Fidelity:
    """One format against float32, over ``positions`` next-token laws at temperature 1."""

    format: str
    positions: int
    mean_kl: float  # KL(float32 || format), nats
    worst_kl: float  # the 99th percentile of the same
    mean_distance: float  # total variation, in [0, 1]
    top1_agreement: float  # share of positions with the same most likely token


@dataclass(frozen=True, slots=True)
class _Text:
    token_ids: tuple[int, ...]
    num_prompt: int


def measure_fidelity(settings: FidelitySettings, console: Console) -> list[Fidelity]:
    """One row per format; progress goes to ``console``. Raises ConfigError and ModelError."""
    folder = resolve(settings.target, offline=settings.offline)
    tokenizer = load_tokenizer(folder)
    sets = [encode_prompts(tokenizer, name) for name in PROMPT_SETS]
    prompts = [prompt for group in zip(*sets, strict=True) for prompt in group][: settings.prompts]
    console.print(f"{REFERENCE}: {len(prompts)} answers of {settings.tokens} tokens", style="dim")
    length = max(map(len, prompts)) + settings.tokens
    reference = _load(settings, REFERENCE, length)
    texts = [
        _Text((*prompt, *_answer(reference, prompt, settings.tokens)), len(prompt)) for prompt in prompts
    ]
    expected = [_logits(reference, text) for text in texts]
    del reference
    rows = []
    for name in settings.formats:
        console.print(f"{name}: the same positions", style="dim")
        model = _load(settings, name, length)
        rows.append(compare(name, expected, [_logits(model, text) for text in texts]))
    return rows


def compare(name: str, expected: Sequence[Tensor], found: Sequence[Tensor]) -> Fidelity:
    """expected, found: logits [positions, V] float32 of each text."""
    kl, distance, agree = [], [], []
    for one, other in zip(expected, found, strict=True):
        log_p, log_q = one.double().log_softmax(-1), other.double().log_softmax(-1)
        p = log_p.exp()
        kl.append((p * (log_p - log_q)).sum(-1))
        distance.append((p - log_q.exp()).abs().sum(-1) / 2)
        agree.append(one.argmax(-1) == other.argmax(-1))
    all_kl = torch.cat(kl)
    return Fidelity(
        format=name,
        positions=all_kl.shape[0],
        mean_kl=float(all_kl.mean()),
        worst_kl=float(all_kl.quantile(0.99)),
        mean_distance=float(torch.cat(distance).mean()),
        top1_agreement=float(torch.cat(agree).double().mean()),
    )


def _load(settings: FidelitySettings, name: str, num_rows: int) -> CausalModel:
    """The target as the server would run it in a format; integer weights go with the machine's own dtype."""
    quantization = name if name in QUANTIZATIONS else "none"
    config = EngineConfig(
        settings.target,
        device="cpu",
        dtype="auto" if quantization != "none" else name,
        quantization=quantization,
        num_threads=settings.num_threads,
        offline=settings.offline,
    )
    target, _ = load_pair(config)
    if num_rows > target.context:
        raise ConfigError(
            f"--tokens is {settings.tokens}; with the prompts that is beyond the model's context"
        )
    geometry = fit(target.model, target.context).geometry
    lay_out(target.model, quantization)
    return CausalModel(target.model, KVMemory(geometry, num_rows, torch.device("cpu")), target.context)


def _answer(model: CausalModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The model's most likely text, EOS or not."""
    answer: list[int] = []
    fresh, start = list(prompt), 0
    for _ in range(num_tokens):
        logits = model.forward(chunk_inputs(fresh, start, torch.device("cpu"))).logits
        start += len(fresh)
        fresh = [int(logits[-1].argmax())]
        answer += fresh
    return answer


def _logits(model: CausalModel, text: _Text) -> Tensor:
    """The laws of the answer's tokens: [tokens, V] float32."""
    inputs = chunk_inputs(list(text.token_ids[:-1]), 0, torch.device("cpu"))
    return model.forward(inputs).logits[text.num_prompt - 1 :].clone()

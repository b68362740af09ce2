"""Text written by the target itself: what it says is what the draft will have to foresee."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import unwritable, write_whole
from ..quiet import quiet

_BATCH = 32  # answers written side by side
_TEMPERATURES = (1.0, 1.0, 1.0, 0.7, 0.0)  # one a batch, in turn; 0: greedy


def write_corpus(
    target: Any,
    tokenizer: Any,
    prompts: Iterator[str],
    tokens: int,
    path: Path,
    *,
    seed: int,
    max_new_tokens: int,
    console: Console,
) -> None:
    """Let ``target`` answer ``prompts`` until ``path`` (JSONL, see corpus.py) holds ``tokens`` output tokens.

    Answers are drawn from the target's whole law, without top-p or top-k. A file that is already there
    is continued, with the prompts that follow; a line cut off in the middle is dropped.
    """
    written, answers = _continue(path)
    batch = answers // _BATCH
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} tokens"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("the target writes", total=tokens, completed=written)
        remaining = islice(prompts, batch * _BATCH, None)
        while written < tokens:
            asked = [_prompt_ids(tokenizer, prompt) for prompt in islice(remaining, _BATCH)]
            if not asked:
                break
            temperature = _TEMPERATURES[batch % len(_TEMPERATURES)]
            outputs = _answers(target, asked, temperature, max_new_tokens, seed=seed * 1_000_003 + batch)
            answered = zip(asked, outputs, strict=True)
            _append(path, [{"prompt": p, "output": o, "temperature": temperature} for p, o in answered])
            written += sum(map(len, outputs))
            batch += 1
            progress.update(task, completed=written)


def _append(path: Path, entries: list[dict[str, Any]]) -> None:
    try:
        with path.open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
    except OSError as error:
        raise unwritable(path, error) from error


def _continue(path: Path) -> tuple[int, int]:
    """(output tokens, answers) that ``path`` holds, after cutting it back to whole batches of whole lines."""
    if not path.exists():
        return 0, 0
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    lines = lines[: len(lines) - len(lines) % _BATCH]
    write_whole(path, "".join(lines))
    return sum(len(json.loads(line)["output"]) for line in lines), len(lines)


def _prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """As the server would send it: in the chat template where there is one."""
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return list(tokenizer(prompt)["input_ids"])


def _answers(
    target: Any, prompts: list[list[int]], temperature: float, max_new_tokens: int, seed: int
) -> list[list[int]]:
    """Output ids of every prompt, the end-of-text id included where the target wrote it."""
    longest = max(map(len, prompts))
    padding = _ends(target)[0] if _ends(target) else 0
    ids = torch.tensor([[padding] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    law: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        law = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
    with torch.random.fork_rng(), torch.inference_mode(), quiet():
        torch.manual_seed(seed)
        generated = target.generate(
            input_ids=ids.to(target.device),
            attention_mask=mask.to(target.device),
            max_new_tokens=max_new_tokens,
            pad_token_id=padding,
            **law,
        )
    return [_up_to_end(row[longest:].tolist(), _ends(target)) for row in generated]


def _ends(target: Any) -> list[int]:
    ends = target.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [int(ends)]


def _up_to_end(ids: list[int], ends: list[int]) -> list[int]:
    for place, token_id in enumerate(ids):
        if token_id in ends:
            return ids[: place + 1]
    return ids

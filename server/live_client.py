"""Asks a running server for many short completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from resispec.engine.audit.live import Answer
from resispec.engine.audit.settings import LiveSettings
from resispec.engine.config import ConfigError

_IN_FLIGHT = 4  # few: under load a server may draft less, and drafting is what is to be tested
_TRIES = 8  # of an answer that the server has no room for


@dataclass(frozen=True, slots=True)
class LiveAnswers:
    """answers: all of them. verifier, exact: what the server says of itself; None: nothing."""

    answers: tuple[Answer, ...]
    verifier: str | None
    exact: bool | None


async def as_served(settings: LiveSettings, api_key: str | None) -> LiveSettings:
    """The settings with the server's own number formats, where it says them and nothing else was wished.

    Raises ConfigError, saying why, for formats that cannot be had here, and unless there are models listed.
    """
    async with _client(settings, api_key) as client:
        body = await _send(client, "GET", "/v1/models", None)
    try:
        model = body["data"][0]
        dtype, quantization = str(model.get("dtype", "auto")), str(model.get("quantization", "none"))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ConfigError("--live: /v1/models lists no model; is it such a server?") from None
    if settings.dtype == "auto":
        settings = replace(settings, dtype=dtype)
    return replace(settings, quantization=quantization)


async def collect(
    settings: LiveSettings,
    prompts: Sequence[Sequence[int]],
    api_key: str | None,
    advance: Callable[[], None],
) -> LiveAnswers:
    """``settings.answers`` independent answers, spread evenly over the prompts. Raises ConfigError.

    advance: called after each.
    """
    slots = asyncio.Semaphore(_IN_FLIGHT)
    async with _client(settings, api_key) as client:

        async def ask(number: int) -> tuple[Answer, dict[str, Any]]:
            async with slots:
                prompt = number % len(prompts)
                body = await _send(client, "POST", "/v1/completions", _body(settings, prompts[prompt]))
                advance()
                return _answer(prompt, body, settings.tokens)

        tasks = [asyncio.create_task(ask(number)) for number in range(settings.answers)]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
    said = next((figures for _, figures in found if figures), {})
    return LiveAnswers(tuple(answer for answer, _ in found), said.get("verifier"), said.get("exact"))


def _client(settings: LiveSettings, api_key: str | None) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = settings.url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(
            f"--live is {settings.url!r}; give the server's address, like http://localhost:8000"
        )
    return httpx.AsyncClient(base_url=base, headers=headers, timeout=300)


def _body(settings: LiveSettings, prompt: Sequence[int]) -> dict[str, Any]:
    # All that shapes the law is said, so that the server's defaults do not matter.
    body: dict[str, Any] = {
        "prompt": list(prompt),
        "max_tokens": settings.tokens,
        "temperature": settings.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "return_token_ids": True,
    }
    if settings.verifier is not None:
        body["speculation"] = {"verifier": settings.verifier}
    return body


async def _send(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None) -> Any:
    response = await _request(client, method, path, body)
    tries = 1
    while response.status_code in (429, 503) and tries < _TRIES:
        await asyncio.sleep(_seconds(response.headers.get("Retry-After")))
        response = await _request(client, method, path, body)
        tries += 1
    if response.is_error:
        raise ConfigError(f"--live: {path} answered {response.status_code}: {_message(response)}")
    try:
        return response.json()
    except ValueError:
        raise ConfigError(f"--live: {path} of {client.base_url} is not JSON; is it such a server?") from None


async def _request(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> httpx.Response:
    try:
        return await client.request(method, path, json=body)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"--live: no answer from {client.base_url}: {reason}") from None


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else 1.0


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _answer(prompt: int, body: Any, num_tokens: int) -> tuple[Answer, dict[str, Any]]:
    try:
        ids = body["choices"][0]["token_ids"]
        figures = (body.get("metrics") or {}).get("speculative_decoding") or {}
        accepted = int(figures.get("num_accepted_draft_tokens", 0))
        token_ids = tuple(int(token) for token in ids)
    except (KeyError, IndexError, TypeError, ValueError):
        raise ConfigError("--live: the server does not answer 'return_token_ids' with token ids") from None
    if not 1 <= len(token_ids) <= num_tokens:
        raise ConfigError(f"--live: an answer has {len(token_ids)} tokens, and not 1 to {num_tokens}")
    return Answer(prompt, token_ids, accepted), figures

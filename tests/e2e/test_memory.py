"""Many requests leave nothing behind, in neither process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow

GROWTH_MIB = 10  # 1.6 were measured: allocators settle, metrics get new series


def resident_mib(pids):
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * 4096 / (1 << 20)


async def send(url, number):
    limit = asyncio.Semaphore(16)

    async def one(client, index):
        body = {
            "prompt": f"request {index} " * 8,
            "max_tokens": 8,
            "stream": index % 2 == 0,
            "n": 1 + index % 2,
            "temperature": index % 3 / 2,
        }
        async with limit:
            if index % 10 == 0:  # hangs up in the middle
                body |= {"max_tokens": 300, "ignore_eos": True, "stream": True}
                async with client.stream("POST", url, json=body) as response:
                    async for _ in response.aiter_lines():
                        break
            else:
                response = await client.post(url, json=body)
                assert response.status_code == 200, response.text

    async with httpx.AsyncClient(timeout=120) as client:
        await asyncio.gather(*(one(client, index) for index in range(number)))


async def test_memory_is_flat_over_500_requests(tiny_server):
    url = f"{tiny_server.url}/v1/completions"
    pids = tiny_server.pids
    await send(url, 200)
    before = resident_mib(pids)
    await send(url, 500)
    tiny_server.wait_for_metric("num_requests_running", lambda value: value == 0)
    assert tiny_server.metric("kv_cache_usage_ratio") == 0
    assert resident_mib(pids) < before + GROWTH_MIB

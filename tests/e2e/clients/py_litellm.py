"""LiteLLM as a library. Argument: the server's address."""

import asyncio
import json
import sys
from typing import Any

import litellm

ADDRESS = f"{sys.argv[1]}/v1"
GREEDY: dict[str, Any] = {
    "model": "openai/tiny",
    "api_base": ADDRESS,
    "api_key": "none",
    "messages": [{"role": "user", "content": "Hello there"}],
    "temperature": 0,
    "max_tokens": 24,
    "num_retries": 0,
}


async def later() -> str:
    answer = await litellm.acompletion(**GREEDY)
    return str(answer.choices[0].message.content)


whole = litellm.completion(**GREEDY)
chunks = litellm.completion(**GREEDY, stream=True, stream_options={"include_usage": True})
text = ""
for chunk in chunks:
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
response = litellm.responses(
    model="openai/tiny",
    api_base=ADDRESS,
    api_key="none",
    input="Hello there",
    temperature=0,
    max_output_tokens=24,
)
try:
    litellm.completion(**{**GREEDY, "temperature": -1})
    refused = None
except litellm.BadRequestError as error:
    refused = str(error)
print(
    json.dumps(
        {
            "text": whole.choices[0].message.content,
            "stream": text,
            "async": asyncio.run(later()),
            "tokens": whole.usage.completion_tokens,
            "response": response.output[0].content[0].text,
            "refused": refused,
        }
    )
)

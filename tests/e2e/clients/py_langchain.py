"""LangChain's ChatOpenAI, by chat completions and by responses. Argument: the server's address."""

import asyncio
import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI

ADDRESS = f"{sys.argv[1]}/v1"
GREEDY: dict[str, Any] = {
    "model": "tiny",
    "base_url": ADDRESS,
    "api_key": "none",
    "temperature": 0,
    "max_retries": 0,
}
QUESTION = "Hello there"


async def by(model: Any) -> dict[str, Any]:
    whole = model.invoke(QUESTION)
    return {
        "text": whole.text,
        "stream": "".join(chunk.text for chunk in model.stream(QUESTION)),
        "batch": [answer.text for answer in model.batch([QUESTION, QUESTION])],
        "async": (await model.ainvoke(QUESTION)).text,
        "tokens": whole.usage_metadata["output_tokens"],
    }


async def main() -> dict[str, Any]:
    # In one loop: the package keeps its connections from one call to the next.
    chat = ChatOpenAI(**GREEDY, max_tokens=24)
    completion = OpenAI(**GREEDY, max_tokens=24)
    return {
        "chat": await by(chat),
        "responses": await by(ChatOpenAI(**GREEDY, max_tokens=24, use_responses_api=True)),
        "system": chat.invoke([("system", "Be brief."), ("human", QUESTION)]).text,
        "completion": completion.invoke("abc"),
        "completionStream": "".join(completion.stream("abc")),
    }


print(json.dumps(asyncio.run(main())))

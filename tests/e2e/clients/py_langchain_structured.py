"""LangChain's structured output and tools. Argument: the server's address."""

import asyncio
import json
import sys
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

QUESTION = "Weather?"


class City(BaseModel):
    """A city and its weather."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=6)
    kinds: list[Literal["hot", "cold"]] = Field(max_length=2)


def weather(city: Literal["Oslo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """How the weather will be."""
    return f"{city} is sunny for {days} days"


def model(**settings: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="tiny",
        base_url=f"{sys.argv[1]}/v1",
        api_key="none",
        temperature=0,
        max_retries=0,
        max_tokens=300,
        **settings,
    )


async def structured(chat: ChatOpenAI, method: str, **options: Any) -> list[Any]:
    runnable = chat.with_structured_output(City, method=method, **options)
    streamed = [answer for answer in runnable.stream(QUESTION) if answer is not None]
    answers = [runnable.invoke(QUESTION), await runnable.ainvoke(QUESTION), streamed[-1]]
    return [answer.model_dump() for answer in answers]


async def main() -> dict[str, Any]:
    chat, asking = model(), tool(weather)
    bound = chat.bind_tools([asking], tool_choice="weather", strict=True)
    called = bound.invoke(QUESTION)
    pieces = None
    for piece in bound.stream(QUESTION):
        pieces = piece if pieces is None else pieces + piece
    answers: list[ToolMessage] = [asking.invoke(call) for call in called.tool_calls]
    again = bound.invoke([HumanMessage(QUESTION), called, *answers])
    return {
        "schema": await structured(chat, "json_schema"),
        "strict": await structured(chat, "json_schema", strict=True),
        "responses": await structured(model(use_responses_api=True), "json_schema"),
        "calling": await structured(chat, "function_calling"),
        "called": [call["args"] for call in called.tool_calls],
        "streamed": [call["args"] for call in pieces.tool_calls],
        "tools": [answer.content for answer in answers],
        "again": [call["args"] for call in again.tool_calls],
    }


print(json.dumps(asyncio.run(main())))

"""Chunks that are written from a template are, byte for byte, what their model would write."""

from __future__ import annotations

import pytest

from resispec.engine.outputs import FinishReason, RequestOutput, Usage
from resispec.server.schemas.chat import ChatChunk
from resispec.server.schemas.completions import Completion
from resispec.server.tools.reader import AnswerForm
from resispec.server.writers.base import EnvelopeFields, Shown, Writer
from resispec.server.writers.chat import ChatWriter
from resispec.server.writers.completions import CompletionWriter

TEXTS = ("a", ' "quoted" \\ and \n\t\r', "\0\x01\x7f", "é 🙂 \u2028", "</script>", "\\u0000", '"\\u0000"')
ENVELOPE = EnvelopeFields(id='x-"1"', created=7, model="m", system_fingerprint="fp")


def news(text: str, reason: FinishReason | None = None) -> RequestOutput:
    return RequestOutput("r", text, (1,), Usage(3, 1), reason)


@pytest.mark.parametrize("schema", [Completion, ChatChunk])
def test_a_stream_of_texts(schema: type[Completion | ChatChunk]) -> None:
    writer: Writer = (
        CompletionWriter(ENVELOPE, [(1, 2, 3)] * 2, None, Shown())
        if schema is Completion
        else ChatWriter(ENVELOPE, (1, 2, 3), Shown(), AnswerForm(None))
    )
    for index in (0, 1, 0):
        for text in TEXTS:
            *_, chunk = writer.chunks(index, news(text))
            model = schema.model_validate_json(chunk)
            assert model.model_dump_json() == chunk
            [choice] = model.choices
            assert choice.index == index
            assert text == (choice.text if hasattr(choice, "text") else choice.delta.content)
            assert choice.finish_reason is None
    assert writer.chunks(0, news("")) == []
    [last] = writer.chunks(0, news("z", FinishReason.STOP))
    assert schema.model_validate_json(last).choices[0].finish_reason == "stop"

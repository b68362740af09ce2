"""Workloads whose answers have a form."""

from __future__ import annotations

import json

import jsonschema
import pytest

from resispec.engine.bench.contenders import FailedContender
from resispec.engine.bench.forms import FORMS, SCHEMA_PROMPTS
from resispec.engine.bench.prompts import PROMPT_SETS
from resispec.engine.bench.serving.launch import parse_peer
from resispec.engine.bench.serving.settings import UrlSettings
from resispec.engine.bench.settings import BenchSettings
from resispec.engine.bench.workload import make_workloads
from resispec.engine.config import ConfigError

ENCODED: dict[str, tuple[tuple[int, ...], ...]] = {
    name: tuple((n,) for n, _ in enumerate(texts)) for name, texts in PROMPT_SETS.items()
}


def test_every_prompt_has_its_form():
    assert set(FORMS) <= set(PROMPT_SETS)
    for prompt, form in zip(SCHEMA_PROMPTS, FORMS["schema"], strict=True):
        schema = json.loads(form.value)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["required"] == list(schema["properties"])
        assert ", ".join(schema["properties"]) in prompt


def test_workloads_pair_them():
    free, formed = make_workloads(
        BenchSettings(prompts=("chat", "schema"), batch=(12,), temperature=(0,)), ENCODED
    )
    assert free.forms == ()
    assert len(formed.forms) == len(formed.requests) == 5 * len(FORMS["schema"]) >= 3 * 12
    for (number,), form in zip(formed.requests, formed.forms, strict=True):
        assert form == FORMS["schema"][number]
    assert len(formed.warm_up().forms) == len(formed.warm_up().requests) == 12
    transformers = FailedContender("transformers", RuntimeError())
    alone = make_workloads(BenchSettings(prompts=("schema",), batch=(1,), temperature=(0,)), ENCODED)
    assert not transformers.takes(alone[0])


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match="leave out --peer"):
        BenchSettings(prompts=("schema",), peers=(parse_peer("vllm=/usr/bin/python3"),))
    with pytest.raises(ConfigError, match="intruder and forms"):
        BenchSettings(prompts=("schema",), simulate=True)
    with pytest.raises(ConfigError, match="goes without --url"):
        UrlSettings("http://localhost:1", prompts=("schema",))

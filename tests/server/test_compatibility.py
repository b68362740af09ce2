"""``docs/compatibility.md`` is what its script writes, and says what the server does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "compatibility"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_compatibility", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(build):
    page = build.PAGE.read_text(encoding="utf-8")
    assert page == build.page(build.load()), "run: .venv/bin/python docs/compatibility/build.py"


def test_every_name_has_its_row(build):
    page = build.PAGE.read_text(encoding="utf-8")
    peers = build.load()
    for endpoint, known in peers["parameters"].items():
        section = re.split(r"^## ", page, flags=re.MULTILINE)
        [text] = [part for part in section if part.startswith(f"`{endpoint}`")]
        for names in known.values():
            assert len(names.split()) == len(set(names.split()))
            for name in names.split():
                assert f"| `{name}` |" in text, (endpoint, name)


def test_what_is_named_in_its_place_exists(build):
    peers = build.load()
    fields: set[str] = set().union(*(schema.model_fields for schema in build.SCHEMAS.values()))
    assert set(peers["instead"].values()) <= fields
    assert set(peers["endpoint_instead"].values()) <= build.endpoints()
    listed: set[str] = set()
    for names in peers["endpoints"].values():
        listed |= set(names.strip().splitlines())
    assert set(peers["endpoint_instead"]) <= listed


BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/completions": {"prompt": "a"},
    "POST /v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "POST /v1/responses": {"input": "a"},
    "POST /tokenize": {"prompt": "a"},
    "POST /detokenize": {"tokens": [1]},
}


@pytest.mark.parametrize("endpoint", BODIES)
async def test_what_is_refused_is_refused_by_name(build, http, engine, endpoint):
    peers = build.load()
    schema = build.SCHEMAS[endpoint]
    names = set(" ".join(peers["parameters"][endpoint].values()).split())
    checked = 0
    for name in sorted(names):
        if build.status(name, schema, peers).startswith(("refused", "unknown")):
            response = await http.post(endpoint.split()[1], json={**BODIES[endpoint], name: "something"})
            assert response.status_code == 400, name
            assert response.json()["error"]["param"] == name
            checked += 1
    assert checked or endpoint == "POST /detokenize"
    assert not engine.requests


async def test_what_has_no_effect_has_none(build, http, engine):
    for name in ("user", "safety_identifier"):
        assert build.status(name, build.SCHEMAS["POST /v1/completions"], build.load()) == "no effect"
        response = await http.post("/v1/completions", json={"prompt": "a", "seed": 1, name: "somebody"})
        assert response.status_code == 200
    first, second = engine.requests
    assert first.sampling == second.sampling

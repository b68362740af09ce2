"""The audit over HTTP: the documents' three-token example, and what is no law."""

from __future__ import annotations

import pytest

EXAMPLE = {"p": [0.4, 0.3, 0.3], "q": [0.6, 0.3, 0.1], "tail_draws": 3}


async def test_the_example(http):
    found = (await http.post("/v1/audit", json=EXAMPLE)).json()["verifiers"]
    assert found["resispec"]["law"] == pytest.approx(EXAMPLE["p"], abs=1e-12)
    assert found["resispec-paper"]["law"] == pytest.approx([0.4, 0.442, 0.158], abs=1e-3)
    for one in found.values():
        assert one["exact"] == (one["total_variation"] < 1e-12)
        assert not one["exact"] or one["acceptance"] <= one["ceiling"] + 1e-12


async def test_a_head(http):
    found = (await http.post("/v1/audit", json=EXAMPLE | {"head": [0], "tail_draws": 1})).json()
    assert found["verifiers"]["resispec"]["total_variation"] < 1e-12


async def test_the_largest_case_is_quick(http):
    p = [1 / 8] * 8
    response = await http.post("/v1/audit", json={"p": p, "q": p, "tail_draws": 4})
    assert response.status_code == 200
    assert response.elapsed.total_seconds() < 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"p": [0.5, 0.4, 0.2]},
        {"p": [0.5, 0.5]},
        {"p": [1.5, -0.5, 0.0]},
        {"p": [1.0]},
        {"p": [1 / 9] * 9, "q": [1 / 9] * 9},
        {"tail_draws": 5},
        {"tail_draws": 1.5},
        {"head": [3]},
        {"head": [0, 0]},
        {"q": None},
        {"extra": 1},
    ],
)
async def test_no_law(http, wrong):
    response = await http.post("/v1/audit", json=EXAMPLE | wrong)
    assert response.status_code == 400
    assert response.json()["error"]["message"]

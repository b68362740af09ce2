"""``POST /v1/completions``: what it answers, and what it asks of the engine."""

from __future__ import annotations

import httpx


async def complete(http: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await http.post("/v1/completions", json={"prompt": "ab", **body})


async def test_answer_holds_text_usage_and_metrics(http, engine):
    response = await complete(http, model="tiny")
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": 256}
    ]
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 5,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 7},
    }
    figures = body["metrics"]["speculative_decoding"]
    assert figures["mean_acceptance_length"] == 2.5
    assert figures["draft_acceptance_rate"] == 0.5
    assert figures["acceptance_by_depth"] == [1.0, 0.5, 0.0]
    assert figures["acceptance_by_child"] == [0.6667, 0.3333]
    assert body["metrics"]["time_to_first_token_ms"] == 3.0


async def test_defaults_are_the_models_then_neutral(http, engine):
    await complete(http)
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_tokens) == (0.6, 40, 1.0, 16)
    await complete(http, temperature=0, top_k=-1)
    sampling = engine.requests[1].sampling
    assert (sampling.temperature, sampling.top_k) == (0, 0)


async def test_every_sampling_parameter_reaches_the_engine(http, engine):
    response = await complete(
        http,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=-1,
        stop=["x", "y"],
        stop_token_ids=[7],
        allowed_token_ids=[8, 9],
        include_stop_str_in_output=True,
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        logit_bias={"3": 4, "5": -100},
        skip_special_tokens=False,
        priority=-3,
        cache_salt="a",
        speculation={"enabled": True, "verifier": "target", "tree": {"max_nodes": 3, "max_depth": 2}},
    )
    assert response.status_code == 200, response.text
    request = engine.requests[0]
    sampling = request.sampling
    assert sampling.temperature == 0.5
    assert sampling.top_p == 0.9
    assert sampling.top_k == 5
    assert sampling.min_p == 0.1
    assert sampling.seed == 2**64 - 1
    assert sampling.stop == ("x", "y")
    assert sampling.stop_token_ids == (7,)
    assert sampling.allowed_token_ids == (8, 9)
    assert sampling.include_stop_str_in_output
    assert sampling.max_tokens == 9
    assert sampling.min_tokens == 2
    assert sampling.ignore_eos
    assert sampling.presence_penalty == 1
    assert sampling.frequency_penalty == -1
    assert sampling.repetition_penalty == 1.2
    assert sampling.logit_bias == ((3, 4), (5, -100))
    assert not sampling.skip_special_tokens
    assert request.priority == -3
    speculation = request.speculation
    assert (speculation.verifier, speculation.max_nodes, speculation.max_depth) == ("target", 3, 2)


async def test_cache_salts_isolate(http, engine):
    for fields in (
        {},
        {"cache_salt": "a"},
        {"prompt_cache_key": "a"},
        {"cache_salt": "a", "prompt_cache_key": "a"},
    ):
        await complete(http, **fields)
    salts = [request.cache_salt for request in engine.requests]
    assert salts[0] == ""
    assert len(set(salts)) == 4


async def test_several_prompts_and_n_make_choices_in_order(http, engine):
    body = (await complete(http, prompt=["a", "bc"], n=2, seed=5)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [len(request.prompt_token_ids) for request in engine.requests] == [1, 1, 2, 2]
    seeds = [request.sampling.seed for request in engine.requests]
    assert seeds[0] == seeds[2] == 5
    assert seeds[1] == seeds[3] != 5
    assert body["usage"]["prompt_tokens"] == 3  # each prompt once
    assert body["usage"]["completion_tokens"] == 20
    assert body["metrics"]["speculative_decoding"]["num_draft_tokens"] == 40
    assert len({request.request_id for request in engine.requests}) == 4


async def test_token_ids_in_and_out(http, engine):
    body = (await complete(http, prompt=[1, 2, 3], return_token_ids=True)).json()
    assert engine.requests[0].prompt_token_ids == (1, 2, 3)
    assert body["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"][0]["token_ids"] == [72, 101, 108, 108, 111]
    body = (await complete(http, prompt=[[1], [2, 3]])).json()
    assert len(body["choices"]) == 2


async def test_echo_puts_the_prompt_first(http):
    body = (await complete(http, prompt=["ab", "c"], echo=True)).json()
    assert [choice["text"] for choice in body["choices"]] == ["abHello", "cHello"]
    ids = (await complete(http, echo=True, return_token_ids=True)).json()["choices"][0]["prompt_token_ids"]
    body = (await complete(http, prompt=ids, echo=True)).json()
    assert body["choices"][0]["text"] == "abHello"


async def test_ids_are_the_clients_or_made(http):
    body = (await complete(http, request_id="mine")).json()
    assert body["id"] == "cmpl-mine"
    response = await http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert response.json()["id"] == "cmpl-abc-1"
    response = await http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "a b\t<"})
    assert len(response.headers["x-request-id"]) == 32


async def test_prompts_are_truncated_on_the_left(http, engine):
    for keep, used in ((2, 2), (60, 10), (-1, 10)):
        await complete(http, prompt="abcdefghij", truncate_prompt_tokens=keep)
        assert len(engine.requests[-1].prompt_token_ids) == used
    await complete(http, prompt="x" * 100, truncate_prompt_tokens=-1, max_tokens=10)
    assert len(engine.requests[-1].prompt_token_ids) == 54
    body = (await complete(http, prompt="abcdef", truncate_prompt_tokens=3, echo=True)).json()
    assert body["choices"][0]["text"] == "defHello"
    response = await complete(http, prompt="x" * 100, truncate_prompt_tokens=64)
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_bad_words_are_spelled_with_and_without_a_space(http, engine, tokenizer):
    await complete(http, bad_words=["ab", " c"])
    spelled = [tokenizer.decode(list(word)) for word in engine.requests[0].sampling.bad_words]
    assert spelled == ["ab", " ab", "c", " c"]


async def test_log_probabilities_that_are_asked_for(http, engine):
    for asked, wanted in (
        ({}, (None, None)),
        ({"logprobs": 0}, (0, None)),
        ({"logprobs": 3, "echo": True}, (3, 3)),
        ({"prompt_logprobs": 2}, (None, 2)),
        ({"logprobs": 1, "echo": True, "prompt_logprobs": 2}, (1, 2)),
    ):
        response = await complete(http, **asked)
        assert response.status_code == 200, response.text
        sampling = engine.requests[-1].sampling
        assert (sampling.logprobs, sampling.prompt_logprobs) == wanted


async def test_log_probabilities_in_print(http):
    body = (await complete(http, logprobs=1, echo=True, return_tokens_as_token_ids=True)).json()
    scores = body["choices"][0]["logprobs"]
    assert scores["tokens"][2:] == [f"token_id:{token}" for token in (72, 101, 108, 108, 111)]
    assert scores["token_logprobs"] == [None, *[-0.5] * 6]
    assert scores["top_logprobs"][2] == {"token_id:70": -0.25, "token_id:72": -0.5}
    assert scores["text_offset"] == [0, 1, 2, 3, 4, 5, 6]


async def test_nothing_is_generated_only_to_score_a_prompt(http, engine):
    for scoring in ({"echo": True, "logprobs": 0}, {"prompt_logprobs": 0}):
        assert (await complete(http, max_tokens=0, **scoring)).status_code == 200
    for other in ({}, {"logprobs": 1}, {"echo": True}):
        response = await complete(http, max_tokens=0, **other)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "max_tokens"
    assert [request.sampling.max_tokens for request in engine.requests] == [0, 0]

"""Log-probabilities are those of transformers' own forward over the finished text, whatever ran it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.outputs import FinishReason, RequestOutput, TokenLogprobs
from resispec.engine.request import Request, RequestError, SamplingParams
from resispec.engine.verifiers.table import VERIFIERS

TOLERANCE = 1e-3


def prompts(count: int = 6, longest: int = 45) -> list[tuple[int, ...]]:
    rng = random.Random(4)
    return [tuple(rng.randrange(2, 128) for _ in range(rng.randrange(1, longest))) for _ in range(count)]


def close_draft(tiny: Any) -> LoadedDraft:
    model = tiny.model(0)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return LoadedDraft(256, model=model)


def run(engine: Any, requests: Sequence[Request]) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step().outputs:
            outputs[output.request_id].append(output)
    engine.check_integrity()
    return outputs


def law(model: Any, text: Sequence[int]) -> torch.Tensor:
    """[len(text), V]: log-probabilities of what follows each token."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


def check(scores: Sequence[TokenLogprobs], tokens: Sequence[int], rows: torch.Tensor, top: int) -> None:
    """rows: [len(tokens), V], the law at each token."""
    assert [score.token_id for score in scores] == list(tokens)
    for score, row in zip(scores, rows, strict=True):
        assert abs(score.logprob - float(row[score.token_id])) < TOLERANCE
        likelier = row > row[score.token_id]
        assert abs(score.rank - 1 - int(likelier.sum())) <= 1  # one near tie may fall on either side
        assert len(score.top) == top
        best = row.topk(top).values.tolist()
        for (token, value), expected in zip(score.top, best, strict=True):
            assert abs(value - expected) < TOLERANCE
            assert abs(value - float(row[token])) < TOLERANCE


def check_outputs(model: Any, request: Request, outputs: Sequence[RequestOutput]) -> None:
    tokens = [token for output in outputs for token in output.token_ids]
    rows = law(model, [*request.prompt_token_ids, *tokens])
    first = len(request.prompt_token_ids)
    for output in outputs:
        count = len(output.token_ids)
        assert len(output.text_ends) == count
        check(output.logprobs, output.token_ids, rows[first - 1 :][:count], request.sampling.logprobs or 0)
        first += count


@pytest.mark.parametrize("verifier", [name for name, rule in VERIFIERS.items() if rule.exact])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_of_accepted_and_corrected_tokens(tiny: Any, verifier: str, temperature: float) -> None:
    engine = tiny.engine(tiny.model(0), close_draft(tiny), verifier=verifier)
    requests = [
        Request(str(i), prompt, SamplingParams(temperature, max_tokens=48, seed=i, logprobs=i % 4))
        for i, prompt in enumerate(prompts())
    ]
    outputs = run(engine, requests)
    assert any(len(output.token_ids) > 2 for part in outputs.values() for output in part)
    for request in requests:
        check_outputs(tiny.model(0), request, outputs[request.request_id])


@pytest.mark.parametrize("proposers", [("ngram",), ("draft", "ngram", "recycle")])
def test_of_tokens_that_were_known_beforehand(tiny: Any, proposers: tuple[str, ...]) -> None:
    engine = tiny.engine(tiny.model(0), close_draft(tiny), proposers=proposers)
    requests = [
        Request(str(i), prompt * 2, SamplingParams(0.5, max_tokens=40, seed=i, logprobs=i % 3))
        for i, prompt in enumerate(prompts())
    ]
    outputs = run(engine, requests)
    counted = [part[-1].metrics.speculation for part in outputs.values() if part[-1].metrics]
    sources = [counts for part in counted if part for counts in part.by_source if counts.source != "draft"]
    assert sum(counts.num_accepted for counts in sources) > 0
    for request in requests:
        check_outputs(tiny.model(0), request, outputs[request.request_id])


def test_are_raw_whatever_a_request_changes(tiny: Any) -> None:
    sampling = SamplingParams(
        temperature=0.7,
        top_k=5,
        repetition_penalty=1.5,
        logit_bias=((9, 20.0),),
        seed=3,
        max_tokens=20,
        logprobs=2,
        ignore_eos=True,
    )
    request = Request("a", (5, 6, 7), sampling)
    outputs = run(tiny.engine(tiny.model(0), close_draft(tiny)), [request])["a"]
    assert any(score.rank > 1 for output in outputs for score in output.logprobs)
    check_outputs(tiny.model(0), request, outputs)


def test_only_of_those_who_ask(tiny: Any) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    requests = [
        Request("plain", (5, 6, 7), sampling),
        Request("asks", (8, 9), replace(sampling, logprobs=0)),
    ]
    outputs = run(tiny.engine(tiny.model(0), close_draft(tiny)), requests)
    assert all(output.logprobs == () == output.prompt_logprobs for output in outputs["plain"])
    check_outputs(tiny.model(0), requests[1], outputs["asks"])


def test_end_where_the_answer_ends(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), LoadedDraft(256, model=tiny.model(0)))
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=1)
    tokens = [t for o in run(engine, [Request("a", (5, 6, 7), sampling)])["a"] for t in o.token_ids]
    stop = next(token for place, token in enumerate(tokens) if place > 4 and token not in tokens[:place])
    place = tokens.index(stop)
    for stopping in ({"stop_token_ids": (stop,)}, {"stop": (f"t{stop}",)}, {"max_tokens": place + 1}):
        request = Request("a", (5, 6, 7), replace(sampling, **stopping))
        outputs = run(engine, [request])["a"]
        assert [score.token_id for o in outputs for score in o.logprobs] == tokens[: place + 1]
        check_outputs(tiny.model(0), request, outputs)


def scored(outputs: Sequence[RequestOutput]) -> tuple[TokenLogprobs, ...]:
    assert all(output.prompt_logprobs == () for output in outputs[1:])
    return outputs[0].prompt_logprobs


def scoring(prompt: tuple[int, ...], name: str = "a", **sampling: Any) -> Request:
    wanted = {"temperature": 0.0, "max_tokens": 3, "prompt_logprobs": 2, **sampling}
    return Request(name, prompt, SamplingParams(**wanted))


@pytest.mark.parametrize("budget", [24, 512])
@pytest.mark.parametrize("with_draft", [False, True])
def test_of_prompts_in_chunks_and_with_cached_prefixes(tiny: Any, budget: int, with_draft: bool) -> None:
    engine = tiny.engine(
        tiny.model(0),
        close_draft(tiny) if with_draft else None,
        max_num_batched_tokens=budget,
        max_num_seqs=1,
    )
    for prompt in [*prompts(3, 150), (7,), (7, 9)]:
        plain = Request("before", prompt, SamplingParams(temperature=0.0, max_tokens=3))
        run(engine, [plain])
        for _ in range(2):
            outputs = run(engine, [scoring(prompt)])["a"]
            assert outputs[-1].usage.cached_tokens == 0
            check(scored(outputs), prompt[1:], law(tiny.model(0), prompt)[:-1], 2)
        again = run(engine, [plain])["before"]
        assert again[-1].usage.cached_tokens == len(prompt) - 1


def test_of_prompts_beside_decoding_requests(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), close_draft(tiny), max_num_batched_tokens=120, max_num_seqs=8)
    requests = [
        scoring(prompt, str(i), logprobs=1, prompt_logprobs=i % 3 if i % 2 else None, max_tokens=20, seed=i)
        for i, prompt in enumerate(prompts(8, 60))
    ]
    outputs = run(engine, requests)
    for i, request in enumerate(requests):
        check_outputs(tiny.model(0), request, outputs[str(i)])
        prompt = request.prompt_token_ids
        if i % 2:
            check(scored(outputs[str(i)]), prompt[1:], law(tiny.model(0), prompt)[:-1], i % 3)
        else:
            assert scored(outputs[str(i)]) == ()


def test_of_prompts_that_were_preempted_halfway(tiny: Any) -> None:
    roomy = tiny.engine(tiny.model(0))
    engine = tiny.engine(
        tiny.model(0),
        max_model_len=200,
        max_num_batched_tokens=16,
        kv_memory=roomy.info.kv_bytes_per_row * 208,
    )
    prompt = tuple(range(60, 116))
    outputs: list[RequestOutput] = []
    engine.add(Request("urgent", (5, 6), SamplingParams(max_tokens=180, ignore_eos=True), priority=-1))
    for _ in range(140):  # till its rows are nearly used up
        engine.step()
    engine.add(scoring(prompt, "long", prompt_logprobs=1))
    long = engine._sequences["long"]
    half = 0
    while engine.has_work:
        outputs += [output for output in engine.step().outputs if output.request_id == "long"]
        if long.entry is None and not half:
            half = len(long.prompt_logprobs)
    assert long.num_preemptions > 0
    assert 0 < half < len(prompt) - 1
    check(scored(outputs), prompt[1:], law(tiny.model(0), prompt)[:-1], 1)


def test_a_prompt_may_be_scored_and_nothing_more(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), close_draft(tiny))
    prompt = prompts(9, 150)[2]
    (output,) = run(engine, [scoring(prompt, max_tokens=0)])["a"]
    assert (output.text, output.token_ids, output.finish_reason) == ("", (), FinishReason.LENGTH)
    assert output.usage.completion_tokens == 0
    check(output.prompt_logprobs, prompt[1:], law(tiny.model(0), prompt)[:-1], 2)


def test_padded_rows_have_no_part_in_the_law(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), num_ids=60)
    request = scoring(tuple(range(2, 30)), logprobs=20, prompt_logprobs=20)
    outputs = run(engine, [request])["a"]
    for score in [*outputs[0].prompt_logprobs, *outputs[0].logprobs]:
        assert all(token < 60 for token, _ in score.top)
    tokens = [t for output in outputs for t in output.token_ids]
    rows = law(tiny.model(0), [*request.prompt_token_ids, *tokens])[:, :60]
    rows = rows.log_softmax(-1)
    check(outputs[0].prompt_logprobs, request.prompt_token_ids[1:], rows[:27], 20)


@pytest.mark.parametrize("value", [-1, 21])
def test_too_many_are_refused(tiny: Any, value: int) -> None:
    engine = tiny.engine(tiny.model(0))
    for sampling, name in (
        (SamplingParams(logprobs=value), "logprobs"),
        (SamplingParams(prompt_logprobs=value), "prompt_logprobs"),
        (SamplingParams(max_tokens=0), "max_tokens"),
    ):
        with pytest.raises(RequestError) as refusal:
            engine.add(Request("a", (5,), sampling))
        assert refusal.value.param == name

"""A real Prometheus scrapes a real server: every panel has data, every rule works, the counters are right."""

from __future__ import annotations

import json
import math
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRAPE_SECONDS = 1
# What Grafana would put in; the window longer than needed, for a machine that is busy.
VARIABLES = {"$__rate_interval": "15s", "$__range": "5m", "$model": "tiny", "$instance": ".*"}
LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "speculation": {"enabled": False}}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Prometheus:
    url: str
    started: float

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    def values(self, expr: str) -> list[float]:
        """All values that are numbers, of all series, since the start."""
        span = {"start": str(self.started), "end": str(time.time()), "step": str(SCRAPE_SECONDS)}
        series = self.get("query_range", query=expr, **span)["result"]
        found = [float(value) for one in series for _, value in one["values"]]
        return [value for value in found if math.isfinite(value)]

    def wait_for(self, expr: str, seconds: float = 30) -> None:
        """Until ``expr`` has a result."""
        deadline = time.monotonic() + seconds
        while not self.get("query", query=expr)["result"]:
            assert time.monotonic() < deadline, f"never true: {expr}"
            time.sleep(0.2)


@pytest.fixture
def server(serve, tiny_arguments):
    return serve(*tiny_arguments, "--max-num-seqs", "4", "--max-queue", "4", "--drain-timeout", "10")


@pytest.fixture
def prometheus(server, tmp_path) -> Iterator[Prometheus]:
    """Ours but for the intervals and the address of the target."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{SCRAPE_SECONDS}s")
    config["rule_files"] = [str(DEPLOY / "prometheus" / path) for path in config["rule_files"]]
    [job] = config["scrape_configs"]
    job["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--web.listen-address={address}",
    ]
    log = tmp_path / "prometheus.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*command, f"--storage.tsdb.path={tmp_path / 'data'}"], stdout=output, stderr=output
        ) as process,
    ):
        try:
            found = Prometheus(f"http://{address}", time.time())
            deadline = time.monotonic() + 30
            while not is_ready(found.url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            found.wait_for("up == 1")
            yield found
        finally:
            process.terminate()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def bodies() -> Iterator[dict[str, Any]]:
    """Greedy and sampled, with and without speculation, ended by length, by a stop, and as it comes."""
    for index in range(6):
        prompt = f"{'abc' * 20} {index}"
        yield {"prompt": prompt, "max_tokens": 24, "temperature": 0}
        yield {"prompt": prompt, "max_tokens": 17, "seed": index, "ignore_eos": True}
        yield {"prompt": prompt, "max_tokens": 40, "seed": index, "stop": ["a", "e", "i"]}
        yield {"prompt": prompt, "max_tokens": 5, "speculation": {"enabled": False}}


def answer(server, body: dict[str, Any], stream: bool) -> dict[str, Any]:
    """The answer, or the last chunk of a stream, which has the figures."""
    url = f"{server.url}/v1/completions"
    if not stream:
        whole: dict[str, Any] = httpx.post(url, json=body, timeout=60).raise_for_status().json()
        return whole
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", url, json=body | options, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    ended = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    return {**ended[-1], **{key: value for key, value in chunks[-1].items() if value}}


def counters_by(server, name: str, label: str) -> dict[str, float]:
    """One counter's series by the value of a label, those at 0 left out."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith(f"resispec_{name}{{"):
            value = line.split(f'{label}="')[1].partition('"')[0]
            found[value] = found.get(value, 0) + float(line.rpartition(" ")[2])
    return {key: value for key, value in found.items() if value}


def test_counters_are_the_sums_of_the_answers_figures(server):
    answers = [answer(server, body, stream=index % 2 == 1) for index, body in enumerate(bodies())]
    usages = [one["usage"] for one in answers]
    metrics = [one["metrics"] for one in answers]
    speculation = [one["speculative_decoding"] for one in metrics if one["speculative_decoding"]]
    reasons = Counter(one["choices"][0]["finish_reason"] for one in answers)
    server.wait_for_metric("e2e_request_latency_seconds_count", lambda value: value == len(answers))

    assert len(reasons) == 2
    assert counters_by(server, "request_success_total", "finished_reason") == reasons
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    assert 0 < cached < prompts
    expected = {
        "generation_tokens_total": sum(usage["completion_tokens"] for usage in usages),
        "prefix_cache_queries_total": prompts,
        "prefix_cache_hits_total": cached,
        "prompt_tokens_total": prompts - cached,
        "time_to_first_token_seconds_count": len(answers),
        "time_to_first_token_seconds_sum": sum(one["time_to_first_token_ms"] for one in metrics) / 1e3,
        "e2e_request_latency_seconds_sum": sum(one["e2e_ms"] for one in metrics) / 1e3,
        "request_queue_time_seconds_sum": sum(one["queue_time_ms"] for one in metrics) / 1e3,
        "request_prefill_time_seconds_sum": sum(one["prefill_time_ms"] for one in metrics) / 1e3,
        "request_decode_time_seconds_sum": sum(one["generation_time_ms"] for one in metrics) / 1e3,
        "num_preemptions_total": sum(one["num_preemptions"] for one in metrics),
        "spec_decode_num_drafts_total": sum(one["num_spec_steps"] for one in speculation),
        "spec_decode_num_draft_tokens_total": sum(one["num_draft_tokens"] for one in speculation),
        "spec_decode_num_accepted_tokens_total": sum(one["num_accepted_draft_tokens"] for one in speculation),
    }
    for name, value in expected.items():
        assert server.metric(name) == pytest.approx(value, abs=1e-5), name
    assert server.metric("spec_decode_num_accepted_tokens_total") > 0
    lengths = Counter[int]()
    for one in speculation:
        lengths.update(dict(enumerate(one["acceptance_histogram"], start=1)))
    assert server.metric("acceptance_length_sum") == sum(length * count for length, count in lengths.items())


def test_preempted_sequences_are_counted_once(serve, tiny_arguments):
    """They start again from the queue, yet their tokens, first token and end are those of one sequence."""
    server = serve(*tiny_arguments, "--kv-memory", "1MiB")
    body = {"prompt": "abc", "max_tokens": 300, "ignore_eos": True, "n": 4}
    whole = answer(server, body, stream=False)
    server.wait_for_metric("e2e_request_latency_seconds_count", lambda value: value == 4)
    assert whole["usage"]["completion_tokens"] == 1200
    assert whole["metrics"]["num_preemptions"] > 0
    assert server.metric("num_preemptions_total") == whole["metrics"]["num_preemptions"]
    assert server.metric("generation_tokens_total") == 1200
    assert server.metric("time_to_first_token_seconds_count") == 4
    assert server.metric("inter_token_latency_seconds_count") == 1200 - 4
    assert counters_by(server, "request_success_total", "finished_reason") == {"length": 4}


def test_every_panel_and_rule_works(server, prometheus):
    """Traffic of all kinds, for longer than the window of rates, and then each query."""
    for _ in range(4):
        for index, body in enumerate(bodies()):
            answer(server, body, stream=index % 2 == 1)
            assert httpx.post(f"{server.url}/v1/completions", json={"prompt": 1.5}).status_code == 400
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/completions", json=LONG | {"n": 2}, timeout=httpx.Timeout(10, read=0.2)
            )
        time.sleep(SCRAPE_SECONDS)
    server.wait_for_metric("num_requests_running", lambda value: value == 0)
    assert counters_by(server, "request_success_total", "finished_reason")["abort"] == 8
    time.sleep(2 * SCRAPE_SECONDS)

    empty = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"]
                for name, value in VARIABLES.items():
                    expr = expr.replace(name, value)
                assert "$" not in expr, f"{panel['title']}: {expr}"
                if not prometheus.values(expr):
                    empty.append(f"{path.stem}, {panel['title']}: {expr}")
    assert not empty, "\n".join(empty)

    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["type"] for rule in rules} == {"alerting", "recording"}
    for rule in rules:
        assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"
        if rule["type"] == "recording":
            assert prometheus.values(rule["name"]), rule["name"]


def test_scrapes_during_a_drain_and_after_it(server, prometheus):
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=LONG | {"stream": True, "n": 4}, timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/ready").status_code == 200:
            time.sleep(0.02)
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert counters_by(server, "admission_rejections_total", "reason") == {"draining": 1}
        assert list(lines)
    assert server.process.wait(30) == 0
    prometheus.wait_for('up{job="resispec"} == 0')
    prometheus.wait_for('ALERTS{alertname="ResispecDown",alertstate="pending"}')

"""Processes that serve, contenders that ask them, and whole runs over HTTP."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from resispec.engine.bench.contenders import BenchError
from resispec.engine.bench.report import to_markdown
from resispec.engine.bench.serving import run as runs
from resispec.engine.bench.serving.contender import Endpoint, ServedContender
from resispec.engine.bench.serving.launch import PEERS, Host, Launch, Peer, own_server, parse_peer
from resispec.engine.bench.serving.process import ServerProcess, free_port
from resispec.engine.bench.serving.settings import UrlSettings, api_key
from resispec.engine.bench.settings import BenchSettings
from resispec.engine.bench.workload import Workload
from resispec.engine.config import ConfigError
from resispec.server.cli import app

SCRIPT = str(Path(__file__).with_name("fake_server.py"))
IDS = tuple((n, n + 1) for n in range(4))


def fake(how: str = "", port: int | None = None) -> ServerProcess:
    port = port or free_port()
    return ServerProcess((sys.executable, SCRIPT, str(port), how), {}, port)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    process = fake()
    assert process.wait_ready() == "fake"
    yield process
    process.stop()


def work(batch: int = 2, **changes: Any) -> Workload:
    return Workload("made", 0.0, batch, 6, **{"requests": IDS, **changes})


def test_a_run_counts_and_times(server: ServerProcess) -> None:
    states: list[bool] = []
    contender = ServedContender(
        "fake", Endpoint(server.url, "fake"), busy=states.append, memory=lambda: 12 << 20
    )
    measured = contender.run(work())
    assert measured.tokens == 24
    assert measured.decoded_tokens == 20
    assert len(measured.first_token_seconds) == 4
    assert 0 < measured.first_token_median < measured.seconds
    assert 10 <= measured.deliveries == len(measured.gap_seconds) <= 20  # reads may join events
    assert measured.memory == 12 << 20
    assert measured.step_seconds is None
    assert states == [True, False]


def test_texts_go_as_chat_and_arrivals_may_come_at_a_rate(server: ServerProcess) -> None:
    endpoint = Endpoint(server.url, "fake", chat=True, headers={"Authorization": "Bearer secret"})
    measured = ServedContender("fake", endpoint).run(
        Workload("made", 0.0, 0, 6, texts=("a", "b", "c"), rate=50.0)
    )
    assert measured.tokens == 18
    with pytest.raises(BenchError, match="HTTP 401"):
        ServedContender("fake", Endpoint(server.url, "fake", headers={"Authorization": "Bearer wrong"})).run(
            work()
        )


def test_a_long_prompt_comes_into_the_middle_and_is_not_counted(server: ServerProcess) -> None:
    contender = ServedContender("fake", Endpoint(server.url, "fake"))
    disturbed = work(intruder=tuple(range(60)), requests=IDS[:2] * 3)
    assert contender.run(disturbed).tokens == 36
    with pytest.raises(BenchError, match="over before"):
        contender.run(work(batch=2, intruder=(1,), requests=IDS[:1]))


def test_short_answers_are_no_figure_where_length_was_asked_for() -> None:
    process = fake("short")
    try:
        process.wait_ready()
        with pytest.raises(BenchError, match="20 tokens came instead of 24"):
            ServedContender("fake", Endpoint(process.url, "fake")).run(work())
        contender = ServedContender("fake", Endpoint(process.url, "fake", full_length=False))
        assert contender.run(work()).tokens == 20
    finally:
        process.stop()


def test_a_server_sleeps_wakes_and_ends() -> None:
    process = fake()
    try:
        process.wait_ready()
        assert (process.memory() or 0) > 1 << 20
        child = psutil.Process(process._process.pid)
        process.run(False)
        deadline = time.monotonic() + 5
        while child.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_STOPPED
        process.run(True)
        assert ServedContender("fake", Endpoint(process.url, "fake")).run(work()).tokens == 24
        process.run(False)
    finally:
        process.stop()  # a sleeping one too
    assert not child.is_running()
    process.stop()


def test_one_that_does_not_start_says_its_last_words() -> None:
    process = fake("dies")
    try:
        with pytest.raises(BenchError, match="exit code 3: no such model"):
            process.wait_ready()
    finally:
        process.stop()
    with pytest.raises(BenchError, match="/no/python cannot be started"):
        ServerProcess(("/no/python",), {}, 1)


def host() -> Host:
    return Host("default", Path("/models/it"), "bfloat16", 2048, 9, 2, 8123)


def test_everybody_gets_the_same_limits() -> None:
    for launch in (
        own_server(host(), "default"),
        PEERS["vllm"](Peer("vllm", "python"), host()),
        PEERS["vllm-ngram"](Peer("vllm-ngram", "python"), host()),
        PEERS["llama.cpp"](Peer("llama.cpp", "python", "it.gguf"), host()),
        PEERS["llama.cpp-ngram"](Peer("llama.cpp-ngram", "python", "it.gguf"), host()),
    ):
        assert launch.port == 8123
        assert {"8123", "2048", "9"} <= set(launch.command)
        assert launch.extra["ignore_eos"] is True
    bound = PEERS["vllm"](Peer("vllm", "python"), host()).environment
    assert bound["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"


def test_the_plain_server_has_no_candidates() -> None:
    assert own_server(host(), None).command[-2:] == ("--speculation", "off")
    assert "--speculation" not in own_server(host(), "default").command


def test_peers_are_parsed() -> None:
    assert parse_peer("vllm=/venv/bin/python") == Peer("vllm", "/venv/bin/python")
    assert parse_peer("llama.cpp=python,a.gguf").model == "a.gguf"
    for text in ("vllm", "vllm=", "tgi=python"):
        with pytest.raises(ConfigError, match=r"vllm-ngram, llama\.cpp"):
            parse_peer(text)
    with pytest.raises(ConfigError, match="GGUF"):
        parse_peer("llama.cpp=python").launch(host())


def test_servers_side_by_side(folder, monkeypatch) -> None:
    """The fake in place of all servers; one peer does not start, and one of ours cannot be compiled."""

    def launch(how: str, *, is_ours: bool = False) -> Launch:
        port = free_port()
        return Launch((sys.executable, SCRIPT, str(port), how), port, is_ours=is_ours)

    def own(_host: Host, draft: str | None, more: tuple[str, ...]) -> Launch:
        how = ("cannot compile" if draft else "compiles") if more == ("--compile",) else ""
        return launch(how, is_ours=True)

    monkeypatch.setattr(runs, "own_server", own)
    monkeypatch.setitem(PEERS, "vllm", lambda peer, host: launch(""))
    monkeypatch.setitem(PEERS, "vllm-ngram", lambda peer, host: launch("dies"))
    settings = BenchSettings(
        target=str(folder),
        draft="some",
        batch=(2,),
        temperature=(0.0,),
        prompts=("chat",),
        tokens=8,
        repeats=2,
        intruder=60,
        dtype="float32",
        peers=(Peer("vllm", "python"), Peer("vllm-ngram", "python")),
        compile=True,
        offline=True,
    )
    report = runs.bench_servers(settings, Console(file=io.StringIO()))
    ours = ("plain", "speculative", "plain, compiled", "speculative, compiled")
    assert [(row.case.contender, row.case.prompts) for row in report.rows[:12]] == [
        (name, prompts) for prompts in ("chat", "chat+60") for name in (*ours, "vllm", "vllm-ngram")
    ]
    failures = {
        "vllm-ngram": "exit code 3: no such model",
        "speculative, compiled": "no compiler was found",
    }
    for row in report.rows[:12]:
        assert failures.get(row.case.contender, "") in (row.error or "")
        if row.case.contender in failures:
            assert row.error is not None
        else:
            # The peer tells nothing of its phases; ours spend five times as long in "verify" as in "send".
            told = row.case.contender != "vllm"
            assert set(row.phases) == ({"verify", "send", "other"} if told else set())
            assert not told or row.phases["verify"] == pytest.approx(5 * row.phases["send"])
            assert row.repeats == 2
            assert row.gap_max_ms.median >= row.gap_p99_ms.median >= row.gap_ms.median > 0
            assert row.memory_mib.median > 1
    ratios = {ratio.name for ratio in report.ratios}
    assert {"speculative over vllm at batch 2", "plain over vllm at batch 2"} <= ratios
    assert "x vllm" in to_markdown(report)
    assert set(report.ready_seconds) == {*ours, "vllm"}
    assert report.ready_seconds["vllm"] > 0.05
    assert f"From start to ready: plain {report.ready_seconds['plain']:.1f} s" in to_markdown(report)
    assert not report.complete
    assert not [p for p in psutil.Process().children(recursive=True) if SCRIPT in p.cmdline()][1:]


def test_our_servers_alone(folder, tmp_path, monkeypatch) -> None:
    def own(_host: Host, _draft: str | None, _more: tuple[str, ...]) -> Launch:
        port = free_port()
        return Launch((sys.executable, SCRIPT, str(port), ""), port, is_ours=True)

    monkeypatch.setattr(runs, "own_server", own)
    out = tmp_path / "figures.md"
    arguments = ["bench", "--peer", "none", "--target", str(folder), "--draft", "none", "--batch", "2"]
    arguments += ["--temperature", "0", "--prompts", "chat", "--tokens", "4", "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--dtype", "float32", "--markdown", str(out)])
    assert result.exit_code == 0, result.output
    table = out.read_text()
    assert "| plain | chat | 0 | 2 |" in table
    assert "From start to ready: plain" in table  # a server


def test_the_command_measures_a_url(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.delenv("RESISPEC_API_KEY", raising=False)
    out = tmp_path / "figures.md"
    arguments = ["bench", "--url", f"{server.url}/v1/", "--batch", "2", "--rate", "40", "--tokens", "4"]
    result = CliRunner().invoke(app, [*arguments, "--repeats", "1", "--markdown", str(out)])
    assert result.exit_code == 0, result.output
    table = out.read_text()
    assert "| fake | chat | 0 | 2 |" in table
    assert "| fake | chat | 0 | 40/s |" in table
    assert "longest gap" in table
    assert f"fake at {server.url}" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "localhost:8000"], "url is 'localhost:8000'"),
        (["--url", "http://a", "--draft", "none"], "--draft does not go with --url"),
        (["--url", "http://a", "--rate", "0"], "rate is 0"),
        (["--url", "http://a", "--endpoint", "poems"], "endpoint is 'poems'"),
        (["--rate", "3"], "--rate goes with --url"),
        (["--ignore-eos"], "--ignore-eos goes with --url"),
        (
            ["--verification", "--draft", "none", "--offline", "--intruder", "4"],
            "--intruder does not go with",
        ),
        (["--peer", "vllm"], "peer is 'vllm'"),
        (["--peer", "vllm=python", "--sweep"], "--sweep does not go with --peer"),
        (["--verifiers", "target", "--draft", "none"], "verifiers, modes and forms need a draft"),
        (["--intruder", "100", "--batch", "1"], "batch above 1"),
    ],
)
def test_bad_options_exit_with_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_a_server_that_is_not_there_exits_with_1() -> None:
    result = CliRunner().invoke(app, ["bench", "--url", f"http://127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "lists no model" in result.output
    assert "--model" in result.output


def test_keys_come_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "b")
    monkeypatch.setenv("RESISPEC_API_KEY", "a")
    assert api_key() == "a"
    monkeypatch.delenv("RESISPEC_API_KEY")
    assert api_key() == "b"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert api_key() is None


def test_workloads_of_a_url() -> None:
    settings = UrlSettings("http://a", batch=(1, 12), rate=(2.0,), requests=None, prompts=("chat",))
    closed, wide, open_ = runs.url_workloads(settings)
    assert (closed.batch, closed.num_requests, wide.num_requests) == (1, 8, 12)
    assert (open_.rate, open_.num_requests) == (2.0, 8)
    few = UrlSettings("http://a", batch=(4,), requests=3)
    assert [work.num_requests for work in runs.url_workloads(few)] == [3]

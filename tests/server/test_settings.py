"""Settings: where they come from, which wins, and what a bad one says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from pydantic import SecretStr

from resispec.engine.config import ConfigError
from resispec.engine.openmp import leave_first_core, openmp_for_engine
from resispec.server.listen import AddressError, bind
from resispec.server.loading import load_settings
from resispec.server.serve import banner
from resispec.server.settings import ServerSettings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("RESISPEC_")]:
        monkeypatch.delenv(name)


def test_precedence(tmp_path, monkeypatch):
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nmax_queue = 2\nmax_num_seqs = 3\napi_key = ["a", "b"]\n')
    monkeypatch.setenv("RESISPEC_MAX_QUEUE", "20")
    monkeypatch.setenv("RESISPEC_MAX_NUM_SEQS", "30")
    settings = load_settings({"config": str(file), "max_num_seqs": "300"})
    assert (settings.port, settings.max_queue, settings.max_num_seqs) == (1, 20, 300)
    assert [key.get_secret_value() for key in settings.api_key] == ["a", "b"]
    assert settings.host == "127.0.0.1"
    monkeypatch.setenv("RESISPEC_CONFIG", str(file))
    monkeypatch.setenv("RESISPEC_API_KEY", "x,y")
    settings = load_settings({})
    assert settings.port == 1
    assert [key.get_secret_value() for key in settings.api_key] == ["x", "y"]
    assert "x" not in repr(settings.api_key)


def test_sizes_and_auto():
    settings = load_settings({"kv_memory": "2GiB", "max_body_bytes": "1MB", "max_model_len": "auto"})
    assert settings.engine_config().kv_memory == 2 << 30
    assert settings.max_body_bytes == 10**6
    assert settings.max_model_len is None


@pytest.mark.parametrize(
    ("flags", "draft"),
    [
        ({}, "default"),
        ({"draft": "none"}, None),
        ({"draft": "a/b"}, "a/b"),
        ({"target": "x"}, "default"),
        ({"target": "x", "draft": "y"}, "y"),
    ],
)
def test_drafts(flags, draft):
    assert load_settings(flags).engine_config().draft == draft


def test_every_engine_setting_is_passed_on():
    flags = {
        "target": "t",
        "draft": "d",
        "device": "cpu",
        "dtype": "float32",
        "quantization": "int8",
        "draft_quantization": "none",
        "max_num_seqs": 3,
        "max_model_len": 100,
        "kv_memory": 12345,
        "max_num_batched_tokens": 64,
        "max_prefill_ms": 20.0,
        "speculation": "fixed",
        "baseline_probe_share": 0.2,
        "verifier": "target",
        "allow_inexact": True,
        "max_tree_nodes": 5,
        "max_step_nodes": 7,
        "max_tree_depth": 2,
        "prefix_caching": False,
        "attention": "segments",
        "cuda_graphs": False,
        "num_threads": 1,
        "offline": True,
    }
    config = load_settings(flags | {"proposer": ["ngram,draft", "recycle"]}).engine_config()
    assert {name: getattr(config, name) for name in flags} == flags
    assert config.proposers == ("ngram", "draft", "recycle")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"port": "70000"}, ("port", "70000", "--port", "65535")),
        ({"dtype": "int3"}, ("dtype", "int3", "bfloat16")),
        ({"proposer": "oracle"}, ("proposer", "oracle", "--proposer", "recycle")),
        ({"device": "tpu"}, ("device", "tpu", "cuda:N")),
        ({"kv_memory": "lots"}, ("kv_memory", "lots", "2GiB")),
        ({"kv_memory": "0"}, ("kv_memory", "greater than 0")),
        ({"drain_timeout": "nan"}, ("drain_timeout", "finite")),
        ({"max_num_seqs": "0"}, ("max_num_seqs", "greater than or equal to 1")),
        ({"target": "x", "draft": "default"}, ("draft", "default target")),
        ({"config": "/nowhere/x.toml"}, ("config", "/nowhere/x.toml", "No such file")),
    ],
)
def test_a_bad_value_says_setting_value_and_way_out(flags, parts):
    with pytest.raises(ConfigError) as caught:
        load_settings(flags)
    for part in parts:
        assert part in caught.value.message
    assert caught.value.setting == parts[0]


def test_bad_values_name_their_source(tmp_path, monkeypatch):
    monkeypatch.setenv("RESISPEC_PORT", "http")
    with pytest.raises(ConfigError, match="'http' \\(from RESISPEC_PORT\\)"):
        load_settings({})
    monkeypatch.delenv("RESISPEC_PORT")
    file = tmp_path / "settings.toml"
    file.write_text("port = -1")
    with pytest.raises(ConfigError, match=r"-1 \(from .*settings\.toml\)"):
        load_settings({"config": str(file)})
    file.write_text("prot = 1")
    with pytest.raises(ConfigError, match=r"prot: unknown setting in .*did you mean 'port'"):
        load_settings({"config": str(file)})
    file.write_text("port 1")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_settings({"config": str(file)})


def test_an_empty_key_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match="api_key: \\(from --api-key\\)"):
        load_settings({"api_key": ["hidden", ""]})


def test_ports_in_use_and_strange_hosts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"127.0.0.1 port {port}: .*--port"):
            bind("127.0.0.1", port)
    with pytest.raises(AddressError, match=r"no\.such\.host\.invalid"):
        bind("no.such.host.invalid", 0)


def test_the_banner_has_all_a_person_needs(engine):
    text = banner(engine.info, ServerSettings(target="it's", host="0.0.0.0", api_key=[SecretStr("k")]), 8123)
    assert "http://127.0.0.1:8123" in text
    assert "tiny/target" in text
    assert "tiny/draft" in text
    assert "2 MiB for the KV of 1024 tokens" in text
    assert "Bearer KEY" in text
    assert "it'\"'\"'s" in text


@pytest.mark.parametrize(("cores", "left"), [({2, 3, 5}, {3, 5}), ({4}, None)])
def test_the_event_loop_leaves_the_engines_core_where_there_is_another(monkeypatch, cores, left):
    tied = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: tied.append(to), raising=False)
    leave_first_core()
    assert tied == ([] if left is None else [left])


def test_only_the_engine_is_bound_to_cores(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_"))]:
        monkeypatch.delenv(name)
    with openmp_for_engine() as tied:
        assert tied
        assert (os.environ["OMP_PROC_BIND"], os.environ["OMP_PLACES"]) == ("true", "cores")
        assert int(os.environ["GOMP_SPINCOUNT"]) < 10000
    assert "OMP_PROC_BIND" not in os.environ
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("GOMP_SPINCOUNT", "123")
    with openmp_for_engine():
        assert os.environ["GOMP_SPINCOUNT"] == "123"  # the user's choice
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with openmp_for_engine() as tied:
        assert not tied
        assert not {"OMP_PROC_BIND", "GOMP_SPINCOUNT"} & {*os.environ}


def test_a_bench_of_servers_leaves_them_all_cores():
    """Whatever the user's variables would tie the process to that starts them."""
    code = (
        "import os; cores = os.sched_getaffinity(0)\n"
        "from resispec.engine.openmp import openmp_unbound\n"
        "with openmp_unbound():\n    import torch\n"
        "torch.ones(10).sum(); assert os.sched_getaffinity(0) == cores\n"
        "assert os.environ['OMP_PROC_BIND'] == 'close'\n"
    )
    bound = os.environ | {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    subprocess.run([sys.executable, "-c", code], env=bound, timeout=60, check=True)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "resispec.server.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )


def test_help_names_every_setting():
    result = run("serve", "--help")
    assert result.returncode == 0
    for name in ServerSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in result.stdout


def test_the_command_line_imports_nothing_heavy():
    heavy = {"torch", "transformers", "fastapi"}
    code = f"import sys, resispec.server.cli; print(*sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == ""


def test_exit_codes():
    result = run("serve", "--port", "x")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("resispec: port: 'x'")
    assert run("serve", "--no-such-option").returncode == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("serve", "--port", str(taken.getsockname()[1]))
    assert result.returncode == 4
    assert "cannot listen" in result.stderr


def test_version():
    result = run("version")
    assert result.stdout.strip()[0].isdigit()

"""The compose file: its schema, its settings, and what it mounts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from resispec.server.settings import ServerSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "docker-compose.yml"
EXAMPLE = DEPLOY / ".env.example"
SERVERS = {"resispec-cpu": "cpu", "resispec-gpu": "gpu"}  # profile by service
OF_COMPOSE = {"COMPOSE_PROFILES", "COMPOSE_PROJECT_NAME"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def example() -> dict[str, str]:
    """All variables of .env.example, those in comments as well."""
    lines = re.findall(r"^#?([A-Z_]+)=(.*)$", EXAMPLE.read_text(), re.MULTILINE)
    assert len(lines) == len(dict(lines))
    return dict(lines)


@pytest.mark.skipif(
    shutil.which("docker-compose") is None,
    reason="docker-compose is not installed (Debian: apt-get install docker-compose)",
)
@pytest.mark.parametrize("environment", ["none", "example", "everything"])
def test_compose_takes_it(environment: str, tmp_path: Path) -> None:
    """Unknown keys are refused. With all variables of the example set, and with none."""
    text = {"none": "", "example": EXAMPLE.read_text()}.get(environment)
    if text is None:
        text = re.sub(r"^#(?=[A-Z_]+=)", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    (tmp_path / "env").write_text(text)
    command = ["docker-compose", "--env-file", str(tmp_path / "env"), "-f", str(FILE)]
    profiles = [part for profile in SERVERS.values() for part in ("--profile", profile)]
    result = subprocess.run([*command, *profiles, "config"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(result.stdout)["services"].keys() == {*SERVERS, "prometheus", "grafana"}


def test_the_example_documents_every_variable(services: dict[str, Any]) -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", FILE.read_text()))
    passed_on = set(services["resispec-cpu"]["environment"])
    assert example().keys() == used | passed_on | OF_COMPOSE
    settings = {f"RESISPEC_{name.upper()}" for name in ServerSettings.model_fields}
    assert {name for name in passed_on if name.startswith("RESISPEC_")} <= settings


def test_the_example_shows_the_defaults() -> None:
    for variable, shown in example().items():
        name = variable.removeprefix("RESISPEC_").lower()
        if not variable.startswith("RESISPEC_"):
            continue
        default = ServerSettings.model_fields[name].default
        default = ",".join(default) if isinstance(default, list) else default
        expected = "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
        assert shown == (expected.lower() if isinstance(default, bool) else expected), variable


def test_defaults_of_ports_are_the_examples(services: dict[str, Any]) -> None:
    for name, default in re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", FILE.read_text()):
        assert example()[name] == default, name


@pytest.mark.parametrize("name", [*SERVERS, "prometheus", "grafana"])
def test_services_are_confined_and_pinned(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    if name in SERVERS:  # user and health check are the image's
        assert service["profiles"] == [SERVERS[name]]
        return
    assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"])
    assert not service["user"].startswith(("0", "root"))
    assert service["healthcheck"]["test"][0] == "CMD"


def test_mounts_exist(services: dict[str, Any]) -> None:
    mounts = [mount for service in services.values() for mount in service["volumes"]]
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    for mount in mounts:
        source = mount.partition(":")[0]
        if source.startswith("./"):
            assert (DEPLOY / source).exists(), source
            assert mount.endswith(":ro"), mount
        elif not source.startswith("${"):
            assert source in volumes, source


def test_grafana_finds_what_is_mounted(services: dict[str, Any]) -> None:
    grafana = services["grafana"]
    targets = {mount.split(":")[1]: mount.split(":")[0] for mount in grafana["volumes"]}
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DEPLOY / targets[str(home.parent)] / home.name).is_file()
    [provider] = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/resispec.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] in targets


def test_a_stopped_server_may_drain(services: dict[str, Any]) -> None:
    drain = ServerSettings.model_fields["drain_timeout"].default
    assert int(services["resispec-cpu"]["stop_grace_period"].removesuffix("s")) > drain + 10


def test_prometheus_scrapes_the_servers_name_and_port(services: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [[target]] = [entry["targets"] for entry in config["scrape_configs"][0]["static_configs"]]
    host, _, port = target.partition(":")
    for name in SERVERS:
        assert services[name]["networks"]["default"]["aliases"] == [host]
        assert services[name]["ports"][0].endswith(f":{port}")

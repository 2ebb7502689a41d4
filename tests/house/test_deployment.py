"""Container files name what exists; where the real tools are installed, they have the last word."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from gradwire_protocol import routes
from gradwire_server.cli import _parser
from house.tree import ROOT


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def scrape_job() -> dict[str, Any]:
    (job,) = yaml.safe_load((ROOT / "prometheus.yml").read_text())["scrape_configs"]
    return job


def server_commands() -> list[list[str]]:
    """Every call of gradwire-server in the container files, as arguments."""
    text = (ROOT / "Dockerfile").read_text()
    default = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert default is not None
    lines = "\n".join((ROOT / name).read_text() for name in ("docker-compose.yml", "prometheus.yml"))
    spoken = [
        match.split(">")[0].split()
        for match in re.findall(r"gradwire-server ((?:serve|login-link|token).*)", lines)
    ]
    assert spoken
    return [yaml.safe_load(default[1]), *spoken]


@pytest.mark.parametrize("arguments", server_commands(), ids=" ".join)
def test_server_understands_every_command_of_the_container_files(arguments: list[str]) -> None:
    _parser().parse_args(arguments)


def test_compose_services_depend_on_services_and_use_declared_volumes(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", ())) <= set(compose["services"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            is_file = source.startswith("./")
            assert (ROOT / source).is_file() if is_file else source in compose["volumes"], (name, volume)


def test_compose_publishes_ports_on_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_pins_the_images_that_it_pulls(compose: dict[str, Any]) -> None:
    pulled = [service["image"] for service in compose["services"].values() if "build" not in service]
    assert pulled
    assert all(re.search(r":v\d+\.\d+\.\d+$", image) for image in pulled)


def test_prometheus_scrapes_the_server_of_the_compose_file(
    compose: dict[str, Any], scrape_job: dict[str, Any]
) -> None:
    ((target,),) = (config["targets"] for config in scrape_job["static_configs"])
    host, port = target.split(":")
    assert compose["services"][host]["ports"][0].endswith(f":{port}")
    assert scrape_job["metrics_path"] == routes.METRICS
    token = Path(scrape_job["authorization"]["credentials_file"])
    assert str(token) in "".join(compose["services"]["read-token"]["command"])
    assert f"secrets:{token.parent}:ro" in compose["services"]["prometheus"]["volumes"]


def test_prometheus_reads_the_rules_that_the_compose_file_mounts(compose: dict[str, Any]) -> None:
    (rules,) = yaml.safe_load((ROOT / "prometheus.yml").read_text())["rule_files"]
    mounts = [volume.split(":") for volume in compose["services"]["prometheus"]["volumes"]]
    (source,) = [source for source, target, *_ in mounts if target == rules]
    assert yaml.safe_load((ROOT / source).read_text())["groups"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_scrape_configuration() -> None:
    command = ["promtool", "check", "config", "--syntax-only", str(ROOT / "prometheus.yml")]
    rules = ["promtool", "check", "rules", str(ROOT / "server" / "gradwire_server" / "metrics" / "rules.yml")]
    for call in (command, rules):
        outcome = subprocess.run(call, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr

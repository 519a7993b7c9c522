"""deploy/compose.yaml and what it mounts: all of it fits together, as far as can be told without Docker."""

import json
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml
from compose_file import FILE, OURS, ROOT, compose, is_file_mount, mounts, on_this_machine, services

FOLDER = ROOT / "deploy" / "compose"
CONTROLPLANE = Path(sys.executable).with_name("controlplane")


def test_it_is_what_the_compose_specification_allows() -> None:
    schema = json.loads(
        files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    )
    jsonschema.validate(compose(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"x": {"imagee": "y"}}}, schema)


def test_every_path_that_is_mounted_exists_and_is_read_only() -> None:
    volumes = set()
    for name, service in services().items():
        for source, inside, access in mounts(service):
            assert inside.startswith("/")
            if is_file_mount(source):
                assert on_this_machine(source).exists(), f"{name}: {source}"
                assert access == "ro", f"{name}: {source}"
            else:
                volumes.add(source)
    assert volumes == set(compose()["volumes"])


def test_our_containers_need_no_privilege_and_no_writable_root() -> None:
    for name in OURS:
        service = services()[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert (FILE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_nothing_is_published_beyond_this_machine_and_no_port_twice() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    published = [port.split(":")[1] for port in ports]
    assert len(set(published)) == len(published)


def test_images_of_others_have_a_version() -> None:
    images = [service["image"] for name, service in services().items() if name not in OURS]
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images)


def test_every_service_that_a_configuration_names_exists_and_is_waited_for() -> None:
    texts = [path.read_text() for path in FOLDER.rglob("*.yaml")] + [
        str(service) for service in services().values()
    ]
    named = {host for text in texts for host in re.findall(r"\b([a-z]+):\d{4}\b", text)}
    assert named == {"engines", "gateway", "daemon", "prometheus", "alertmanager"}
    assert named <= set(services())
    for service in services().values():
        assert set(service.get("depends_on", {})) <= set(services())


def test_check_takes_the_configuration(tmp_path: Path) -> None:
    """With a token where the container has one."""
    token = tmp_path / "token"
    token.write_text("a-token")
    config = tmp_path / "controlplane.yaml"
    text = (FOLDER / "controlplane.yaml").read_text()
    config.write_text(text.replace("/run/controlplane/token", str(token)))
    done = subprocess.run(
        [CONTROLPLANE, "check", config], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mode: observe (nothing is acted on)" in done.stdout
    assert "warning" not in done.stdout


def test_prometheus_scrapes_under_the_job_names_that_the_rules_go_by() -> None:
    ours = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    rendered = yaml.safe_load((ROOT / "alerts" / "scrape.yaml").read_text())
    assert [job["job_name"] for job in ours["scrape_configs"]] == [
        job["job_name"] for job in rendered["scrape_configs"]
    ]
    assert ours["rule_files"] == rendered["rule_files"]
    by_name = {job["job_name"]: job for job in ours["scrape_configs"]}
    for name, labels in (("llm-engine", {"pool", "node"}), ("llm-gpu", {"node"})):
        assert all(set(one["labels"]) == labels for one in by_name[name]["static_configs"])
    assert by_name["llm-engine"]["metric_relabel_configs"] == next(
        job["metric_relabel_configs"] for job in rendered["scrape_configs"] if job["job_name"] == "llm-engine"
    )


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_takes_what_prometheus_gets(tmp_path: Path) -> None:
    """Laid out as in the container."""
    for source, inside, _ in mounts(services()["prometheus"]):
        if is_file_mount(source):
            shutil.copy(on_this_machine(source), tmp_path / Path(inside).name)
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("amtool") is None, reason="no amtool here")
def test_amtool_takes_what_alertmanager_gets() -> None:
    done = subprocess.run(
        ["amtool", "check-config", FOLDER / "alertmanager.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_every_dashboard_and_a_data_source_for_them() -> None:
    inside = {inside: source for source, inside, _ in mounts(services()["grafana"])}
    provisioning = on_this_machine(inside["/etc/grafana/provisioning"])
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "controlplane.yaml").read_text())["providers"]
    boards = on_this_machine(inside[provider["options"]["path"]])
    assert boards == ROOT / "dashboards"
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (boards / Path(home).relative_to(provider["options"]["path"])).is_file()
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["isDefault"] is True
    kinds = {
        variable["query"]
        for board in boards.glob("*.json")
        for variable in json.loads(board.read_text())["templating"]["list"]
        if variable["type"] == "datasource"
    }
    assert kinds == {source["type"]}


# -- the image -------------------------------------------------------------------------------------


CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()


def pins(lock: Path) -> dict[str, set[str]]:
    """Versions by package, of a lock file."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def test_the_image_copies_what_exists_and_its_context_lets_it_in() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert copied
    for path in copied:
        assert (ROOT / path).exists(), path
        assert any(Path(path).match(pattern) for pattern in allowed), path


def test_the_image_runs_as_nobody_in_particular() -> None:
    final = CONTAINERFILE.rpartition("\nFROM ")[2]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert "0" not in user
    assert 'ENTRYPOINT ["controlplane"]' in final


def test_the_image_installs_locked_packages_with_hashes_only() -> None:
    for command in re.findall(r"pip[^\n&]* install [^\n&]*", CONTAINERFILE):
        assert "--require-hashes" in command or "--no-index --no-deps" in command, command


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_its_locks_have_a_hash_for_each_package_and_the_versions_that_are_tested(name: str) -> None:
    lock = ROOT / "deploy" / name
    entries = re.split(r"\n(?=[A-Za-z0-9])", lock.read_text().strip())
    assert all("--hash=sha256:" in entry for entry in entries)
    tested = pins(ROOT / "requirements.lock")
    for package, versions in pins(lock).items():
        assert tested.get(package, versions) >= versions, f"{package}: run `make lock`"


def test_its_lock_has_what_the_package_asks_for_and_no_tools_of_developers() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = pins(ROOT / "deploy" / "requirements.lock")
    asked = {re.match(r"[A-Za-z0-9_-]+", one).group() for one in project["project"]["dependencies"]}
    assert asked <= set(locked), "run `make lock`"
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & set(locked)

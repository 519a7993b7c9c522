"""The way to an installation that docs/kubernetes.md describes, as far as it goes without a cluster."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from shipped import FOLDER, documents, of_kind, rights

from controlplane.commands.render import render
from controlplane.config import check_mapping, load, node_agent_settings
from controlplane.render.manifests import control
from controlplane.render.manifests.settings import ManifestSettings

PAGE = (FOLDER.parents[1] / "docs/kubernetes.md").read_text()
BLOCKS: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())
EITHER = {"keda-external", "keda-metrics-api", "scale"}


def block(first_words: str) -> str:
    (found,) = [one for one in BLOCKS if one.startswith(first_words)]
    return found


def rendered(settings: str, folder: Path) -> Path:
    """Where the manifests of these settings are."""
    path, out = folder / "mine.yaml", folder / "rendered"
    path.write_text(settings)
    told = CliRunner().invoke(render, ["manifests", "--settings", str(path), "--out", str(out)])
    assert told.exit_code == 0, told.output
    return out


def configuration_in(out: Path) -> str:
    texts = yaml.safe_load_all((out / "base/configuration.yaml").read_text())
    (text,) = [one["data"]["controlplane.yaml"] for one in texts if one["kind"] == "ConfigMap"]
    return str(text)


def added(component: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The volume that a component gives to the daemon, and its mount."""
    (head,) = documents(f"components/{component}/kustomization.yaml")
    (patch,) = [
        one for one in head["patches"] if one["target"] == {"kind": "StatefulSet", "name": "controlplane"}
    ]
    volume, mount = (one["value"] for one in yaml.safe_load(patch["patch"]))
    return volume, mount


def keys_of(component: str) -> dict[str, Any]:
    """What the table of components says of its keys, as a configuration."""
    table = PAGE.partition("### Components")[2].partition("###")[0]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{component}` |")]
    found: dict[str, Any] = {}
    for path, value in re.findall(r"`([a-z_.]+): ([^`]+)`", row.split(" | ")[2]):
        *sections, key = path.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = yaml.safe_load(value)
    return found


def files_in(value: Any) -> list[str]:
    match value:
        case dict():
            return [file for one in value.values() for file in files_in(one)]
        case str() if value.startswith("/run/"):
            return [value]
    return []


def test_the_documented_settings_are_taken(tmp_path: Path) -> None:
    mine = yaml.safe_load(block("# mine.yaml"))
    more = [yaml.safe_load(one)["configuration"] for one in BLOCKS if one.startswith("configuration:")]
    assert len(more) == 2
    for i, given in enumerate((mine["configuration"], *more)):
        folder = tmp_path / str(i)
        folder.mkdir()
        out = rendered(yaml.safe_dump({**mine, "configuration": given}), folder)
        path = folder / "controlplane.yaml"
        path.write_text(configuration_in(out))
        load(path)


def test_the_documented_volume_and_job_are_valid_and_fill_what_the_engines_read(tmp_path: Path) -> None:
    claim, job = yaml.safe_load_all(block("# weights.yaml"))
    for one in (claim, job):
        kubernetes_validate.validate(one, "1.30", strict=True)
    out = rendered(block("# mine.yaml"), tmp_path)
    engine = next(yaml.safe_load_all((out / "engines/pool-short.yaml").read_text()))
    pod, fetching = engine["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    (read,) = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert read["claimName"] == claim["metadata"]["name"]
    assert {claim["metadata"]["namespace"], job["metadata"]["namespace"]} == {engine["metadata"]["namespace"]}
    assert fetching["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert fetching["containers"][0]["command"][-1] == pod["containers"][0]["command"][-1]
    assert fetching["containers"][0]["image"] == pod["containers"][0]["image"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_documented_keys_of_a_component_are_taken_and_their_files_are_there(component: str) -> None:
    keys = keys_of(component)
    check_mapping(control.configuration(ManifestSettings(configuration=keys, serving="llm")), "the table")
    for file in files_in(keys):
        volume, mount = added(component)
        assert Path(file).is_relative_to(mount["mountPath"])
        assert volume["secret"]["secretName"] in PAGE


@pytest.mark.parametrize("component", ["keda-external", "keda-metrics-api", "node-agent"])
def test_the_daemon_gets_the_secret_of_a_component(component: str) -> None:
    volume, mount = added(component)
    (daemon,) = [one for one in of_kind("StatefulSet") if one["metadata"]["name"] == "controlplane"]
    pod = daemon["spec"]["template"]["spec"]
    pod["volumes"].append(volume)
    pod["containers"][0]["volumeMounts"].append(mount)
    kubernetes_validate.validate(daemon, "1.30", strict=True)
    assert volume["name"] == mount["name"]
    assert (
        f"create secret generic {volume['secret']['secretName']} "
        in PAGE + (FOLDER.parents[1] / "docs/gpu-health.md").read_text()
    )


def test_the_scalers_files_are_those_of_its_secret() -> None:
    (given,) = [
        yaml.safe_load(one)["configuration"]
        for one in BLOCKS
        if "external_scaler:" in one and "of mine" in one
    ]
    _, mount = added("keda-external")
    scaler = given["api"]["external_scaler"]
    for key, name in (("tls_cert", "tls.crt"), ("tls_key", "tls.key"), ("client_ca", "ca.crt")):
        assert scaler[key] == f"{mount['mountPath']}/{name}"
    asked = of_kind("ScaledObject", "components/keda-external")[0]["spec"]["triggers"][0]["metadata"]
    host, _, port = asked["scalerAddress"].partition(":")
    assert f"subjectAltName=DNS:{host} " in PAGE
    assert scaler["listen"].endswith(f":{port}")


def test_the_daemon_finds_the_node_agents_and_may_see_them() -> None:
    (agents,) = of_kind("DaemonSet")
    key, _, value = keys_of("node-agent")["gpus"]["agent_pods"]["selector"].partition("=")
    assert agents["spec"]["template"]["metadata"]["labels"][key] == value
    (container,) = agents["spec"]["template"]["spec"]["containers"]
    assert [port["name"] for port in container["ports"]] == ["http"], (
        "the port that discovery takes by default"
    )
    roles = [one for one in rights("node-agent") if one["metadata"].get("namespace") == "controlplane"]
    may = [rule for one in roles if one["kind"] == "Role" for rule in one["rules"]]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]} in may
    assert agents["metadata"]["namespace"] == "controlplane"


def test_the_node_agents_configuration_is_one_that_they_take(tmp_path: Path) -> None:
    (one,) = of_kind("ConfigMap", "components/node-agent")
    path = tmp_path / "node-agent.yaml"
    path.write_text(one["data"]["node-agent.yaml"])
    settings = node_agent_settings(path)
    (agents,) = of_kind("DaemonSet")
    (container,) = agents["spec"]["template"]["spec"]["containers"]
    assert settings.listen.endswith(f":{container['ports'][0]['containerPort']}")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.token is not None
    assert settings.token.file == Path(mounts["token"]) / "token"
    assert container["args"][-1] == f"{mounts['config']}/node-agent.yaml"


@pytest.mark.parametrize("one_of", sorted(EITHER))
def test_kustomize_builds_each_component_and_all_together(one_of: str, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    rendered("{namespace: steering, serving: llm}", tmp_path)
    together = [name for name in COMPONENTS if name not in EITHER - {one_of}]
    for components in ([one_of], together):
        head = {
            "resources": ["rendered/base", "rendered/engines", "rendered/kueue"],
            "components": [f"rendered/components/{name}" for name in components],
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(head))
        told = subprocess.run(
            ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert told.returncode == 0, (components, told.stderr)
        built = list(yaml.safe_load_all(told.stdout))
        spaces = {one["metadata"].get("namespace", "") for one in built}
        assert spaces <= {"", "steering", "llm", "default", "gpu-operator"}, "nothing is left of the example"
        (daemon,) = [
            one for one in built if (one["kind"], one["metadata"]["name"]) == ("StatefulSet", "controlplane")
        ]
        kubernetes_validate.validate(daemon, "1.30", strict=True)

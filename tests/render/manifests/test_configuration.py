"""The configuration in the manifests: what the settings lay over it, and who is replaced when it changes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from controlplane.commands.render import render
from controlplane.render.manifests import control
from controlplane.render.manifests.files import manifest_files
from controlplane.render.manifests.settings import ManifestSettings

NOTE = "controlplane.llm/configuration"


def checksum(settings: ManifestSettings, file: str) -> str:
    first = next(yaml.safe_load_all(manifest_files(settings)[f"base/{file}.yaml"]))
    return str(first["spec"]["template"]["metadata"]["annotations"][NOTE])


def with_configuration(**sections: Any) -> ManifestSettings:
    return ManifestSettings(configuration=sections)


def test_what_is_given_is_laid_over_key_by_key() -> None:
    generated = control.configuration(ManifestSettings())
    made = control.configuration(
        with_configuration(
            daemon={"modes": {"pod": {"*": "enforce"}}},
            pools={"short": {"slo": {"ttft": "1s"}}},
            gateways=[{"url": "http://elsewhere:9101"}],
            scale={"workloads": []},
        )
    )
    assert made["daemon"] == {**generated["daemon"], "modes": {"pod": {"*": "enforce"}}}
    assert made["pools"]["short"]["slo"] == {**generated["pools"]["short"]["slo"], "ttft": "1s"}
    assert made["pools"]["short"]["targets"] == generated["pools"]["short"]["targets"]
    assert made["pools"]["long"] == generated["pools"]["long"]
    assert made["gateways"] == [{"url": "http://elsewhere:9101"}], "a list is replaced as a whole"
    assert made["scale"] == {"workloads": []}
    assert generated == control.configuration(ManifestSettings()), "nothing is changed in place"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{daemon: {mode: {}}}", "unknown key 'mode' under daemon (did you mean 'modes'?)"),
        ("{daemon: {modes: {pod: {chat: enforce}}}}", "daemon.modes.pod: there is no pool 'chat'"),
        ("{daemon: {modes: {scale: {'*': enforce}}}}", "daemon.modes.scale: there is no section scale"),
        ("{api: {autoscaling_token_file: [hunter2]}}", "api.autoscaling_token_file: should be a path"),
    ],
)
def test_what_is_no_configuration_is_refused_in_a_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"configuration: {text}\n")
    out = tmp_path / "out"
    told = CliRunner().invoke(render, ["manifests", "--settings", str(path), "--out", str(out)])
    assert told.exit_code == 1
    assert told.output == f"Error: {path}: configuration: {why}\n"
    assert not out.exists(), "nothing is written"


@pytest.mark.parametrize("file", ["daemon", "gateway"])
def test_pods_are_replaced_when_what_they_read_changes(file: str) -> None:
    before = checksum(ManifestSettings(), file)
    assert before == checksum(ManifestSettings(), file)
    assert before != checksum(with_configuration(pools={"short": {"slo": {"ttft": "1s"}}}), file)
    modes = checksum(with_configuration(daemon={"modes": {"pod": {"*": "enforce"}}}), file)
    assert (before != modes) is (file == "daemon"), "a gateway waits for all its answers before it goes"


def test_a_gateway_reads_no_section_whose_change_leaves_it_alone() -> None:
    source = Path(__file__).parents[3] / "controlplane/commands/gateway.py"
    read = set(re.findall(r"\bconfig\.([a-z_]+)", source.read_text())) - {"path"}
    assert read
    assert read <= control._GATEWAY_READS

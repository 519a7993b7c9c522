"""The units for machines without a cluster: systemd takes them, and their commands are ours."""

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from controlplane.cli import cli

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted([*(DEPLOY / "systemd").glob("*.service"), *(DEPLOY / "node-agent").glob("*.service")])


def read(path: Path) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_it(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    # The programs are not installed where the unit expects them, which it would complain of.
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/controlplane/bin/controlplane", "/bin/true"))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert path.name not in told.stderr, told.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_its_commands_are_ours_and_it_has_no_privilege(path: Path) -> None:
    service = read(path)["Service"]
    for key in ("ExecStart", "ExecStartPre"):
        if key in service:
            program, command, *_ = service[key].split()
            assert program == "/opt/controlplane/bin/controlplane"
            assert CliRunner().invoke(cli, [command, "--help"]).exit_code == 0
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert service["Restart"] == "always"

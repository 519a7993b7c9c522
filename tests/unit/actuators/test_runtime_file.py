"""The file that Envoy watches: whole at any moment, other people's keys left alone."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.actuators.runtime_file import RuntimeFile, RuntimeFileError, content, max_requests_key

KEY = max_requests_key("vllm")


def layer(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_bytes())
    (resource,) = document["resources"]
    assert resource["@type"] == "type.googleapis.com/envoy.service.runtime.v3.Runtime"
    assert resource["name"] == "controlplane"
    found: dict[str, Any] = resource["layer"]
    return found


def version(path: Path) -> int:
    return int(json.loads(path.read_bytes())["version_info"])


@pytest.fixture
def file(tmp_path: Path) -> RuntimeFile:
    return RuntimeFile(tmp_path / "limits.json")


async def test_a_value_is_written_and_read_and_other_keys_stay(file: RuntimeFile) -> None:
    file.path.write_bytes(content({"theirs": "x", KEY: 10}, 6))
    assert await file.value(KEY) == 10
    assert await file.value("theirs") is None
    await file.put(KEY, 58)
    assert layer(file.path) == {"theirs": "x", KEY: 58}
    assert version(file.path) == 7
    assert await file.value(KEY) == 58


async def test_there_need_be_no_file(file: RuntimeFile) -> None:
    assert await file.value(KEY) is None
    await file.put(KEY, 8)
    assert (layer(file.path), version(file.path)) == ({KEY: 8}, 1)
    assert stat.S_IMODE(file.path.stat().st_mode) & 0o444 == 0o444, "Envoy may run as somebody else"


async def test_what_is_so_already_is_not_written_again(file: RuntimeFile) -> None:
    await file.put(KEY, 8)
    before = file.path.stat()
    await file.put(KEY, 8)
    assert file.path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version_info": "1", "resources": []}',
        content({}, 1).replace(b"controlplane", b"somebody"),
        content({}, 1).replace(b"runtime.v3", b"runtime.v2"),
        b"[" * 100_000,
        b" " * (2 << 20),
    ],
)
async def test_a_strange_file_is_left_alone_and_named(file: RuntimeFile, text: bytes) -> None:
    file.path.write_bytes(text)
    with pytest.raises(RuntimeFileError) as refused:
        await file.put(KEY, 8)
    assert str(refused.value) == (
        f"{file.path} is not a runtime file with the one resource 'controlplane': move it away"
    )
    assert file.path.read_bytes() == text


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = RuntimeFile(tmp_path / "none" / "limits.json")
    with pytest.raises(RuntimeFileError, match=r"limits\.json cannot be written: No such file or directory"):
        await file.put(KEY, 8)


async def test_a_full_disk_leaves_the_old_file_and_no_rest(
    file: RuntimeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    await file.put(KEY, 8)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RuntimeFileError, match=r"limits\.json cannot be written: No space left on device"):
        await file.put(KEY, 9)
    assert layer(file.path) == {KEY: 8}
    assert [path.name for path in file.path.parent.iterdir()] == ["limits.json"]


@given(
    st.dictionaries(
        st.text(min_size=1), st.integers(0, 2**32 - 1) | st.text() | st.booleans() | st.floats(0, 1)
    ),
    st.integers(0, 2**31),
)
def test_what_is_written_is_what_is_read(values: dict[str, Any], number: int) -> None:
    document = json.loads(content(values, number))
    assert document["resources"][0]["layer"] == values
    assert document["version_info"] == str(number)

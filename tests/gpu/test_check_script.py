"""`check.sh` where there is no GPU: it says so, and that is no failure."""

import subprocess
from pathlib import Path


def test_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    for tool in ("dirname", "sh"):  # and no nvidia-smi
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    script = Path(__file__).with_name("check.sh")
    done = subprocess.run(
        ["/bin/sh", str(script)], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no NVIDIA GPU on this machine: nothing to compare\n"

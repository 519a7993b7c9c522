#!/bin/sh
# Reads this machine's GPUs through the real NVML and compares with nvidia-smi.
# Without a GPU it says so; that is no failure.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
if ! command -v nvidia-smi >/dev/null 2>&1 || ! nvidia-smi -L >/dev/null 2>&1; then
    echo "no NVIDIA GPU on this machine: nothing to compare"
    exit 0
fi
exec "$PYTHON" tests/gpu/compare.py

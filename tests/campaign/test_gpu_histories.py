"""10,000 random histories of GPU fleets: every fault is acted on in time, and no healthy node is touched."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from gpu_judge import confusion, run

HISTORIES = 10_000


@pytest.mark.campaign
def test_gpu_histories(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [run(seed) for seed in range(HISTORIES)]
    with capsys.disabled():
        print(f"\n{confusion(answers)}")
    wrong = [f"seed {one.seed}, {one.incident}: {'; '.join(one.flaws)}" for one in answers if one.flaws]
    assert not wrong, "\n".join(wrong[:50])

"""100,000 broken pages: each is read or refused with ExpositionError, by a warm reader as by a fresh one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from exposition_pages import check_mutations


@pytest.mark.campaign
def test_broken_pages_are_read_alike_fresh_and_warm() -> None:
    read, refused = check_mutations(seed=1, count=100_000)
    assert min(read, refused) > 10_000

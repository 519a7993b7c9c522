"""How large a KV cache is, by the page of its engine."""

import pytest

from controlplane.signals.kv_size import engine_kv_tokens
from controlplane.signals.samples import Signals


@pytest.mark.parametrize(
    ("numbers", "tokens"),
    [
        ({"kv_capacity_tokens": 4096.0, "kv_blocks": 128.0, "kv_block_size": 16.0}, 4096),
        ({"kv_blocks": 128.0, "kv_block_size": 16.0}, 2048),
        ({"kv_blocks": 128.0}, None),
        ({}, None),
        # an encoder: no cache at all
        ({"kv_capacity_tokens": 16.0, "kv_blocks": 1.0, "kv_block_size": 16.0}, None),
    ],
)
def test_as_the_engine_says_else_its_blocks(numbers: dict[str, float], tokens: float | None) -> None:
    assert engine_kv_tokens(Signals(numbers=numbers)) == tokens

"""What an engine is started with: vLLM's own options that shape its schedule, under vLLM's own names."""

from enum import StrEnum

import msgspec


class SchedulingPolicy(StrEnum):
    """Order of admission and of preemption."""

    FCFS = "fcfs"
    PRIORITY = "priority"  # lower numbers first, then earlier arrivals


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of one engine. Raises ValueError where vLLM would refuse to start.

    `num_gpu_blocks` is what vLLM reports under that name: one block of them is never handed out. `watermark`
    is the share of blocks that admission leaves free while something runs. `scheduler_reserve_full_isl`
    admits a request only if its whole prompt fits, not just its first chunk. `async_scheduling` (vLLM's
    default since 2026) plans a step while the one before it runs, so a request that comes to a busy engine
    waits one step longer.
    """

    num_gpu_blocks: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1) (got {self.watermark})")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is under max_num_seqs "
                f"({self.max_num_seqs}): a full batch could not decode"
            )
        if self.kv_tokens < self.max_model_len:
            raise ValueError(
                f"{self.num_gpu_blocks} blocks of {self.block_size} hold {self.kv_tokens} tokens, less than "
                f"max_model_len ({self.max_model_len}): a longest request could never run"
            )

    @property
    def usable_blocks(self) -> int:
        """Blocks that can be handed out."""
        return self.num_gpu_blocks - 1

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.usable_blocks * self.block_size

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_gpu_blocks)

"""What a plan of two pools comes to, in sentences for the person who has to decide."""

from collections.abc import Iterator

from controlplane.planner.pools import PoolPlan, Site, Traffic

_WORTH_IT = 0.05  # of the engines: less is within what a plan on paper is wrong by


def verdict(site: Site, load: Traffic, by_context: PoolPlan | None, by_size: PoolPlan | None) -> str:
    """Sentences on the best plan for either way to fill an engine (None: there is none)."""
    if by_context is None or by_size is None:
        return "The requests are too much alike for two pools: no boundary parts them."
    return " ".join([*_savings(by_context, by_size), *_first_tokens(site, by_context)])


def _savings(by_context: PoolPlan, by_size: PoolPlan) -> Iterator[str]:
    if by_context.saved_ratio >= _WORTH_IT:
        yield f"With slots by context, {_two(by_context)}."
        if by_size.saved_ratio < _WORTH_IT:
            yield (
                "But with requests reserved by size, as the gateway does it, one pool needs "
                f"{by_size.one.engines} and two would need {by_size.engines}: reserve by size, and keep one."
            )
            return
    if by_size.saved_ratio >= _WORTH_IT:
        yield f"Reserved by size, {_two(by_size)}."
        return
    yield f"Two pools save no engine here: {by_size.engines} against {by_size.one.engines} reserved by size"
    yield f"and {by_context.engines} against {by_context.one.engines} with slots by context."
    if by_context.saved_ratio_of_many >= _WORTH_IT:
        yield (
            f"Of a fleet many times larger they would save {by_context.saved_ratio_of_many:.0%} "
            f"with slots by context, {max(0.0, by_size.saved_ratio_of_many):.0%} reserved by size."
        )


def _first_tokens(site: Site, plan: PoolPlan) -> Iterator[str]:
    one, short, long = (pool.p99_prefill_seconds for pool in (plan.one, plan.short, plan.long))
    if one > site.ttft_seconds:
        yield (
            f"The longest prompts take {long:.1f} s to their first token by computing alone, over the "
            f"objective of {site.ttft_seconds:g} s however many engines there are."
        )
        if short <= site.ttft_seconds:
            yield (
                f"A short pool keeps {plan.short_ratio:.0%} of the requests out of their way: "
                f"{short:.2f} s there."
            )


def _two(plan: PoolPlan) -> str:
    return (
        f"two pools parted at {plan.boundary_tokens:,} tokens need {plan.short.engines} + "
        f"{plan.long.engines} = {plan.engines} engines instead of {plan.one.engines} "
        f"({plan.saved_ratio:.0%} fewer)"
    )

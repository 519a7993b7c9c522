"""A configuration in words: what it would watch, act on, remember; and what is doubtful about it."""

from bisect import bisect_left

from controlplane.config import Config
from controlplane.daemon.settings import ANY_POOL
from controlplane.signals.decision import Mode
from controlplane.signals.units import duration_text
from controlplane.sources.settings import TargetSettings
from controlplane.sources.urls import shown

# Upper bounds of vLLM's histograms in seconds, without options for other ones. An objective on one of them
# can be read exactly; between two of them only the two are proven. Other engines have others (SGLang's TTFT
# has 2 and 4 s): what the pages of a running fleet show is told by the tick.
_TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TPOT_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip


def off_edge(config: Config) -> list[str]:
    """A sentence for each objective that lies between two bucket edges of the engines' histograms."""
    sentences = []
    for name, pool in config.pools.items():
        for limit, value, edges in (
            ("ttft", pool.slo.ttft, _TTFT_EDGES),
            ("tpot", pool.slo.tpot, _TPOT_EDGES),
        ):
            if value not in edges:
                i = bisect_left(edges, value)
                near = " and ".join(duration_text(edge) for edge in edges[max(0, i - 1) : i + 1])
                sentences.append(
                    f"pool {name}: {limit} {duration_text(value)} lies between bucket edges of vLLM "
                    f"(next to it: {near}): goodput will be a wide interval"
                )
    return sentences


def explanation(config: Config) -> list[str]:
    """What `run` would do with this configuration, a line each."""
    daemon, policy = config.daemon, config.policy
    lines = []
    for name, pool in config.pools.items():
        slo = pool.slo
        lines.append(f"pool {name}: {_targets(pool.targets)}")
        lines.append(
            f"  objective: {100 * slo.objective:.4g}% of requests "
            f"with TTFT at most {duration_text(slo.ttft)} and TPOT at most {duration_text(slo.tpot)}"
        )
    if config.prometheus is not None:
        url, selector = shown(config.prometheus.url), config.prometheus.selector
        lines.append(f"Prometheus at {url} is asked for engines with {{{selector}}}")
    lines += [f"gateway {shown(gateway.url)} tells how requests ended" for gateway in config.gateways]
    lines.append(
        f"each engine is scraped every {duration_text(config.scrape.interval)} "
        f"(timeout {duration_text(config.scrape.timeout)}); a reading older than "
        f"{duration_text(policy.stale_after)} is unknown; a tick decides every {duration_text(daemon.tick)}"
    )
    lines.append(_modes(config))
    lines.append(f"hold: while {daemon.hold_path} exists nothing is acted on")
    lines.append(
        f"journal: {daemon.journal}, samples for {duration_text(daemon.keep_samples)} and at most "
        f"{daemon.journal_limit.human_readable()}, decisions and events for "
        f"{duration_text(daemon.keep_decisions)}; overrides: {daemon.overrides_path}"
    )
    token = config.api.token_file or config.api.token_env
    writing = f"orders with the token of {token}" if token else "reading only: no token is configured"
    lines.append(f"API: {config.api.listen}, {writing}")
    return lines


def _targets(targets: TargetSettings | None) -> str:
    if targets is None:
        return "its engines are those that Prometheus names"
    if targets.static is not None:
        return f"engines {', '.join(map(shown, targets.static))}"
    if targets.file_sd is not None:
        return f"engines from the files {', '.join(targets.file_sd)}"
    return f"engines from the DNS name {targets.dns} ({targets.record})"


def _modes(config: Config) -> str:
    enforced = [
        f"{actuator} on {'every other pool' if pool == ANY_POOL else pool}"
        for actuator, modes in config.daemon.modes.items()
        for pool, mode in modes.items()
        if mode is Mode.ENFORCE
    ]
    return "enforced: " + ", ".join(enforced) if enforced else "mode: observe (nothing is acted on)"

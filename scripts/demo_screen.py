"""What the demo shows: an introduction, then a line every few seconds, 80 columns wide."""

from typing import Any

from demo_load import PATIENCE_SECONDS, Limits, Phase, Window
from rich.console import Console
from rich.text import Text

_HEADING = (
    f"{'time':>5}  {'load':<9}{'asked':>5}  {'answered in time':<16} {'proven':>8} {'waiting':>7} {'KV':>4} "
    f"{'TTFT p95':>8} {'gone':>5}"
)
_BAR = 10


class Screen:
    """Prints to a terminal, or plain text to anything else."""

    def __init__(self, capacity_per_second: float, limits: Limits) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._capacity = capacity_per_second
        self._limits = limits

    def introduce(self, urls: list[str], api: str, command: str, folder: str) -> None:
        """What runs, where to look and what to try."""
        last = urls[-1].rpartition(":")[2]
        self._print(("\ncontrolplane demo", "bold"), ": a fleet that nobody controls\n")
        for name, what in {
            "engines": f"{urls[0]} to :{last}  simulated vLLM, 70B on two H100 each",
            "daemon": f"{api}  /api/v1/fleet, /api/v1/events, /metrics",
            "look": f"{command} top --url {api}",
            "ask": f'curl --json \'{{"prompt": "hi"}}\' {urls[0]}/v1/completions',
            "break": f"curl {urls[1]}/sim/faults -d '{{\"wedged\": true}}'",
            "files": f"{folder}  configuration, journal, logs",
        }.items():
            self._print((f"  {name:<10}", "cyan"), what)
        ttft, tpot = f"{self._limits.ttft:g} s to the first token", f"{1e3 * self._limits.tpot:.0f} ms"
        gone = f"Who waits {PATIENCE_SECONDS:.0f} s for the first token is gone."
        self._print(
            f"\nThe fleet can answer {self._capacity:.0f} questions a second. In time is {ttft},\n"
            f"then {tpot} a token. {gone} `proven` is\n"
            "what the daemon proves from the engines' metrics alone. Ctrl-C ends everything."
        )

    def begin(self, phase: Phase, *, first: bool) -> None:
        """A phase of the load begins, the `first` of them or another."""
        if first:
            self._print((f"\n{_HEADING}", "dim"))
        rate = f"{self._capacity * phase.share:.0f} questions a second"
        self._print((f" -- {phase.name}: {rate}, {phase.remark}", "bold"))

    def line(self, seconds: float, phase: Phase, window: Window, pool: dict[str, Any]) -> None:
        """What the clients saw of late, beside what the daemon says of the `pool`."""
        minutes, rest = divmod(round(seconds), 60)
        ttft = "-" if window.ttft_p95 is None else f"{window.ttft_p95:.1f} s"
        self._print(
            f"{minutes:>2}:{rest:02d}  {phase.name:<9}{window.offered_per_second:3.0f}/s  ",
            *_bar(window.good_ratio),
            f"  {_proven(pool):>8} {_value(pool, 'waiting', '{:.0f}'):>7}",
            f" {_value(pool, 'kv_usage', '{:.0%}'):>4} {ttft:>8} {window.gone_ratio:5.0%}",
        )

    def say(self, sentence: str, style: str = "") -> None:
        """One sentence."""
        self._print((sentence, style))

    def _print(self, *parts: str | tuple[str, str]) -> None:
        self._console.print(Text.assemble(*parts))


def _bar(ratio: float | None) -> list[tuple[str, str]]:
    if ratio is None:
        return [("nothing ended".ljust(_BAR + 5), "dim")]
    style = "green" if ratio >= 0.95 else "yellow" if ratio >= 0.5 else "red"
    full = round(ratio * _BAR)
    return [(f"{ratio:4.0%} {'█' * full}", style), ("░" * (_BAR - full), "dim")]


def _proven(pool: dict[str, Any]) -> str:
    """The interval in which the share of requests in time is proven to be."""
    ratio = pool.get("goodput", {}).get("ratio")
    if not ratio or ratio["low"] is None or ratio["high"] is None:
        return "too few"
    low, high = (round(100 * ratio[end]) for end in ("low", "high"))
    return f"{low}%" if low == high else f"{low}-{high}%"


def _value(pool: dict[str, Any], name: str, form: str) -> str:
    value = pool.get("load", {}).get(name, {}).get("value")
    return "?" if value is None else form.format(value)

"""What the demo shows: an introduction, then a line every few seconds, 80 columns wide."""

from typing import Any

from demo_load import CAPACITY_PER_SECOND, LIMITS, PATIENCE_SECONDS, Phase, Window
from demo_site import CONFIG, FOLDER, MODEL, TOKEN, Site
from demo_switch import KEY
from rich.console import Console
from rich.text import Text

_HEADING = (
    f"{'time':>5} {'control':<7} {'asked':>5} {'answered in time':<17} {'proven':>7} {'waiting':>7} "
    f"{'KV':>4} {'TTFT95':>6} {'refused':>7} {'gone':>4}"
)
_BAR = 10
_BAD_SHARE = 0.25  # of the capacity: the fleet has collapsed


class Screen:
    """Prints to a terminal, or plain text to anything else."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._how = ""
        self._hinted = False

    def introduce(self, site: Site, command: str, *, has_keys: bool) -> None:
        """What runs, where to look and what to try."""
        last = site.engines[-1].rpartition(":")[2]
        by_command = f"{_python(command)} scripts/demo.py on"
        self._how = f"press {KEY}" if has_keys else by_command
        switch = f"the key {KEY}; or {by_command} | off" if has_keys else f"{by_command} | off"
        self._print(("\ncontrolplane demo", "bold"), ": a fleet that collapses under load, and control\n")
        for name, what in {
            "engines": f"{site.engines[0]} to :{last}  simulated vLLM, 70B on two H100 each",
            "gateway": f"{site.gateway}  all questions go through it",
            "daemon": f"{site.api}  its page in a browser; the token for orders is in {TOKEN}",
            "look": f"{command} top --url {site.api}",
            "control": switch,
            "freeze": f"{command} hold -c {CONFIG}; release",
            "ask": f'curl --json \'{{"model": "{MODEL}", "prompt": "hi"}}\' {site.gateway}/v1/completions',
            "break": f"curl {site.engines[1]}/sim/faults -d '{{\"wedged\": true}}'",
            "files": f"{FOLDER}  configuration, journal, logs",
        }.items():
            self._print((f"  {name:<8}", "cyan"), what)
        ttft, tpot = f"{LIMITS.ttft:g} s to the first token", f"{1e3 * LIMITS.tpot:.0f} ms"
        gone = f"Who waits {PATIENCE_SECONDS:.0f} s for the first token is gone."
        self._print(
            f"\nThe fleet can answer {CAPACITY_PER_SECOND:.0f} questions a second. In time is {ttft},\n"
            f"then {tpot} a token. {gone} `proven` is\n"
            "the share of all questions that the daemon proves good, `waiting` the engines'\n"
            "queues. Ctrl-C ends everything."
        )

    def begin(self, phase: Phase, *, first: bool) -> None:
        """A phase of the load begins, the `first` of them or another."""
        if first:
            self._print((f"\n{_HEADING}", "dim"))
        rate = f"{CAPACITY_PER_SECOND * phase.share:.0f} questions a second"
        self._print((f" -- {phase.name}: {rate}, {phase.remark}", "bold"))

    def switched(self, on: bool) -> None:
        """Control was turned on or off."""
        what = (
            "on: the gateway refuses at once what could not be in time"
            if on
            else "off: everything is let through, decisions are only written down"
        )
        self._print((f" -- control {what}", "bold"))

    def line(self, seconds: float, window: Window, pool: dict[str, Any], *, on: bool) -> None:
        """What the clients saw of late, beside what the daemon says of the `pool`."""
        minutes, rest = divmod(round(seconds), 60)
        ttft = "-" if window.ttft_p95 is None else f"{window.ttft_p95:.1f} s"
        share = window.good_per_second / CAPACITY_PER_SECOND
        self._print(
            f"{minutes:>2}:{rest:02d} {'on' if on else 'off':<7} {window.offered_per_second:3.0f}/s ",
            *_bar(window.good_per_second, share),
            f" {_proven(pool):>7} {_value(pool, 'waiting', '{:.0f}'):>7}",
            f" {_value(pool, 'kv_usage', '{:.0%}'):>4} {ttft:>6}",
            f" {window.refused_ratio:7.0%} {window.gone_ratio:4.0%}",
        )
        if share < _BAD_SHARE and window.gone_ratio > 0 and not on and not self._hinted:
            self._hinted = True
            self._print((f" -- nearly nobody is answered in time. Turn control on: {self._how}", "bold cyan"))

    def say(self, sentence: str, style: str = "") -> None:
        """One sentence."""
        self._print((sentence, style))

    def _print(self, *parts: str | tuple[str, str]) -> None:
        self._console.print(Text.assemble(*parts))


def _python(command: str) -> str:
    return command.removesuffix("controlplane") + "python"


def _bar(per_second: float, share: float) -> list[tuple[str, str]]:
    """`per_second`, which is this `share` of what the fleet can answer."""
    style = "green" if share >= 0.8 else "yellow" if share >= _BAD_SHARE else "red"
    full = min(_BAR, round(share * _BAR))
    return [(f"{per_second:4.1f}/s {'█' * full}", style), ("░" * (_BAR - full), "dim")]


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

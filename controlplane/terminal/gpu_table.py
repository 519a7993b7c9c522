"""What `sources.dcgm_inspect` read from a GPU exporter's page, as tables: a column a GPU, a row a signal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.terminal.figures import plain
from controlplane.terminal.page_table import figure, unit_of

Json = Mapping[str, Any]

_MOST_GPUS = 8
_PLAIN_UNITS = ("celsius", "watts", "joules", "hertz")


def gpu_table(out: Json, name: str) -> RenderableType:
    """The whole answer about the page called `name`."""
    shown = dict(list(out["gpus"].items())[:_MOST_GPUS])
    count = len(out["gpus"])
    title = f"{count} GPU{'' if count == 1 else 's'} on {plain(name)}"
    if out.get("driver"):
        title += f", driver {plain(out['driver'])}"
    table = Table(title=Text(title, style="bold"), title_justify="left")
    table.add_column("signal")
    for uuid in shown:
        device = out["devices"][uuid]
        index = "?" if device["index"] is None else device["index"]
        head = [f"gpu {index}", plain(device["model"]), f"…{plain(uuid[-12:])}", *map(plain, device["pods"])]
        table.add_column("\n".join(part for part in head if part), justify="right")
    for signal in dict.fromkeys(signal for signals in shown.values() for signal in signals):
        table.add_row(signal, *(_cell(signals.get(signal), signal) for signals in shown.values()))
    parts: list[RenderableType] = [table]
    if count > len(shown):
        parts.append(Text(f"and {count - len(shown)} more (--json shows all)"))
    parts += [Text(f"! {plain(warning)}", style="yellow") for warning in out["warnings"]]
    parts += _blindness(out.get("blind_checks", {}))
    return Group(*parts)


def _cell(signal: Json | None, name: str) -> str:
    if signal is None:
        return "–"
    if "unknown" in signal:
        return f"unknown: {signal['unknown']}"
    text = _figure(signal["value"], name)
    if "by" in signal:
        text += "".join(f"\n{key}: {_figure(value, name)}" for key, value in signal["by"].items())
    if "rate" in signal:
        text += f"\n{signal['rate']:.3g}/s"
    return text


def _figure(value: float, name: str) -> str:
    unit = next((unit for unit in _PLAIN_UNITS if unit in name), "")
    return f"{value:.6g}" if unit else figure(value, unit_of(name))


def _blindness(blind_checks: Mapping[str, Mapping[str, list[str]]]) -> list[RenderableType]:
    """One line a check that is blind on any of the GPUs."""
    missing: dict[str, list[str]] = {}
    for checks in blind_checks.values():
        for check, signals in checks.items():
            missing.setdefault(check, signals)
    return [
        Text(f"blind: {check} (needs {' or '.join(signals)})", style="dim")
        for check, signals in missing.items()
    ]

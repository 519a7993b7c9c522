"""Draws the dashboards from a real Prometheus, as near to Grafana as a look at values, units and gaps needs.

    .venv/bin/python tests/render/preview.py FOLDER [SECONDS]

starts a live fleet, lets it run, and leaves a page and (where there is a Chromium) a picture of each
dashboard.
"""

# ruff: noqa: E501 - markup

import html
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from live_fleet import LiveFleet  # noqa: E402

DASHBOARDS = HERE.parents[1] / "dashboards"
ROW, WIDTH = 34, 1600
COLORS = {"green": "#73bf69", "red": "#f2495c", "orange": "#ff9830", "blue": "#5794f2", "#EAB839": "#eab839"}
PALETTE = (
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff780a",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#705da0",
    "#37872d",
    "#fade2a",
)
STYLE = """
body{background:#111217;color:#ccccdc;font:12px/1.35 "DejaVu Sans",sans-serif;margin:8px;width:1600px}
.grid{position:relative}.p{position:absolute;background:#181b1f;border:1px solid #2a2d33;border-radius:3px;
overflow:hidden;box-sizing:border-box;padding:6px 8px}.p h3{margin:0 0 2px;font-size:12px;font-weight:600}
.row{position:absolute;font-size:15px;font-weight:600;padding:8px 4px}.big{font-size:30px;font-weight:700;text-align:center;
padding-top:14px}.none{color:#808080;text-align:center;padding-top:24px}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:2px 8px;border-bottom:1px solid #2a2d33;white-space:nowrap}th{color:#8ab8ff}
.legend td{border:0;padding:0 6px;font-size:11px}.dot{display:inline-block;width:10px;height:3px;margin-right:5px;vertical-align:middle}
h1{font-size:18px;margin:4px}text{fill:#9da5b4;font-size:10px}
"""


def substituted(expr: str, interval: str = "15s") -> str:
    """An expression with everything chosen, as Grafana would send it with All."""
    for name in ("cluster", "pool", "model", "instance", "node", "UUID"):
        expr = expr.replace(f'=~"${name}"', '=~".*"')
    return expr.replace("$__rate_interval", interval)


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels, those of closed rows too."""
    found = []
    for panel in dashboard["panels"]:
        found.append(panel)
        found += panel.get("panels", [])
    return found


def _scaled(value: float, units: tuple[str, ...], size: float, digits: int = 2) -> str:
    at = 0
    while abs(value) >= size and at < len(units) - 1:
        value, at = value / size, at + 1
    return f"{_number(value, digits)}{units[at]}"


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def formatted(value: float, unit: str, decimals: int | None = None) -> str:  # noqa: PLR0911
    """A value as Grafana writes it in this unit."""
    if math.isnan(value):
        return "NaN"
    digits = 2 if decimals is None else decimals
    if unit == "percentunit":
        return f"{_number(value * 100, 1 if decimals is None else decimals)}%"
    if unit == "percent":
        return f"{_number(value, 1 if decimals is None else decimals)}%"
    if unit == "s":
        if value and abs(value) < 1e-3:
            return f"{_number(value * 1e6, 0)} µs"
        if abs(value) < 1:
            return f"{_number(value * 1e3, 0 if abs(value) >= 0.1 else 1)} ms"
        return f"{_number(value, digits)} s" if abs(value) < 60 else f"{_number(value / 60, 1)} min"
    if unit == "mbytes":
        return _scaled(value, (" MiB", " GiB", " TiB"), 1024, 1)
    if unit == "celsius":
        return f"{_number(value, digits)} °C"
    if unit == "watt":
        return _scaled(value, (" W", " kW", " MW"), 1000)
    if unit == "rotmhz":
        return _scaled(value, (" MHz", " GHz"), 1000)
    suffix = {"reqps": " req/s", "ops": " ops/s"}.get(unit, "")
    return _scaled(value, ("", " K", " Mil"), 1000, digits) + suffix


def color(value: float, thresholds: dict[str, Any]) -> str:
    chosen = thresholds["steps"][0]["color"]
    for step in thresholds["steps"][1:]:
        if value >= step["value"]:
            chosen = step["color"]
    return COLORS.get(chosen, chosen)


def legend_of(template: str, metric: dict[str, str]) -> str:
    if template == "__auto":
        return ", ".join(f"{k}={v}" for k, v in metric.items() if k != "__name__") or "value"
    for key, value in metric.items():
        template = template.replace(f"{{{{{key}}}}}", value)
    import re

    return re.sub(r"\{\{\w+\}\}", "", template) or "value"


class Preview:
    def __init__(self, fleet: LiveFleet, seconds: float) -> None:
        self.fleet = fleet
        self.end = time.time()
        self.start = self.end - seconds
        self.step = max(1.0, seconds / 150)

    def page(self, dashboard: dict[str, Any]) -> str:
        bottom = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels(dashboard))
        body = "".join(self.panel(panel) for panel in panels(dashboard))
        return (
            f"<!doctype html><meta "
            f"charset=utf-8><style>{STYLE}</style><h1>{html.escape(dashboard['title'])}</h1>"
            f'<div class=grid style="height:{bottom * ROW}px">{body}</div>'
        )

    def panel(self, panel: dict[str, Any]) -> str:
        at = panel["gridPos"]
        cell = WIDTH / 24
        place = f"left:{at['x'] * cell:.0f}px;top:{at['y'] * ROW}px;width:{at['w'] * cell - 6:.0f}px;height:{at['h'] * ROW - 6}px"
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            return f'<div class=row style="{place}">{title}</div>'
        draw = {
            "timeseries": self.lines,
            "stat": self.stat,
            "heatmap": self.heat,
            "state-timeline": self.states,
            "table": self.table,
        }
        size = at["w"] * cell - 24, at["h"] * ROW - 40
        inside = draw[panel["type"]](panel, *size)
        return f'<div class=p style="{place}"><h3>{title}</h3>{inside}</div>'

    def series(self, panel: dict[str, Any]) -> list[tuple[str, dict[float, float]]]:
        found = []
        for target in panel["targets"]:
            result = self.fleet.ask(
                "query_range",
                query=substituted(target["expr"]),
                start=str(self.start),
                end=str(self.end),
                step=str(self.step),
            )["result"]
            for one in result:
                points = {float(t): float(v) for t, v in one["values"]}
                found.append((legend_of(target["legendFormat"], one["metric"]), points))
        return found

    def nothing(self, panel: dict[str, Any]) -> str:
        return f"<div class=none>{html.escape(panel['fieldConfig']['defaults']['noValue'])}</div>"

    def lines(self, panel: dict[str, Any], width: float, height: float) -> str:
        series = self.series(panel)
        if not series:
            return self.nothing(panel)
        defaults = panel["fieldConfig"]["defaults"]
        unit = defaults["unit"]
        stacked = defaults["custom"]["stacking"]["mode"] == "normal"
        dashed = [o["matcher"]["options"].strip("/") for o in panel["fieldConfig"]["overrides"]]
        import re

        plot = height - 14 * min(len(series), 5) - 18
        drawn: list[tuple[str, dict[float, float], bool]] = []
        base: dict[float, float] = {}
        for name, points in series:
            is_dashed = any(re.search(pattern, name) for pattern in dashed)
            if stacked and not is_dashed:
                base = {t: base.get(t, 0.0) + (0 if math.isnan(v) else v) for t, v in points.items()}
                drawn.append((name, dict(base), False))
            else:
                drawn.append((name, points, is_dashed))
        values = [v for _, points, _ in drawn for v in points.values() if math.isfinite(v)]
        if not values:
            return self.nothing(panel)
        low = defaults.get("min", min(values))
        high = defaults.get("max", max(values))
        high = high if high > low else low + 1

        def xy(t: float, v: float) -> str:
            return f"{66 + (t - self.start) / (self.end - self.start) * (width - 70):.1f},{plot - (v - low) / (high - low) * (plot - 6):.1f}"

        parts = []
        for i in range(4):
            v = low + (high - low) * i / 3
            y = plot - i / 3 * (plot - 6)
            parts.append(
                f'<line x1=66 x2={width} y1={y:.0f} y2={y:.0f} stroke="#2a2d33"/><text x=62 '
                f"y={y + 3:.0f} text-anchor=end>{formatted(v, unit)}</text>"
            )
        for i, (_, points, is_dashed) in enumerate(drawn):
            pieces: list[list[str]] = [[]]
            last = None
            for t in sorted(points):
                if last is not None and t - last > 1.5 * self.step:
                    pieces.append([])
                if math.isfinite(points[t]):
                    pieces[-1].append(xy(t, min(max(points[t], low), high)))
                last = t
            for piece in pieces:
                dash = ' stroke-dasharray="6 4"' if is_dashed else ""
                if len(piece) == 1:
                    x, y = piece[0].split(",")
                    parts.append(f'<circle cx={x} cy={y} r=2 fill="{PALETTE[i % 10]}"/>')
                elif piece:
                    parts.append(
                        f'<polyline fill=none stroke="{PALETTE[i % 10]}" stroke-width=1.4{dash} '
                        f'points="{" ".join(piece)}"/>'
                    )
        rows = "".join(
            f'<tr><td><span class=dot style="background:{PALETTE[i % 10]}"></span>{html.escape(name)}</td>'
            f"<td>{formatted(points[max(points)], unit)}</td><td>max "
            f"{formatted(max(points.values()), unit)}</td></tr>"
            for i, (name, points) in enumerate(series[:5])
        )
        return (
            f"<svg width={width:.0f} height={plot + 4:.0f}>{''.join(parts)}</svg><table "
            f"class=legend>{rows}</table>"
        )

    def stat(self, panel: dict[str, Any], width: float, height: float) -> str:
        defaults = panel["fieldConfig"]["defaults"]
        found = [
            (name, points[max(points)])
            for name, points in self.series(panel)
            if points and max(points) > self.end - 10
        ]
        if not found:
            return (
                f"<div class=none "
                f'style="font-size:16px;padding-top:10px">{html.escape(defaults["noValue"])}</div>'
            )
        name, value = found[-1]
        text, shade = (
            formatted(value, defaults["unit"], defaults.get("decimals")),
            color(value, defaults["thresholds"]),
        )
        for mapping in defaults["mappings"]:
            said = mapping["options"].get(f"{value:g}")
            if said:
                text, shade = said["text"], COLORS.get(said["color"], said["color"])
        if panel["options"]["textMode"] == "value_and_name":
            text += f'<div style="font-size:13px">{html.escape(name)}</div>'
        style = (
            f"background:{shade};color:#111"
            if panel["options"]["colorMode"] == "background"
            else f"color:{shade}"
        )
        return f'<div class=big style="{style};height:{height - 6:.0f}px">{text}</div>'

    def heat(self, panel: dict[str, Any], width: float, height: float) -> str:
        series = sorted(
            ((float(name), points) for name, points in self.series(panel)), key=lambda one: one[0]
        )
        if not series:
            return self.nothing(panel)
        times = sorted({t for _, points in series for t in points})
        cells = []
        before: dict[float, float] = {}
        for bound, points in series:
            cells.append((bound, {t: max(0.0, points.get(t, 0.0) - before.get(t, 0.0)) for t in times}))
            before = points
        used = [i for i, (_, points) in enumerate(cells) if any(v > 1e-9 for v in points.values())]
        if not used:
            return self.nothing(panel)
        cells = cells[max(0, used[0] - 1) : used[-1] + 2]
        top = max(v for _, points in cells for v in points.values())
        w, h = (width - 60) / len(times), (height - 6) / len(cells)
        parts = []
        for i, (bound, points) in enumerate(cells):
            y = height - 6 - (i + 1) * h
            text = "+Inf" if math.isinf(bound) else formatted(bound, panel["options"]["yAxis"]["unit"])
            if i % max(1, len(cells) // 10) == 0:
                parts.append(f"<text x=56 y={y + 8:.0f} text-anchor=end>{text}</text>")
            for j, t in enumerate(times):
                share = math.sqrt(points[t] / top) if top else 0.0
                if share > 0.02:
                    parts.append(
                        f"<rect x={60 + j * w:.1f} y={y:.1f} width={w + 0.4:.1f} "
                        f"height={max(1, h - 1):.1f} "
                        f'fill="hsl({260 - 230 * share:.0f},80%,{20 + 40 * share:.0f}%)"/>'
                    )
        return f"<svg width={width:.0f} height={height:.0f}>{''.join(parts)}</svg>"

    def states(self, panel: dict[str, Any], width: float, height: float) -> str:
        series = self.series(panel)
        if not series:
            return self.nothing(panel)
        options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        h = min(22.0, (height - 6) / len(series))
        parts = []
        for i, (name, points) in enumerate(series):
            parts.append(f"<text x=0 y={i * h + h / 2 + 3:.0f}>{html.escape(name)[:46]}</text>")
            for t, v in points.items():
                said = options.get(f"{v:g}", {"color": "#808080"})
                x = 240 + (t - self.start) / (self.end - self.start) * (width - 244)
                w = self.step / (self.end - self.start) * (width - 244) + 0.6
                parts.append(
                    f"<rect x={x:.1f} y={i * h + 2:.1f} width={w:.1f} height={h - 4:.1f} "
                    f'fill="{COLORS.get(said["color"], said["color"])}"/>'
                )
        return f"<svg width={width:.0f} height={height:.0f}>{''.join(parts)}</svg>"

    def table(self, panel: dict[str, Any], width: float, height: float) -> str:
        organize = next(t for t in panel["transformations"] if t["id"] == "organize")["options"]
        rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        several = len(panel["targets"]) > 1
        for target in panel["targets"]:
            for one in self.fleet.query(substituted(target["expr"])):
                labels = {k: v for k, v in one["metric"].items() if k != "__name__"}
                # Grafana's merge joins rows whose common labels are equal.
                key = next((k for k in rows if all(labels.get(n, v) == v for n, v in k)), None) or tuple(
                    labels.items()
                )
                row = rows.setdefault(key, dict(labels))
                row.update(labels)
                row[f"Value #{target['refId']}" if several else "Value"] = float(one["value"][1])
        if not rows:
            return self.nothing(panel)
        names = sorted(organize["indexByName"], key=organize["indexByName"].get)
        overrides = {
            o["matcher"]["options"]: {p["id"]: p["value"] for p in o["properties"]}
            for o in panel["fieldConfig"]["overrides"]
        }
        heads = [organize["renameByName"].get(name, name) for name in names]
        lines = []
        for row in rows.values():
            cells = []
            for name, head in zip(names, heads, strict=True):
                value, how = row.get(name), overrides.get(head, {})
                if value is None:
                    cells.append("<td></td>")
                elif isinstance(value, str):
                    cells.append(f"<td>{html.escape(value)}</td>")
                else:
                    style, text = "", formatted(value, how.get("unit", "short"), how.get("decimals"))
                    if "thresholds" in how:
                        style = f"color:{color(value, how['thresholds'])}"
                    for mapping in how.get("mappings", []):
                        said = mapping["options"].get(f"{value:g}", {"text": text, "color": "none"})
                        text, style = (
                            said["text"],
                            f"background:{COLORS.get(said['color'], said['color'])};color:#111",
                        )
                    cells.append(f'<td style="{style}">{html.escape(text)}</td>')
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return (
            f"<table><tr>{''.join(f'<th>{html.escape(h)}</th>' for h in heads)}</tr>{''.join(lines)}</table>"
        )


def draw(fleet: LiveFleet, folder: Path, seconds: float) -> None:
    """A page, and where there is a Chromium a picture, of every dashboard."""
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    preview = Preview(fleet, seconds)
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(path.read_text())
        page = folder / f"{path.stem}.html"
        page.write_text(preview.page(dashboard))
        if chromium is not None:
            high = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels(dashboard)) * ROW + 60
            subprocess.run(
                [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size=1624,{high}",
                 f"--screenshot={folder / path.stem}.png", page.resolve().as_uri()],
                capture_output=True, timeout=120, check=False,
            )  # fmt: skip


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 120.0
    with tempfile.TemporaryDirectory() as scratch, LiveFleet(Path(scratch)).running() as fleet:
        time.sleep(seconds / 2)
        fleet.break_replica("code", thermal_factor=1.6, xid={"1": 79})
        fleet.break_replica("chat", 1, wedged=True)
        time.sleep(seconds / 2)
        draw(fleet, folder, seconds)


if __name__ == "__main__":
    main()

"""`controlplane render`: what people install to see the product."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

from controlplane.render import files, runbooks
from controlplane.render.settings import RenderSettings

Command: TypeAlias = Callable[..., Any]
_DEFAULT = RenderSettings()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def render() -> None:
    """Write dashboards, rules, alerts and runbooks, all from the metric registry and the dialect tables."""


def _out(default: str) -> Callable[[Command], Command]:
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", default=default, show_default=True, type=folder, help="Folder to write to.")


_check = click.option("--check", is_flag=True, help="Write nothing; exit code 1 where a file is not current.")


def _selectors(command: Command) -> Command:
    """Options of what differs between installations."""
    for name, text in (
        ("runbooks", "Where the runbook pages are served."),
        ("gateway-secret", "Secret with the gateways' control token, for the operator's monitor."),
        ("gateway-job", "Regex of the gateways' job names."),
        ("daemon-job", "Regex of the daemon's job name."),
        ("gpu-job", "Regex of the GPU exporters' job names."),
        ("engine-job", "Regex of the engines' job names in Prometheus."),
    ):
        default = getattr(_DEFAULT, name.replace("-", "_"))
        command = click.option(f"--{name}", default=default, show_default=True, help=text)(command)
    return command


@render.command()
@_out("dashboards")
@_check
def dashboards(out: Path, check: bool) -> None:
    """Write the Grafana dashboards."""
    _write(out, files.dashboard_files(), check=check)


@render.command()
@_out("alerts")
@_check
@_selectors
def alerts(out: Path, check: bool, **selectors: str) -> None:
    """Write recording rules, alerts, routes, and the same as Prometheus Operator objects."""
    _write(out, files.alert_files(RenderSettings(**selectors)), check=check)


@render.command("runbooks")
@_out("docs/runbooks")
@_check
def runbook_pages(out: Path, check: bool) -> None:
    """Write a page for each alert."""
    _write(out, runbooks.pages(_DEFAULT), check=check)


@render.command()
@_out("deploy/kubernetes")
@_check
@click.option(
    "--settings",
    "path",
    type=click.Path(path_type=Path),
    help="YAML: names, model, GPUs, pools. [default: an example]",
)
def manifests(out: Path, check: bool, path: Path | None) -> None:
    """Write kustomize bases and components: daemon, gateway, engines, KEDA, Kueue.

    max-model-len, gpu-memory-utilization and max-num-seqs of the engines follow from model and GPU.
    """
    # Only this needs them.
    from controlplane.config import ConfigError, check_mapping  # noqa: PLC0415
    from controlplane.render.manifests import control, engine_plan, files, settings  # noqa: PLC0415

    try:
        made = settings.ManifestSettings() if path is None else settings.load(path)
        check_mapping(control.configuration(made), f"{path}: configuration")
        texts = files.manifest_files(made)
    except (settings.ManifestSettingsError, engine_plan.DoesNotFitError, ConfigError) as error:
        raise click.ClickException(str(error)) from None
    _write(out, texts, check=check)


def _write(out: Path, texts: dict[str, str], *, check: bool) -> None:
    """Write what differs; files of ours that are no longer made are named, never removed."""
    suffixes = {Path(name).suffix for name in texts}
    there = (
        {str(p.relative_to(out)) for p in out.rglob("*") if p.suffix in suffixes} if out.is_dir() else set()
    )
    stale = [name for name, text in texts.items() if _read(out / name) != text]
    if check:
        for name in sorted(stale):
            click.echo(f"{out / name} is not current: run `controlplane render`", err=True)
        for name in sorted(there - texts.keys()):
            click.echo(f"{out / name} is not made by this version: remove it", err=True)
        if stale or there - texts.keys():
            raise SystemExit(1)
        click.echo(f"{len(texts)} files in {out} are current")
        return
    try:
        for name in stale:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(texts[name], encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    click.echo(f"{len(stale)} of {len(texts)} files in {out} written, the others were current")
    for name in sorted(there - texts.keys()):
        click.echo(f"{out / name} is not made by this version: remove it", err=True)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None

"""Scenarios from files and from the built-in ones, or every reason why not, with its line."""

from collections.abc import Iterator
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from controlplane.simulator.scenario.gpus import Gpus, GpuWatching
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.streams import shortfall
from controlplane.simulator.scenario.workload import SourceModel
from controlplane.yaml_model import ModelReader, SettingsError, parse_mapping, read_text
from controlplane.yaml_text import Place

_BUILT_IN = files("controlplane.simulator").joinpath("scenarios")
_MOST_REPLICAS = 1000


def built_in_names() -> tuple[str, ...]:
    """The names of the scenarios that come with the package."""
    names = (file.name for file in _BUILT_IN.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def load_scenario(name: str) -> Scenario:
    """The scenario in the file `name`, or the built-in one called so. Raises SettingsError."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return parse_scenario(read_text(path), name, path.parent)
    if name not in built_in_names():
        there = ", ".join(built_in_names())
        raise SettingsError(f"there is no file and no built-in scenario {name!r}; built in are {there}")
    return parse_scenario(_BUILT_IN.joinpath(f"{name}.yaml").read_text(), name, Path())


def parse_scenario(text: str, name: str, base: Path) -> Scenario:
    """The scenario in `text`, called `name` in messages; relative paths start at `base`. Raises
    SettingsError."""
    raw, lines = parse_mapping(text, name)
    reader = ModelReader(name, raw, lines)
    for place, number in _infinite(raw, ()):
        reader.problem(place, f"{'.'.join(map(str, place))}: {number} is no number to calculate with")
    scenario = None if reader.problems else reader.read(Scenario, raw)
    if scenario is not None:
        scenario = _look_across(reader, scenario, base)
    if reader.problems or scenario is None:
        raise SettingsError(*reader.sentences())
    return scenario


def _look_across(reader: ModelReader, scenario: Scenario, base: Path) -> Scenario:
    """Complain of what no part can see alone; the scenario with its trace files found."""
    replicas = [(name, i) for i, group in enumerate(scenario.fleet) for name in group.replica_names]
    for name, i in _twice(replicas):
        reader.problem(("fleet", i), f"fleet.{i}: there is another replica {name!r}")
    for name, i in _twice([(source.name, i) for i, source in enumerate(scenario.workload.sources)]):
        place = ("workload", "sources", i, "name")
        reader.problem(place, f"workload.sources.{i}: there is another source {name!r}")
    _look_at_size(reader, scenario)
    for i, fault in enumerate(scenario.faults):
        _look_at_fault(reader, scenario, i, fault)
    sources = []
    for i, source in enumerate(scenario.workload.sources):
        sources.append(_with_trace(reader, scenario, ("workload", "sources", i, "trace"), source, base))
    workload = scenario.workload.model_copy(update={"sources": tuple(sources)})
    return scenario.model_copy(update={"workload": workload})


def _with_trace(
    reader: ModelReader, scenario: Scenario, place: Place, source: SourceModel, base: Path
) -> SourceModel:
    """The source with its trace file found, if it has one; complains of a trace that cannot be used."""
    if source.trace is None or source.curve is None:
        return source
    trace = source.trace.model_copy(update={"file": base / source.trace.file})
    name = ".".join(map(str, place))
    if not trace.file.is_file():
        reader.problem((*place, "file"), f"{name}.file: there is no file {trace.file}")
        return source
    try:
        why = shortfall(trace, source.curve.times(scenario.workload.times), scenario.duration)
    except ValueError as error:
        why = str(error)
    if why is not None:
        reader.problem(place, f"{name}: {why}")
    return source.model_copy(update={"trace": trace})


def _look_at_size(reader: ModelReader, scenario: Scenario) -> None:
    replicas = len(scenario.replica_names)
    if replicas > _MOST_REPLICAS:
        reader.problem(("fleet",), f"fleet: {replicas:,} replicas are more than {_MOST_REPLICAS:,}")
    try:
        scenario.check_requests()
    except ValueError as error:
        reader.problem(("workload",), f"workload: {error}")


def _infinite(value: Any, place: Place) -> Iterator[tuple[Place, float]]:
    """Where a document has an infinity or no number at all (`.inf`, `.nan`)."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _infinite(item, (*place, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _infinite(item, (*place, i))
    elif isinstance(value, float) and not isfinite(value):
        yield place, value


def _look_at_fault(reader: ModelReader, scenario: Scenario, i: int, fault: Any) -> None:
    place = ("faults", i)
    if fault.at >= scenario.duration:
        when = f"{fault.at:g} s is not before the end of the run ({scenario.duration:g} s)"
        reader.problem((*place, "at"), f"faults.{i}.at: {when}")
    replica = getattr(fault, "replica", None)
    if replica is not None and replica not in scenario.replica_names:
        there = ", ".join(scenario.replica_names)
        reader.problem((*place, "replica"), f"faults.{i}: there is no replica {replica!r}, there are {there}")
    node = getattr(fault, "node", None)
    if node is not None and node not in scenario.nodes:
        there = ", ".join(scenario.nodes)
        reader.problem((*place, "node"), f"faults.{i}: there is no node {node!r}, there are {there}")
    rack = getattr(fault, "rack", None)
    racks = Gpus(scenario.gpus or GpuWatching(), scenario.nodes).racks
    if rack is not None and rack not in racks:
        there = f"there are {', '.join(racks)}" if racks else "gpus.nodes_per_rack makes them"
        reader.problem((*place, "rack"), f"faults.{i}: there is no rack {rack!r}, {there}")


def _twice(named: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Names that were there before, with where they stand."""
    seen: set[str] = set()
    for name, place in named:
        if name in seen:
            yield name, place
        seen.add(name)

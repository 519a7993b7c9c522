"""Short scenarios for tests: a small engine that is easily full, and one source."""

from pathlib import Path
from typing import Any

from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.reading import parse_scenario
from controlplane.simulator.scenario.result import Result, result_of
from controlplane.simulator.scenario.run import Run

BASE = """\
title: a test
duration: {duration}
warmup: {warmup}
seed: {seed}
fleet:
  - engine: {engine}
    options: {{max_num_seqs: {max_num_seqs}}}
    replicas: {replicas}
    cold_start: 30s
    cold_start_cv: 0
slo: {{ttft: 1s, tpot: 50ms}}
policy: {policy}
workload:
  times: {times}
  sources:
    - name: chat
      mix: azure-conv
      rate: {rate}
{more}"""


SLOWER = {"engine": "a100-8b", "max_num_seqs": 128, "rate": 6.0}


def scenario(more: str = "", **values: Any) -> Scenario:
    """A scenario of one H100 (whose 1x is 17.5 requests/s); `more` is put behind it.

    An A100 (`SLOWER`) shows the same for a third of the work.
    """
    defaults = {
        "duration": "90s",
        "warmup": "30s",
        "seed": 1,
        "replicas": 1,
        "engine": "h100-8b",
        "max_num_seqs": 256,
        "policy": "slo",
        "times": 1,
        "rate": 17.5,
    }
    return parse_scenario(BASE.format(more=more, **{**defaults, **values}), "test.yaml", Path())


def ran(given: Scenario) -> tuple[Run, Result]:
    """The run of a scenario, and its result."""
    run = Run(given)
    run.go()
    return run, result_of(run, "test")

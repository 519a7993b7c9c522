"""The recording rules over the GPU exporters' series: every name of a field, and whose a GPU is."""

import re
from pathlib import Path

import pytest
from promtool import SETTINGS, needed, needs_promtool, run

from controlplane.render import gpu_rules, rule_files
from controlplane.render.rule import Group, Recording
from controlplane.render.yaml_file import yaml_file
from controlplane.sources.dcgm_fields import fields

ROW = 'job="llm-gpu",instance="10.0.0.3:9400",UUID="GPU-1",gpu="0"'
EXPORTER = 'namespace="gpu-operator",pod="dcgm-exporter-x"'
ENGINE = 'namespace="serving",pod="vllm-0"'


def test_a_rule_that_knows_a_field_knows_all_its_names() -> None:
    """A rename of DCGM's empties no panel and silences no alert, whichever name is asked for."""
    for rule in gpu_rules.groups(SETTINGS.gpu_job)[0].rules:
        assert isinstance(rule, Recording)
        names = set(re.findall(r"DCGM_FI_[A-Z0-9_]+", rule.expr))
        for field in fields():
            assert names.isdisjoint(field.names) or names.issuperset(field.names), (rule.name, field.names)


@needs_promtool
@pytest.mark.parametrize(
    ("target", "row", "expected"),
    [
        ("", ENGINE, ENGINE),
        ("", "", None),
        (EXPORTER, f'{EXPORTER},exported_namespace="serving",exported_pod="vllm-0"', ENGINE),
        (EXPORTER, ENGINE, ENGINE),  # honorLabels: true
        (EXPORTER, EXPORTER, None),  # given to nobody: the target's own label stands there
    ],
)
def test_a_gpu_is_of_the_pod_that_has_it_and_never_of_its_exporter(
    tmp_path: Path, target: str, row: str, expected: str | None
) -> None:
    rules = Group("recordings", needed("llm:gpu_pod"))
    text = yaml_file("", {"groups": [rule_files._group(rules, SETTINGS)]})
    samples = [] if expected is None else [{"labels": f'llm:gpu_pod{{UUID="GPU-1",{expected}}}', "value": 1}]
    up = ",".join(filter(None, ('job="llm-gpu",instance="10.0.0.3:9400"', target)))
    used = ",".join(filter(None, (ROW, row)))
    tests = [
        {
            "interval": "30s",
            "input_series": [
                {"series": f"up{{{up}}}", "values": "1x20"},
                {"series": f"DCGM_FI_DEV_FB_USED{{{used}}}", "values": "81000x20"},
            ],
            "promql_expr_test": [{"expr": "llm:gpu_pod", "eval_time": "5m", "exp_samples": samples}],
        }
    ]
    done = run(tmp_path, {"rules.yaml": text}, {"evaluation_interval": "30s", "tests": tests}, ["recordings"])
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"

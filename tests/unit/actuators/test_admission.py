"""The admission policies that we ship: what the actuators change passes, and anything else does not."""

import copy
import sys
from pathlib import Path
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from celpy.celtypes import BoolType, MapType, StringType
from kube_api.access import Ask, allows, service_account
from shipped import documents, rights
from test_rights import World, world

from controlplane.signals.marks import TAINT_KEY
from controlplane.signals.serving import ANNOTATION, GATE, LABEL

OBJECTS = {
    "quarantine": ("nodes", "n1", "nodes"),
    "rotation": ("pods", "a", "pods"),
    "scale": ("pods", "a", "pods"),
    "readiness-gate": ("pods", "g", "pods/status"),
}
_depth = sys.getrecursionlimit()
COST = "controller.kubernetes.io/pod-deletion-cost"
DAEMON = service_account("controlplane", "controlplane")
ENVIRONMENT = celpy.Environment()
sys.setrecursionlimit(_depth)  # which it raises, for all other tests of the process too


class Policy:
    """The rules of a component's policy, as the API server would ask them.

    The daemon has the rights of the component, and those of `others`.
    """

    def __init__(self, component: str, *others: str) -> None:
        self.policy, self.binding = documents(f"components/{component}/admission.yaml")
        rules = self.policy["spec"]["validations"]
        authorizer = _authorizer(rights(component, *others))
        self._programs = [(_program(rule["expression"], authorizer), rule["message"]) for rule in rules]

    def objections(self, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
        given = {"object": json_to_cel(new), "oldObject": json_to_cel(old), "authorizer": MapType({})}
        return [message for program, message in self._programs if not program.evaluate(given)]

    def binds(self, user: str) -> bool:
        (condition,) = self.policy["spec"]["matchConditions"]
        request = json_to_cel({"userInfo": {"username": user}})
        return bool(_program(condition["expression"]).evaluate({"request": request}))


def _program(expression: str, functions: dict[str, Any] | None = None) -> Any:
    return ENVIRONMENT.program(ENVIRONMENT.compile(expression), functions=functions)


def _authorizer(granted: list[dict[str, Any]]) -> dict[str, Any]:
    """What can be asked of the API server's variable `authorizer`, each question another step of an `Ask`."""
    stored: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for one in granted:
        key = one["metadata"].get("namespace", ""), one["metadata"]["name"]
        stored.setdefault((one["apiVersion"].partition("/")[0], f"{one['kind'].lower()}s"), {})[key] = one

    def step(name: str) -> Any:
        return lambda asked, value: MapType({**asked, StringType(name): value})

    def allowed(asked: MapType) -> BoolType:
        ask = Ask(**{str(name): str(value) for name, value in asked.items()})
        return BoolType(allows(stored, DAEMON, ask))

    steps = {name: step(name) for name in ("group", "resource", "namespace")}
    return {**steps, "check": step("verb"), "allowed": allowed}


def filled(cluster: World, resource: str, name: str) -> dict[str, Any]:
    """The object with something of everybody else's in each place that the daemon could spoil."""
    metadata = {"labels": {"theirs": "1"}, "annotations": {"theirs": "1"}, "finalizers": ["theirs/f"]}
    cluster.api.patch(resource, name, {"metadata": metadata})
    if resource == "nodes":
        taints = [{"key": "theirs", "effect": "NoExecute"}]
        cluster.api.patch(resource, name, {"spec": {"taints": taints, "podCIDR": "10.0.0.0/24"}})
    found: dict[str, Any] = cluster.api.get(resource, name)
    return found


@pytest.mark.parametrize("component", OBJECTS)
async def test_what_the_actuators_change_passes(component: str, tmp_path: Path) -> None:
    resource, name, matched = OBJECTS[component]
    policy = Policy(component)
    (rule,) = policy.policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == [matched]
    async with world(tmp_path, component) as cluster:
        before = filled(cluster, resource, name)
        await cluster.act(component)
        after = cluster.api.get(resource, name)
        if component != "scale":  # of two pods it marks the one that may go first
            assert after != before
        assert policy.objections(before, after) == []
        assert policy.objections(after, before) == [], "it may be undone"


def spoiled(thing: dict[str, Any], component: str) -> list[tuple[str, dict[str, Any]]]:
    """The object with one thing of others changed in each, and a part of the objection that it must meet."""
    found: list[tuple[str, dict[str, Any]]] = []

    def one(part: str) -> dict[str, Any]:
        found.append((part, copy.deepcopy(thing)))
        return found[-1][1]

    one("metadata.labels")["metadata"]["labels"]["theirs"] = "2"
    one("metadata.labels")["metadata"]["labels"]["new"] = "1"
    one("metadata.labels")["metadata"]["labels"].pop("theirs")
    one("metadata.labels")["metadata"].pop("labels")
    one("metadata.annotations")["metadata"]["annotations"]["theirs"] = "2"
    one("metadata.annotations")["metadata"]["annotations"]["new"] = "1"
    one("metadata.annotations")["metadata"]["annotations"].pop("theirs")
    one("metadata.finalizers")["metadata"].pop("finalizers")
    one("metadata.finalizers")["metadata"]["finalizers"].append("ours/f")
    one("metadata.ownerReferences")["metadata"]["ownerReferences"] = [{"kind": "Node", "name": "x"}]
    if component == "quarantine":
        one("spec.taints")["spec"]["taints"] = []
        one("spec.taints")["spec"]["taints"].append({"key": "new", "effect": "NoSchedule"})
        one("spec.taints")["spec"]["taints"][0]["effect"] = "NoSchedule"
        one("has the effect")["spec"]["taints"].append({"key": TAINT_KEY, "effect": "NoExecute"})
        one("spec.podCIDR ")["spec"]["podCIDR"] = "10.9.0.0/24"
        one("spec.providerID")["spec"]["providerID"] = "x"
    elif component == "readiness-gate":
        one("status.conditions")["status"]["conditions"].append({"type": "Ready2", "status": "True"})
        one("status.conditions")["status"]["conditions"] = []
        one("metadata.labels")["metadata"]["labels"][LABEL] = "false"
        one("status but")["status"]["phase"] = "Failed"
        one("status but")["status"]["podIP"] = "10.9.9.9"
        one("status but")["status"]["startTime"] = "2020-01-01T00:00:00Z"
        one("status but")["status"]["initContainerStatuses"] = [{"name": "x"}]
        one("status but")["status"].pop("phase")
    else:
        one("spec is not")["spec"]["containers"][0]["image"] = "evil"
        one("is true or false")["metadata"]["labels"][LABEL] = "maybe"
        if component == "rotation":
            one("to write deletion-costs")["metadata"]["annotations"][COST] = "-1000"
        else:
            one("to write rotation")["metadata"]["labels"][LABEL] = "false"
            one("to write rotation")["metadata"]["labels"].pop(LABEL)
            one("to write rotation")["metadata"]["annotations"][ANNOTATION] = "x"
    return found


@pytest.mark.parametrize("component", OBJECTS)
async def test_anything_else_is_denied(component: str, tmp_path: Path) -> None:
    resource, name, _ = OBJECTS[component]
    policy = Policy(component)
    async with world(tmp_path, component) as cluster:
        before = filled(cluster, resource, name)
    if component == "readiness-gate":
        conditions = before["status"].setdefault("conditions", [])
        conditions.extend([{"type": GATE, "status": "True"}, {"type": "Ready", "status": "True"}])
    for part, after in spoiled(before, component):
        objections = policy.objections(before, after)
        assert any(part in objection for objection in objections), (part, objections)


async def test_the_two_that_change_pods_go_together(tmp_path: Path) -> None:
    async with world(tmp_path, "rotation", "scale") as cluster:
        before = filled(cluster, "pods", "a")
        await cluster.act("rotation")
        after = cluster.api.get("pods", "a")
    after["metadata"]["annotations"][COST] = "-1000"
    assert before["metadata"]["labels"] != after["metadata"]["labels"]
    for one, other in (("rotation", "scale"), ("scale", "rotation")):
        assert Policy(one, other).objections(before, after) == []
        assert Policy(one).objections(before, after) != []


@pytest.mark.parametrize("component", OBJECTS)
def test_only_the_daemon_is_bound_and_it_is_denied(component: str) -> None:
    policy = Policy(component)
    assert policy.binds("system:serviceaccount:controlplane:controlplane")
    assert not policy.binds("system:serviceaccount:kube-system:node-controller")
    assert policy.binding["spec"] == {
        "policyName": policy.policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }
    assert policy.policy["spec"]["failurePolicy"] == "Fail"

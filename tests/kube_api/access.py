"""RBAC: what a user may do, by the roles and bindings that are in the store."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kube_api.resources import RBAC

MASTERS = "system:masters"


@dataclass(frozen=True)
class User:
    name: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Ask:
    """What somebody wants to do. `resource` is "pods" or "pods/status"; `namespace` "" for the cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


def service_account(namespace: str, name: str) -> User:
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    return User(f"system:serviceaccount:{namespace}:{name}", frozenset(groups))


Objects = Mapping[tuple[str, str], Mapping[tuple[str, str], Mapping[str, Any]]]


def allows(objects: Objects, user: User, ask: Ask) -> bool:
    """Whether a role that is bound to the user has a rule for it."""
    if MASTERS in user.groups:
        return True
    return any(_covers(rule, ask) for rule in _rules(objects, user, ask.namespace))


def refusal(user: User, ask: Ask) -> str:
    plural = ask.resource.partition("/")[0]
    of = f'{ask.resource} "{ask.name}"' if ask.name else ask.resource
    where = f'in the namespace "{ask.namespace}"' if ask.namespace else "at the cluster scope"
    wanted = (
        f'User "{user.name}" cannot {ask.verb} resource "{ask.resource}" in API group "{ask.group}" {where}'
    )
    return f"{of.replace(ask.resource, plural, 1)} is forbidden: {wanted}"


def _rules(objects: Objects, user: User, namespace: str) -> Iterator[Mapping[str, Any]]:
    def of(kind: str) -> Mapping[tuple[str, str], Mapping[str, Any]]:
        return objects.get((RBAC, kind), {})

    bindings: Iterable[tuple[str, Mapping[str, Any]]] = [
        *(("", binding) for binding in of("clusterrolebindings").values()),
        *(
            (space, binding)
            for (space, _), binding in of("rolebindings").items()
            if namespace and space == namespace
        ),
    ]
    for space, binding in bindings:
        if not any(_is(user, subject, space) for subject in binding.get("subjects") or ()):
            continue
        reference = binding["roleRef"]
        role = (
            of("clusterroles").get(("", reference["name"]))
            if reference["kind"] == "ClusterRole"
            else of("roles").get((space, reference["name"]))
        )
        yield from (role or {}).get("rules") or ()


def _is(user: User, subject: Mapping[str, Any], space: str) -> bool:
    match subject["kind"]:
        case "User":
            return subject["name"] == user.name
        case "Group":
            return subject["name"] in user.groups
        case _:
            return user.name == f"system:serviceaccount:{subject.get('namespace', space)}:{subject['name']}"


def _covers(rule: Mapping[str, Any], ask: Ask) -> bool:
    sub = ask.resource.partition("/")[2]
    resources = rule.get("resources") or ()
    names = rule.get("resourceNames") or ()
    return (
        bool({ask.verb, "*"} & set(rule.get("verbs") or ()))
        and bool({ask.group, "*"} & set(rule.get("apiGroups") or ()))
        and any(one in ("*", ask.resource) or (sub and one == f"*/{sub}") for one in resources)
        and (not names or ask.name in names)
    )

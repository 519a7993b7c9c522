"""What the custom objects that we write may have in them.

Only fields that we use, strictly: one that is not listed is a mistake. Written after what is documented of
KEDA 2.18 (keda.sh/docs: ScaledObject spec, Authentication) and Kueue 0.15 (kueue.sigs.k8s.io: v1beta2);
their own CRDs are not on the package index.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
SELECTOR: Schema = {"type": "object", "properties": {"matchLabels": LABELS}, "additionalProperties": False}


def some(*required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def whole(spec: Schema) -> Schema:
    metadata = some("name", name=TEXT, namespace=TEXT, labels=LABELS)
    return some(
        "apiVersion", "kind", "metadata", "spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec
    )


_POLICY = some(
    "type",
    "value",
    "periodSeconds",
    type={"enum": ["Pods", "Percent"]},
    value={"type": "integer", "minimum": 1},
    periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
)
_RULES = some(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    tolerance=QUANTITY,
    policies=many(_POLICY),
)
_TRIGGER = some(
    "type",
    "metadata",
    type=TEXT,
    name=TEXT,
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=LABELS,
    authenticationRef=some("name", name=TEXT, kind=TEXT),
)
_SCALED_OBJECT = some(
    "scaleTargetRef",
    "triggers",
    scaleTargetRef=some("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
    pollingInterval=COUNT,
    cooldownPeriod=COUNT,
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    fallback=some(
        "failureThreshold",
        "replicas",
        failureThreshold=COUNT,
        replicas=COUNT,
        behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
    ),
    advanced=some(
        horizontalPodAutoscalerConfig=some(behavior=some(scaleUp=_RULES, scaleDown=_RULES)),
    ),
    triggers=many(_TRIGGER),
)
_QUOTA = some(
    "name", "nominalQuota", name=TEXT, nominalQuota=QUANTITY, lendingLimit=QUANTITY, borrowingLimit=QUANTITY
)
_GROUP = some(
    "coveredResources",
    "flavors",
    coveredResources=many(TEXT),
    flavors=many(some("name", "resources", name=TEXT, resources=many(_QUOTA))),
)

SCHEMAS: dict[tuple[str, str], Schema] = {
    ("keda.sh/v1alpha1", "ScaledObject"): whole(_SCALED_OBJECT),
    ("keda.sh/v1alpha1", "TriggerAuthentication"): whole(
        some(
            "secretTargetRef",
            secretTargetRef=many(some("parameter", "name", "key", parameter=TEXT, name=TEXT, key=TEXT)),
        )
    ),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): whole(
        some(
            nodeLabels=LABELS,
            tolerations=many(some(key=TEXT, operator={"enum": ["Exists", "Equal"]}, effect=TEXT)),
        )
    ),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): whole(
        some(
            cohortName=TEXT,
            namespaceSelector=SELECTOR,
            resourceGroups=many(_GROUP),
            preemption=some(
                reclaimWithinCohort={"enum": ["Never", "LowerPriority", "Any"]},
                withinClusterQueue={"enum": ["Never", "LowerPriority", "LowerOrNewerEqualPriority"]},
            ),
        )
    ),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): whole(some("clusterQueue", clusterQueue=TEXT)),
}

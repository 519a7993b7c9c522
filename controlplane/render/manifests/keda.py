"""KEDA: a ScaledObject for each pool, either of two kinds.

    external      gRPC, both sides with certificates; finds the leader by itself, and knows fractions
    metrics-api   HTTP with a token that opens nothing else

Both have the target 1 for each replica, so that the value is the count (api/autoscaling.py says which). The
daemon weighs each step itself; the HPA must not wait once more. While the daemon is away, nothing goes.
"""

from controlplane.render.manifests.parts import API_PORT, DAEMON, SCALER, SCALER_PORT, Object, made
from controlplane.render.manifests.settings import ManifestSettings, Pool

TOKEN = "controlplane-autoscaling"  # noqa: S105 - the name of the secret
CLIENT = f"{SCALER}-client"
_GROUP = "keda.sh/v1alpha1"


def external(settings: ManifestSettings) -> list[Object]:
    """The secret CLIENT has ca.crt, tls.crt and tls.key, as cert-manager makes it."""
    parameters = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
    address = f"{SCALER}.{settings.namespace}.svc:{SCALER_PORT}"
    return [
        _authentication(settings, CLIENT, parameters),
        *(
            _scaled(settings, name, pool, "external", {"scalerAddress": address, "pool": name})
            for name, pool in settings.pools.items()
        ),
    ]


def metrics_api(settings: ManifestSettings) -> list[Object]:
    """The secret TOKEN is in both namespaces: the daemon compares what KEDA shows."""
    base = f"http://{DAEMON}.{settings.namespace}.svc:{API_PORT}/api/v1/autoscaling"
    query = "?tolerance=0" if settings.hpa_tolerance else ""
    return [
        _authentication(settings, TOKEN, {"token": "token"}),
        *(
            _scaled(
                settings,
                name,
                pool,
                "metrics-api",
                {
                    "url": f"{base}/{name}{query}",
                    "valueLocation": "value",
                    "targetValue": "1",
                    "authMode": "bearer",
                },
            )
            for name, pool in settings.pools.items()
        ),
    ]


def _authentication(settings: ManifestSettings, secret: str, parameters: dict[str, str]) -> Object:
    wanted = [{"parameter": name, "name": secret, "key": key} for name, key in parameters.items()]
    return made(
        _GROUP, "TriggerAuthentication", "controlplane", settings.serving, spec={"secretTargetRef": wanted}
    )


def _scaled(settings: ManifestSettings, name: str, pool: Pool, kind: str, metadata: dict[str, str]) -> Object:
    exact = settings.hpa_tolerance
    if exact and kind == "external":
        metadata = {**metadata, "tolerance": "0"}
    at_once = {"stabilizationWindowSeconds": 0, **({"tolerance": "0"} if exact else {})}
    return made(
        _GROUP,
        "ScaledObject",
        f"engines-{name}",
        settings.serving,
        spec={
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"engines-{name}"},
            "pollingInterval": 15,
            "cooldownPeriod": 300,
            "minReplicaCount": pool.least,
            "maxReplicaCount": pool.most,
            "fallback": {
                "failureThreshold": 4,
                "replicas": max(pool.least, 1),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {
                        "scaleUp": {
                            **at_once,
                            "policies": _at_most(percent=100, pods=4, seconds=15),
                        },
                        "scaleDown": {
                            **at_once,
                            "policies": _at_most(percent=10, pods=1, seconds=60),
                        },
                    }
                }
            },
            "triggers": [
                {
                    "type": kind,
                    "metricType": "AverageValue",
                    "metadata": metadata,
                    "authenticationRef": {"name": "controlplane"},
                }
            ],
        },
    )


def _at_most(*, percent: int, pods: int, seconds: int) -> list[Object]:
    """The larger of the two within so many seconds."""
    return [
        {"type": "Percent", "value": percent, "periodSeconds": seconds},
        {"type": "Pods", "value": pods, "periodSeconds": seconds},
    ]

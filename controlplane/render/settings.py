"""What differs from one installation to the next."""

import msgspec


class RenderSettings(msgspec.Struct, frozen=True):
    """Job names are regexes, as `job` labels say who is scraped; `runbooks` is where the pages are served.

    `gateway_secret` is the secret with the gateways' control token, in the namespace of the monitors: where
    tenants have keys, a gateway shows its metrics to nobody else.
    """

    engine_job: str = "llm-engine"
    gpu_job: str = "llm-gpu"
    daemon_job: str = "controlplane"
    gateway_job: str = "controlplane-gateway"
    runbooks: str = "docs/runbooks"
    gateway_secret: str = ""

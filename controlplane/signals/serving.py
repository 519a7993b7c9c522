"""What is written on a pod that gets no new requests: the label, annotation and condition that are ours."""

from controlplane.signals.pod import OURS

LABEL = f"{OURS}serving"
"""The label that a Service selects on: "true" from the pod's template on, "false" while we keep it out."""

ANNOTATION = f"{OURS}out"
"""On a pod that we took out by its label: the reason, then since when. Without it, somebody else did."""

GATE = f"{OURS}admit"
"""The condition that is False while we keep a pod out, for pods that name it as a readiness gate."""


def out_reason(annotations: dict[str, str]) -> str:
    """Why we took a pod out by its label; empty where we did not."""
    return annotations.get(ANNOTATION, "").partition(" ")[0]

"""Pages as dcgm-exporter prints them, of our own making."""

from collections.abc import Mapping

A = "GPU-11111111-0000-4000-8000-00000000000a"
B = "GPU-11111111-0000-4000-8000-00000000000b"


def row(name: str, value: object, uuid: str = A, gpu: int = 0, **labels: str) -> str:
    """One line; further labels come last, as `pod="chat-0"`."""
    own: Mapping[str, str] = {
        "gpu": str(gpu),
        "UUID": uuid,
        "pci_bus_id": f"00000000:{0x1B + gpu:02X}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": "ACME G100",
        **labels,
    }
    printed = ",".join(f'{key}="{text}"' for key, text in own.items())
    return f"{name}{{{printed}}} {value}\n"


def page(*rows: str) -> bytes:
    return "".join(rows).encode()

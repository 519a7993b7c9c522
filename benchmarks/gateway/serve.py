"""The gateway itself, as the benchmark starts it: one process, enforcing.

python serve.py PORT UPSTREAM_PORT [FOLDER]      FOLDER: with cert.pem and key.pem, for TLS
"""

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import uvloop

from controlplane.gateway.settings import GatewayProcessSettings
from controlplane.gateway.worker import Setup, Worker
from controlplane.gateway.workers import spare_collector
from controlplane.policy.settings import PolicySettings
from controlplane.sources.settings import ScrapeSettings, TargetSettings


async def main(port: int, upstream: int, certificate: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = GatewayProcessSettings.model_validate(
            {
                "name": "bench",
                "listen": f"127.0.0.1:{port}",
                "control": {"listen": "127.0.0.1:0", "state_file": str(Path(folder, "state.json"))},
                "admission": {"mode": "enforce"},
                "tls": certificate
                and {"cert_file": certificate / "cert.pem", "key_file": certificate / "key.pem"},
                "drain": {"settle": 0, "deadline": "1s"},
            }
        )
        target = TargetSettings(static=(f"http://127.0.0.1:{upstream}",))
        # The cost of passing on is measured here, not how much a stand-in can hold.
        policy = PolicySettings.model_validate({"pools": {"chat": {"limits": {"law": "none"}}}})
        spare_collector()
        worker = Worker(Setup(settings, {"chat": target}, ScrapeSettings(), {}, policy=policy))
        await worker.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.is_stopped.wait()


uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))

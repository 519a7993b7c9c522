"""The gateway itself, as the benchmark starts it: one process, enforcing.

python serve.py PORT UPSTREAM_PORT
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
from controlplane.sources.settings import ScrapeSettings, TargetSettings


async def main(port: int, upstream: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = GatewayProcessSettings.model_validate(
            {
                "name": "bench",
                "listen": f"127.0.0.1:{port}",
                "control": {"listen": "127.0.0.1:0", "state_file": str(Path(folder, "state.json"))},
                "admission": {"mode": "enforce"},
                "drain": {"settle": 0, "deadline": "1s"},
            }
        )
        target = TargetSettings(static=(f"http://127.0.0.1:{upstream}",))
        spare_collector()
        worker = Worker(Setup(settings, {"chat": target}, ScrapeSettings(), {}))
        await worker.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.is_stopped.wait()


uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))

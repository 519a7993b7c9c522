"""vLLM metrics pages on loopback whose counters are known to the last token, served by a thread."""

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field

TTFT_BOUNDS = (0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5)


@dataclass
class Engine:
    """One engine process: its counters begin at 0 with it."""

    started: float = field(default_factory=time.time)
    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)

    def serve(self, luck: random.Random) -> None:
        """One request comes and is finished."""
        self.finished += 1
        self.prompt_tokens += luck.randint(1, 4000)
        self.generation_tokens += luck.randint(2, 500)
        self.preemptions += luck.random() < 0.05
        self.ttft.append(luck.lognormvariate(-1.0, 1.0))
        self.tpot.append(luck.lognormvariate(-3.5, 0.5))

    def page(self) -> bytes:
        labels = 'engine="0",model_name="acme/tiny"'
        lines = [
            f"process_start_time_seconds {self.started}",
            f"vllm:num_requests_running{{{labels}}} {self.finished % 7}",
            f"vllm:num_requests_waiting{{{labels}}} {self.finished % 3}",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
            f"vllm:num_preemptions_total{{{labels}}} {self.preemptions}",
            f"vllm:prompt_tokens_total{{{labels}}} {self.prompt_tokens}",
            f"vllm:generation_tokens_total{{{labels}}} {self.generation_tokens}",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {self.finished}',
        ]
        for name, values, bounds in (
            ("time_to_first_token_seconds", self.ttft, TTFT_BOUNDS),
            ("request_time_per_output_token_seconds", self.tpot, TPOT_BOUNDS),
        ):
            for bound in bounds:
                count = sum(value <= bound for value in values)
                lines.append(f'vllm:{name}_bucket{{{labels},le="{bound}"}} {count}')
            lines.append(f'vllm:{name}_bucket{{{labels},le="+Inf"}} {len(values)}')
            lines.append(f"vllm:{name}_sum{{{labels}}} {sum(values)}")
            lines.append(f"vllm:{name}_count{{{labels}}} {len(values)}")
        return ("\n".join(lines) + "\n").encode()


class Exporters:
    """Some engines, each on a port of its own, and a load on all that are not in `paused`."""

    def __init__(self, count: int, seed: int, requests_per_second: float = 40.0) -> None:
        self.engines = [Engine() for _ in range(count)]
        self.gone: list[Engine] = []  # processes before the last one
        self.paused: set[int] = set(range(count))
        self.urls: list[str] = []
        self._servers: list[asyncio.Server] = []
        self._luck = random.Random(seed)
        self._pause = 1.0 / requests_per_second
        self._lock = threading.Lock()  # between two requests: pages and restarts see whole ones
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Exporters":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def restart(self, i: int) -> None:
        """Another process takes the place of engine `i`."""
        with self._lock:
            self.gone.append(self.engines[i])
            # A real start takes longer than the second within which start times count as the same.
            self.engines[i] = Engine(started=self.engines[i].started + 60.0)

    def total(self, name: str) -> int:
        """What all processes together have counted."""
        with self._lock:
            return sum(getattr(engine, name) for engine in (*self.engines, *self.gone))

    async def _start(self) -> None:
        for i in range(len(self.engines)):
            server = await asyncio.start_server(lambda r, w, i=i: self._answer(i, r, w), "127.0.0.1", 0)
            self._servers.append(server)
            self.urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        self._task = asyncio.create_task(self._work())

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            with self._lock:
                for i, engine in enumerate(self.engines):
                    if i not in self.paused and self._luck.random() < 0.8:
                        engine.serve(self._luck)

    async def _answer(self, i: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                with self._lock:
                    body = self.engines[i].page()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

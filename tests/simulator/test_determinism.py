"""The same seed gives the same bytes, in another process too."""

import hashlib
import os
import subprocess
import sys

import msgspec
import numpy as np

from controlplane.simulator.clients import Clients, HangUp, Send
from controlplane.simulator.constants import engine_model
from controlplane.simulator.engine import Engine
from controlplane.simulator.metrics_page import Replica, render, scrape
from controlplane.simulator.mixes import mix
from controlplane.simulator.request import Finished, FirstToken
from controlplane.simulator.workload import Backoff, Patience, Retry
from tests.simulator.laws import LawfulEngine


def digest(seed: int) -> str:
    """A minute of an overloaded engine with impatient clients that retry, as one hash."""
    model = engine_model("h100-8b")
    build, send = np.random.default_rng(seed).spawn(2)
    sources = [
        msgspec.structs.replace(
            source,
            patience=Patience(first_token_seconds=3.0),
            retry=Retry(Backoff.FULL_JITTER, tries=3, first_seconds=1.0),
        )
        for source in mix("azure-conv").build(40.0, 60.0, build)
    ]
    clients = Clients(sources, send, 60.0)
    engine = LawfulEngine(Engine(model.law, model.settings))
    record = hashlib.sha256()
    while (now := min(clients.next_event_time(), engine.next_event_time())) < 80.0:
        for action in clients.advance(now):
            if isinstance(action, Send):
                engine.submit(action.request, now)
            elif isinstance(action, HangUp):
                engine.abort(action.request_id, now)
        for event in engine.advance(now):
            record.update(msgspec.json.encode(event))
            if isinstance(event, FirstToken):
                clients.first_token(event.request_id)
            elif isinstance(event, Finished):
                clients.finished(event.request_id, now)
    engine.check()
    replica = Replica("m", 0.0, model.settings)
    record.update(render(replica, engine.engine.counters))
    record.update(msgspec.json.encode(scrape(replica, engine.engine.counters, "r", 80.0, 0.0)))
    record.update(msgspec.json.encode(clients.tallies))
    assert engine.aborted > 0
    return record.hexdigest()


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_another_process_gives_them_too() -> None:
    """With another hash seed, so no order of a set or of an object's address gets in."""
    code = "from tests.simulator.test_determinism import digest; print(digest(1))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.stdout.strip() == digest(1)

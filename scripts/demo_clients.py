#!/usr/bin/env python3
"""The demo's clients alone: they ask URL for MODEL for ever, too much every other two minutes.

demo_clients.py URL MODEL
"""

import asyncio
import sys

from demo_load import Load, Phase

PHASES = (
    Phase("light", 120.0, 0.5, "half of what the demo's fleet can answer"),
    Phase("overload", 120.0, 2.0, "twice what it can"),
)

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} URL MODEL")
    asyncio.run(Load(sys.argv[1], sys.argv[2], PHASES).run())

"""Engines of the simulator behind HTTP, in real time: to its clients each is a vLLM server.

An engine's clock is the wall clock. `Drive` carries the engine along: it wakes when the next step ends, tells
each request of its new tokens and sleeps again. Everything else is what a vLLM server does around its engine:
`ask` reads requests, `answer` knows what will be said, `shapes` prints it, `routes` answers, `dcgm` is the
exporter beside it, `faults` breaks things on purpose.

What a request says is settled when it comes (see `answer`), so that the same question gets the same answer
whatever else goes on; only when each token comes is up to the engine.
"""

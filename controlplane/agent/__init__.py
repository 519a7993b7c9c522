"""The node agent: what one node knows about its GPUs, from NVML, and never more than it knows.

A wedged driver parks whoever calls it in the kernel, for ever and beyond any signal. So NVML is called in a
child process (`child`), which prints what it sees; the parent (`watch`) reads with a deadline, says "cannot
see since" when it passes, and serves that all the same (`server`).
"""

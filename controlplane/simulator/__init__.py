"""A fleet of vLLM engines in virtual time: step law, scheduler, workloads, scenarios; and as an HTTP server.

Engines and workloads know no clock and draw no random number of their own: times are arguments (seconds since
the start of the run) and generators are passed in, so the same run gives the same bytes.
"""

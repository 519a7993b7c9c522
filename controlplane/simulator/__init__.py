"""A fleet of vLLM engines in virtual time: step law, scheduler, workloads.

Nothing here knows a clock or draws a random number of its own: times are arguments (seconds since the start
of the run) and generators are passed in, so the same run gives the same bytes.
"""

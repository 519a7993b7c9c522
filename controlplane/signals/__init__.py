"""The vocabulary: readings, counters, histograms, samples, snapshots, decisions, own metrics.

Everything here is an immutable value. Nothing here knows a clock, a network, a thread, a file or a
random number, and nothing here imports another room.
"""

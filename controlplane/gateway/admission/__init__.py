"""Admission without I/O: sizes, reservations, queue, fairness, routing. Time and chance are arguments."""

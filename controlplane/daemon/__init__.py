"""The running control plane: schedule, tick, journal, orders of people, start and stop."""

"""Pure decisions. Time and random numbers are arguments; no network, clock, thread or file is known here."""

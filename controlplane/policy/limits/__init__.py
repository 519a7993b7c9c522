"""Concurrency limits: one small interface (`law.py`), one file a law, and the wait bounds of queues.

Pure: time and random numbers are arguments. `laws.py` lists them all.
"""

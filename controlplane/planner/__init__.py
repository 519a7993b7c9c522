"""Capacity on paper: KV budget, concurrency, fan-out."""

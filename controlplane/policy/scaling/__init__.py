"""How many replicas a pool should have: a law says what it needs, prudence says what is asked for."""

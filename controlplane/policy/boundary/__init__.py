"""The boundary between a short and a long pool: what is seen of both, what is learned from it, the law."""

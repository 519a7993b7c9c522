"""What people install to see the product: dashboards, recording rules, alerts, routes.

Dashboards and alerts ask for two kinds of names only: those of the product's own registries
(`signals/registry.py`, `signals/gateway_registry.py`) and `llm:*`, which recording rules make from the
engines' and the GPU exporters' own series. So an engine that renames a metric changes one row of its dialect
table and no panel, and the engine and GPU panels keep their data while the daemon is away.
"""

"""controlplane: one safe loop from engine and GPU metrics to admission, scaling and repair.

The rooms of the house and what each may import are listed in docs/architecture.md; import-linter
holds them to it.
"""

__version__ = "0.1.0"

"""`controlplane plan`: capacity on paper."""

import click

from controlplane.commands.lazy_group import Lazy, LazyGroup

_COMMANDS = {
    "kv": Lazy("plan_kv:kv", "Show what a model keeps in the KV cache, and how much of it fits."),
    "pools": Lazy("plan_pools:pools", "Show what a short and a long pool would save over one."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def plan() -> None:
    """Work out on paper what a model needs and a replica holds."""

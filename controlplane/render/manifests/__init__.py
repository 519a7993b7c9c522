"""Kubernetes objects that people install: daemon, gateway and what they may do; engines, queues, autoscalers.

A kustomize base holds what is needed to observe. Whatever more the daemon is to do is a component of its own,
with the rights for that and nothing else, so a right that nobody asked for is not there.
"""

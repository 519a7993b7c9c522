"""The data plane in front of the engines: a process of its own, steered by the daemon, safe alone."""

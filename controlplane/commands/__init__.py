"""The commands, one a module; `cli.py` loads the one that is called."""

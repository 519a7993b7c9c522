"""Tests against a real vLLM server on the CPU, and the rig that installs, serves and loads it."""

"""Scenarios: a fleet, a load, faults and a policy in one YAML file, run in virtual time.

Production code runs inside: what scrapes give goes through `policy.tick`, limits come from `policy.limits`,
requests go through `gateway.admission`. Only engines, clients and the passing of time are simulated.
"""

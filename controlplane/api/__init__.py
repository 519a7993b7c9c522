"""The daemon's face: state, decisions, events, orders of people and own metrics over HTTP."""

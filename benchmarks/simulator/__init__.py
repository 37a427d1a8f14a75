"""Discrete-event simulation of many verifiers, drafters and sessions, with the services' own plan and rules."""

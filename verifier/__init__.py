"""Decides: one forward pass of the target over what is ready of all sessions, and what of each draft holds."""

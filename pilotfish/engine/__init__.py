"""What runs a model, for verifier and drafter alike: pages, ragged passes, attention, weights.

Needs torch (all of it but `kv` and `batch`), so nothing outside the engine imports it at the top of a file that must
load without torch. See docs/engine.md.
"""

"""Stubs made from proto/ by proto/generate.py. Not edited by hand; used by `wire`, the services and the client only."""

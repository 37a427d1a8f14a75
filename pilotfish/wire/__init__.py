"""Protos to values and back. The only place that checks what a peer sent: what comes out of here is sound.

`verifier` and `drafter` read and write the frames of the two streams, `coordinator` what clients send and get (it
needs nothing but protobuf), `values` holds what they share.
"""

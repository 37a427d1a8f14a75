"""The verifier: owns the target, and is the only service that commits tokens.

`service` speaks gRPC, `engine` is the thread that owns the model: `plan` (schedule) → `forward` → `settle` (acceptance,
sessions). `sessions` holds what a session is and the rules of position; `drafts` the drafts that are on their way.
"""

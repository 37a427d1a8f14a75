"""What of a draft is kept: the rules of docs/law.md, batched over the rounds of a pass.

`accept` is the door. `match`, `token` and `block` hold one rule each; `chain` what the rules for chains share;
`draw` how a token is drawn from a row.
"""

from verifier.acceptance.dispatch import accept
from verifier.acceptance.rounds import Outcome, Round
from verifier.acceptance.synthetic import synthetic

__all__ = ["Outcome", "Round", "accept", "synthetic"]

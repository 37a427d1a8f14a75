"""Whether a request can be served, and what is to be served then: a pure function of the request and the model."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from coordinator.tenants import Terms
from pilotfish.errors import InvalidArgument, NotFound, PromptTooLong
from pilotfish.messages import Chat, Objective, Open, Request, Rule, Targets
from pilotfish.tokenizer import Tokenizer

COPYING: Final = frozenset({"ngram", "suffix"})  # speculators whose drafts have no q: nothing but `match` fits them


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a coordinator serves."""

    model: str
    tokenizer: Tokenizer
    context_length: int  # tokens
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that can be served."""

    request_id: str  # 32 hex digits
    request: Request
    model: str
    opening: Open  # of its sessions; each gets an id, an incarnation and a grant of its own
    terms: Terms

    @property
    def max_gamma(self) -> int:
        """Most tokens that may be drafted in a round."""
        return self.terms.max_gamma

    @property
    def objective(self) -> Objective:
        return self.request.objective or self.terms.objective

    @property
    def targets(self) -> Targets:
        return self.request.targets.over(self.terms.targets)

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.opening.prompt

    @property
    def max_tokens(self) -> int:
        """Of the answer; never more than fit into the context."""
        return self.opening.max_tokens


def admit(
    request: Request,
    served: Served,
    *,
    speculator: str | None,
    lease_s: float,
    terms: Terms,
    tenant: str = "",
) -> Admitted:
    """Check a request against the served model, tokenise it and decide what holds for all of it.

    Args:
        speculator: that will draft, as far as it is known; None: nobody.
        terms: the tenant's.
        tenant: whose request it is; "": nobody's.

    Raises:
        NotFound: another model is asked for.
        PromptTooLong: the prompt leaves no room in the context.
        InvalidArgument: the request contradicts itself.
    """
    if request.model not in {None, served.model}:
        raise NotFound.of(
            "model", request.model, f"this coordinator serves {served.model!r}; leave it out or name that"
        )
    prompt = tokenise(request, served.tokenizer)
    num_room = served.context_length - len(prompt)
    num_output = len(request.output_so_far)
    if num_room < 1 or num_room < num_output:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens"
            + (f" and output_so_far {num_output}" if num_output else "")
            + f", the context of {served.model} is {served.context_length}: nothing could be generated; shorten it",
            field="prompt",
        )
    rule = choose_rule(request, speculator)
    end_ids = set(request.stop_ids)
    if not request.ignore_eos:
        end_ids |= served.end_ids
    opening = Open(
        session=b"",
        incarnation=0,
        vocabulary_hash=served.tokenizer.vocabulary_hash,
        prompt=prompt,
        output_so_far=request.output_so_far,
        sampling=request.sampling,
        seed=secrets.randbits(64) if request.seed is None else request.seed,
        rule=rule,
        end_ids=frozenset(end_ids),
        max_tokens=num_room if request.max_tokens is None else min(request.max_tokens, num_room),
        lease_s=lease_s,
        is_coupled=rule is Rule.MATCH and not request.sampling.is_greedy,
        speculator=request.speculation.speculator,
        tenant=tenant,
    )
    return Admitted(secrets.token_hex(16), request, served.model, opening, terms)


def tokenise(request: Request, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of a prompt, in whichever form it came.

    Raises:
        InvalidArgument: it has none, or the tokenizer cannot make sense of it.
    """
    prompt = request.prompt
    if isinstance(prompt, tuple):
        return prompt
    tokens = (
        tokenizer.apply_chat_template([{"role": entry.role, "content": entry.content} for entry in prompt.messages])
        if isinstance(prompt, Chat)
        else tokenizer.encode(prompt)
    )
    if not tokens:
        raise InvalidArgument("the prompt has no tokens: an empty prompt has nothing to continue", field="prompt")
    return tuple(tokens)


def choose_rule(request: Request, speculator: str | None) -> Rule:
    """The acceptance rule of a request.

    `match` at temperature 0 (where all rules are the same), for seeded requests (with any other the text would depend
    on what was drafted) and for drafts without q; `block` for the others, unless the request says otherwise.

    Raises:
        InvalidArgument: a seed and a rule that does not keep its promise.
    """
    wanted = request.speculation.rule
    if request.seed is not None and wanted not in {None, Rule.MATCH}:
        assert wanted is not None
        raise InvalidArgument.of(
            "speculation.rule",
            wanted.value,
            "a seeded answer is the same whatever was drafted, which only the rule match keeps; leave out seed or rule",
        )
    if request.sampling.is_greedy or request.seed is not None:
        return Rule.MATCH
    if wanted is not None:
        return wanted
    return Rule.MATCH if speculator is None or speculator in COPYING else Rule.BLOCK

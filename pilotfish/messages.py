"""What the three services say to one another, as values.

`wire` turns the messages of `proto/` into these and back, and is the only place that checks what a peer sent;
everything behind it works on values that are already known to be sound. Field by field the meaning is that of the
proto comments; nothing is repeated here that stands there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from pilotfish.confidence import Calibration
from pilotfish.draft import Draft
from pilotfish.price import Plan, Profile

SessionId: TypeAlias = bytes  # 128 random bits, chosen by the caller


class Rule(Enum):
    """How a verifier decides what of a draft to keep. See docs/law.md."""

    MATCH = "match"
    TOKEN = "token"
    BLOCK = "block"


class TokenKind(Enum):
    """How a committed token came about."""

    PLAIN = "plain"  # no draft was verified with it
    ACCEPTED = "accepted"  # a draft token that held
    CORRECTION = "correction"  # drawn after a rejection
    BONUS = "bonus"  # drawn after the whole path held


class Objective(Enum):
    """What a request cares for most: it weighs the price of a position."""

    LATENCY = "latency"
    BALANCED = "balanced"
    THROUGHPUT = "throughput"


class FinishReason(Enum):
    """Why a session commits nothing more."""

    STOP = "stop"  # an end id, a stop id or a stop string
    LENGTH = "length"  # the request's limit or the model's context


class DraftEnd(Enum):
    """Why a drafter drew no further node."""

    GAMMA = "gamma"  # as many as were asked for
    DEADLINE = "deadline"  # the time it was given was over before the next draw
    NO_MATCH = "no_match"  # the speculator has nothing to propose
    CONTEXT = "context"  # the drafter's own context is full
    SURVIVAL = "survival"  # the next draw was not worth its price


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a request; p is the target's law after all of them."""

    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None  # None: all ids
    top_p: float | None = None  # in (0, 1]; None: all ids

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C trace context; carried in every item, since one stream serves many requests."""

    traceparent: str
    tracestate: str = ""


@dataclass(frozen=True, slots=True)
class Open:
    """Start a session: at a verifier, or (without grant, patience, target and profile) at a drafter."""

    session: SessionId
    incarnation: int
    vocabulary_hash: str
    prompt: tuple[int, ...]
    output_so_far: tuple[int, ...]
    sampling: Sampling
    seed: int
    rule: Rule
    end_ids: frozenset[int]
    max_tokens: int  # counted from the end of the prompt, output_so_far included
    lease_s: float
    grant: int = 0
    patience_us: int = 0
    first_token_us: int | None = None  # left for the first token; 0: missed; None: no target, or that token is out
    profile: Profile | None = None  # of its drafts; None: it does not speculate by the price, or nothing is known
    is_coupled: bool = False
    speculator: str | None = None
    tenant: str = ""
    trace: TraceContext | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.output_so_far


@dataclass(frozen=True, slots=True)
class Work:
    """One round's item for a verifier: a draft, or part of one, or only a new grant (an empty draft).

    Everything here is counted from `position`: the nodes build on it, and the verifier may commit up to
    `position + grant` without hearing again.
    """

    session: SessionId
    incarnation: int
    position: int
    prefix_hash: int
    round: int
    draft: Draft
    first_node: int  # index of draft's first node in the whole draft: nodes travel as they are drawn
    is_complete: bool
    grant: int
    patience_us: int
    assumes: tuple[int, ...] = ()
    profile: Profile | None = None  # None: as it was
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """End a session and free what it holds. Closing one that is not there is no error."""

    session: SessionId
    incarnation: int
    trace: TraceContext | None = None  # set where spans of the request that were held back are to be sent after all


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open; its first tokens will follow as verdicts."""

    session: SessionId
    position: int
    num_cached_tokens: int = 0  # prompt tokens whose KV was found in the prefix cache


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a draft held, and the tokens that are now committed."""

    session: SessionId
    position: int  # before these tokens
    tokens: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    round: int | None  # None: the session ran free
    num_drafted: int  # nodes verified in this pass
    num_accepted: int  # nodes of the accepted path; a truncated commit still counts them all
    num_reused: int = 0  # head of the draft that had been committed already
    node_probabilities: bytes = b""  # a byte a node: floor(255 * P_i)
    finish: FinishReason | None = None
    queue_us: int = 0
    pass_us: int = 0
    pass_positions: int = 0
    prefix_hash: int | None = None  # of the tokens before `position`; None: not said


class SideLines(NamedTuple):
    """Lines to draw beside a draft, each of which begins with the runner-up of one of its nodes."""

    num_lines: int  # at the most
    num_levels: int  # of the draft, in which they may begin
    num_nodes: int  # of a line, the runner-up aside


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Ask a drafter for a draft at `position`, after telling it what was committed since."""

    session: SessionId
    incarnation: int
    position: int
    prefix_hash: int
    round: int
    tokens: tuple[int, ...]  # the committed tokens that end at `position`; may overlap what the drafter has
    gamma: int
    deadline_us: int
    trace: TraceContext | None = None
    price: float = 0.0  # tokens: the draft ends before a node that would survive with a smaller probability
    step_price: float = 0.0  # tokens: and before a further step below one that survives with less than both together
    calibration: Calibration | None = None  # None: not known, so nothing is weighed against the price
    side_lines: SideLines | None = None  # to be drawn beside the draft; None: none


@dataclass(frozen=True, slots=True)
class DraftPart:
    """Nodes of a draft, sent as they are drawn."""

    session: SessionId
    position: int
    round: int
    first_node: int
    draft: Draft
    is_complete: bool
    end: DraftEnd | None = None  # set on the complete part
    draft_us: int = 0  # since the request arrived
    confidences: tuple[float, ...] = ()  # log odds, by node; perhaps one more where the end is survival; (): not said


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item that could not be served. The other items of its frame are not touched."""

    session: SessionId
    position: int | None  # the right one, where the session exists
    incarnation: int  # of the peer that refuses
    code: int  # google.rpc.Code
    message: str
    reason: str  # a word for counting: "position", "incarnation", "unknown_session", …


@dataclass(frozen=True, slots=True)
class VerifierLoad:
    """What a verifier says of itself in every frame."""

    pass_us: int = 0
    pass_positions: int = 0
    pass_sequences: int = 0
    num_queued: int = 0
    num_sessions: int = 0
    num_kv_pages: int = 0
    num_kv_pages_used: int = 0
    saturation: float = 0.0
    plan: Plan | None = None  # None: coordinators decide by themselves
    realised_speedup: float | None = None  # under that plan; None: not measured yet
    plain_us: int = 0  # length of a pass if every session ran free; 0: not known


@dataclass(frozen=True, slots=True)
class DrafterLoad:
    """What a drafter says of itself in every frame: t(gamma) = start_us + gamma * token_us."""

    start_us: int = 0
    token_us: int = 0
    num_queued: int = 0
    num_sessions: int = 0

    def draft_us(self, gamma: int) -> int:
        """t(gamma)."""
        return self.start_us + gamma * self.token_us


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What a drafter or verifier says of itself once, when a coordinator connects."""

    role: str  # "drafter", "verifier"
    version: str
    incarnation: int
    model: str
    vocabulary_hash: str | None  # None: any vocabulary will do (a speculator that only copies)
    vocabulary_size: int
    context_length: int
    end_ids: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    speculators: tuple[str, ...] = ()
    max_nodes: int = 0
    page_size: int = 0
    num_kv_pages: int = 0
    settings: dict[str, str] = field(default_factory=dict)  # secrets masked
    is_lossy: bool = False  # it accepts drafts at given rates, not by the law


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, for the model's own chat template."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request is to speculate; the default leaves everything to the coordinator."""

    is_off: bool = False
    gamma: int | None = None  # exactly so many tokens each round
    max_gamma: int | None = None
    rule: Rule | None = None
    speculator: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Times that a request is to keep."""

    first_token_s: float | None = None  # from the request until its first token; None: no such target
    token_s: float | None = None  # mean of every later token, reasoning left out; None: no such target

    def over(self, other: Targets) -> Targets:
        """These, and what is absent in them as the other has it."""
        return Targets(
            other.first_token_s if self.first_token_s is None else self.first_token_s,
            other.token_s if self.token_s is None else self.token_s,
        )


NO_TARGETS: Final = Targets()


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks a coordinator to generate."""

    prompt: str | Chat | tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None  # None: answers differ
    max_tokens: int | None = None  # output_so_far included; None: up to the model's context
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    speculation: Speculation = field(default_factory=Speculation)
    output_so_far: tuple[int, ...] = ()
    model: str | None = None  # None: the one that is served
    include_rounds: bool = False
    workload: str = ""  # acceptance is counted by it
    objective: Objective | None = None  # None: as the coordinator is set
    targets: Targets = NO_TARGETS  # what is absent: as the coordinator is set


@dataclass(frozen=True, slots=True)
class Started:
    """What serves a request."""

    request_id: str
    model: str
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    drafter: str | None = None  # address; None: plain decoding
    verifier: str = ""  # address
    rule: Rule | None = None
    trace_id: str | None = None
    is_lossy: bool = False  # drafts are accepted at given rates, not by the law


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a request, as it went."""

    index: int
    gamma: int  # that the policy wanted
    reason: str
    num_drafted: int
    num_accepted: int
    num_committed: int
    start_us: int = 0  # since the request began
    draft_us: int = 0
    verify_us: int = 0
    queue_us: int = 0
    pass_us: int = 0
    pass_positions: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """How speculation went over one request."""

    num_verdicts: int = 0
    num_drafts: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_by_depth: tuple[int, ...] = ()
    num_plain_tokens: int = 0
    draft_us: int = 0
    verify_us: int = 0
    first_token_us: int = 0
    total_us: int = 0
    num_dropped_by_cause: dict[str, int] = field(default_factory=dict)
    targets_met: dict[str, bool] = field(default_factory=dict)  # of those in force, by name
    num_correction_tokens: int = 0
    num_bonus_tokens: int = 0
    max_drafted_tokens: int = 0
    num_rounds_by_reason: dict[str, int] = field(default_factory=dict)
    queue_us: int = 0
    pass_us: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        return self.num_accepted_tokens / self.num_drafted_tokens if self.num_drafted_tokens else None

    @property
    def mean_length(self) -> float | None:
        """Tokens committed per round with a draft, 1 + accepted / drafts; None where nothing was drafted."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def num_drafts_by_accepted(self) -> tuple[int, ...]:
        """Rounds with a draft by how many of its tokens held: none, one, and so on; their sum is `num_drafts`."""
        reached = (self.num_drafts, *self.num_accepted_by_depth, 0)
        return tuple(here - deeper for here, deeper in pairwise(reached)) if self.num_drafts else ()


@dataclass(frozen=True, slots=True)
class Finished:
    """How a request ended."""

    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    statistics: Statistics = field(default_factory=Statistics)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer."""

    text: str = ""
    ids: tuple[int, ...] = ()
    kinds: tuple[TokenKind, ...] = ()  # one an id
    rounds: tuple[Round, ...] = ()
    started: Started | None = None  # in the first chunk
    finished: Finished | None = None  # in the last chunk
    num_characters: tuple[int, ...] = ()  # of `text`, that each id made certain; what the end alone released follows


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer of a coordinator."""

    role: str
    address: str
    is_up: bool
    problem: str | None = None
    model: str | None = None
    speculators: tuple[str, ...] = ()
    num_sessions: int = 0
    round_trip_us: int = 0
    draft_start_us: int = 0  # of a drafter, as DrafterLoad says
    draft_token_us: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """What a coordinator serves."""

    version: str
    model: str
    context_length: int
    max_gamma: int
    peers: tuple[Peer, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    acceptance_rate: float | None = None  # None: nothing was drafted yet

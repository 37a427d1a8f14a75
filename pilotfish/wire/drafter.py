"""The stream between a coordinator and a drafter: frames to values and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Final, TypeAlias

from pilotfish.confidence import Calibration, read_confidences, write_confidences
from pilotfish.errors import InvalidArgument, PilotfishError
from pilotfish.messages import (
    Close,
    DraftEnd,
    DrafterLoad,
    DraftPart,
    DraftRequest,
    Open,
    Opened,
    Refusal,
    SideLines,
)
from pilotfish.v1 import drafter_pb2, peer_pb2
from pilotfish.wire.drafts import read_draft, write_draft
from pilotfish.wire.openings import Openings, read_start, write_chunks, write_start
from pilotfish.wire.values import (
    Limits,
    Received,
    header,
    microseconds,
    read_refusal,
    read_round,
    read_session,
    read_tokens,
    read_trace,
    refuse,
    write_refusal,
)

ToDrafter: TypeAlias = Open | DraftRequest | Close
FromDrafter: TypeAlias = Opened | DraftPart | Refusal

_ENDS: Final = {
    DraftEnd.GAMMA: drafter_pb2.DRAFT_END_GAMMA,
    DraftEnd.DEADLINE: drafter_pb2.DRAFT_END_DEADLINE,
    DraftEnd.NO_MATCH: drafter_pb2.DRAFT_END_NO_MATCH,
    DraftEnd.CONTEXT: drafter_pb2.DRAFT_END_CONTEXT,
    DraftEnd.SURVIVAL: drafter_pb2.DRAFT_END_SURVIVAL,
}
_END_OF: Final = {number: end for end, number in _ENDS.items()}

# ---- coordinator → drafter ---------------------------------------------------------------------------------------


def write_items(message: ToDrafter) -> list[drafter_pb2.DraftItem]:
    """The items of a message: one, or for an opening one and its tokens in chunks."""
    match message:
        case DraftRequest():
            return [_write_propose(message)]
        case Open():
            return _write_open(message)
        case Close():
            head = header(message.session, message.incarnation, trace=message.trace)
            return [drafter_pb2.DraftItem(header=head, close=peer_pb2.Close())]


def _write_propose(request: DraftRequest) -> drafter_pb2.DraftItem:
    return drafter_pb2.DraftItem(
        header=header(
            request.session,
            request.incarnation,
            request.position,
            prefix_hash=request.prefix_hash,
            round=request.round,
            trace=request.trace,
        ),
        propose=drafter_pb2.Propose(
            tokens=request.tokens,
            gamma=request.gamma,
            deadline_us=microseconds(request.deadline_us),
            price=request.price,
            step_price=request.step_price,
            calibration=_write_calibration(request.calibration),
            side_lines=None if request.side_lines is None else drafter_pb2.SideLines(**request.side_lines._asdict()),
        ),
    )


def _write_calibration(calibration: Calibration | None) -> drafter_pb2.Calibration | None:
    if calibration is None:
        return None
    return drafter_pb2.Calibration(offset=calibration.offset, slope=calibration.slope)


def _write_open(opening: Open) -> list[drafter_pb2.DraftItem]:
    session, incarnation = opening.session, opening.incarnation
    start = drafter_pb2.DraftItem(
        header=header(session, incarnation, trace=opening.trace),
        open=drafter_pb2.DrafterOpen(
            start=write_start(opening), speculator=opening.speculator or "", is_coupled=opening.is_coupled
        ),
    )
    head = header(session, incarnation)
    return [start, *(drafter_pb2.DraftItem(header=head, chunk=chunk) for chunk in write_chunks(opening))]


class DrafterInbox:
    """What a drafter reads from one stream. An item that cannot be taken becomes its refusal, ready to be sent."""

    def __init__(self, limits: Limits, incarnation: int) -> None:
        self.limits = limits
        self.incarnation = incarnation
        self.openings = Openings(limits)

    def read(self, frame: drafter_pb2.DraftRequest) -> list[ToDrafter | Refusal]:
        """The values of a frame, in order. Never raises."""
        values: list[ToDrafter | Refusal] = []
        for item in frame.items:
            value: ToDrafter | Refusal | None
            try:
                value = self._read(item)
            except PilotfishError as error:
                value = refuse(error, item.header.session, self.incarnation)
            if value is not None:
                values.append(value)
        return values

    def _read(self, item: drafter_pb2.DraftItem) -> ToDrafter | None:
        session = read_session(item.header)
        match item.WhichOneof("kind"):
            case "propose":
                return self._read_propose(item.header, item.propose)
            case "open":
                opening, num_prompt, num_output = read_start(item.header, item.open.start, self.limits)
                opening = replace(opening, speculator=item.open.speculator or None, is_coupled=item.open.is_coupled)
                self.openings.start(opening, num_prompt, num_output)
                return None
            case "chunk":
                return self.openings.add(session, item.chunk)
            case "close":
                self.openings.drop(session)
                return Close(session, item.header.incarnation, read_trace(item.header))
            case _:
                raise InvalidArgument.of("kind", None, "an item opens, carries tokens, proposes or closes")

    def _read_propose(self, head: peer_pb2.Header, propose: drafter_pb2.Propose) -> DraftRequest:
        tokens = read_tokens("propose.tokens", propose.tokens, self.limits)
        if len(tokens) > head.position:
            raise InvalidArgument.of("propose.tokens", len(tokens), f"they end at position {head.position}")
        if propose.gamma > self.limits.max_nodes:
            raise InvalidArgument.of(
                "propose.gamma", propose.gamma, f"at most {self.limits.max_nodes} are drafted here"
            )
        return DraftRequest(
            session=head.session,
            incarnation=head.incarnation,
            position=head.position,
            prefix_hash=head.prefix_hash,
            round=read_round(head),
            tokens=tokens,
            gamma=propose.gamma,
            deadline_us=propose.deadline_us,
            trace=read_trace(head),
            price=_read_price("price", propose.price),
            step_price=_read_price("step_price", propose.step_price),
            calibration=_read_calibration(propose.calibration) if propose.HasField("calibration") else None,
            side_lines=self._read_side_lines(propose) if propose.HasField("side_lines") else None,
        )

    def _read_side_lines(self, propose: drafter_pb2.Propose) -> SideLines | None:
        proto = propose.side_lines
        num_nodes = propose.gamma + proto.num_lines * (1 + proto.num_nodes)
        if num_nodes > self.limits.max_nodes:
            most = f"with the draft's {propose.gamma} they are {num_nodes} nodes; at most {self.limits.max_nodes} here"
            raise InvalidArgument.of("propose.side_lines", proto.num_lines, most)
        return SideLines(proto.num_lines, proto.num_levels, proto.num_nodes) if proto.num_lines else None


def _read_price(name: str, price: float) -> float:
    if not 0.0 <= price < inf:
        raise InvalidArgument.of(f"propose.{name}", price, "it is a number of tokens, 0 or more")
    return price


def _read_calibration(proto: drafter_pb2.Calibration) -> Calibration:
    for name, value in (("offset", proto.offset), ("slope", proto.slope)):
        if not isfinite(value):
            raise InvalidArgument.of(f"propose.calibration.{name}", value, "it is a finite number")
    return Calibration(proto.offset, proto.slope)


# ---- drafter → coordinator ---------------------------------------------------------------------------------------


def write_answer(message: FromDrafter, incarnation: int) -> drafter_pb2.DraftAnswer:
    """One answer.

    Args:
        incarnation: of the drafter that answers.
    """
    match message:
        case DraftPart():
            return drafter_pb2.DraftAnswer(
                header=header(message.session, incarnation, message.position, round=message.round),
                part=_write_part(message),
            )
        case Opened():
            head = header(message.session, incarnation, message.position)
            return drafter_pb2.DraftAnswer(header=head, opened=drafter_pb2.DrafterOpened())
        case Refusal():
            head = header(message.session, message.incarnation)
            return drafter_pb2.DraftAnswer(header=head, refusal=write_refusal(message))


def _write_part(part: DraftPart) -> drafter_pb2.DraftPart:
    return drafter_pb2.DraftPart(
        draft=write_draft(part.draft, part.first_node) if part.draft else None,
        first_node=part.first_node,
        is_complete=part.is_complete,
        end=drafter_pb2.DRAFT_END_UNSPECIFIED if part.end is None else _ENDS[part.end],
        draft_us=microseconds(part.draft_us),
        confidences=write_confidences(part.confidences),
    )


def write_load(load: DrafterLoad) -> drafter_pb2.DrafterLoad:
    """What a drafter says of itself in every frame."""
    return drafter_pb2.DrafterLoad(
        start_us=microseconds(load.start_us),
        token_us=microseconds(load.token_us),
        num_queued=load.num_queued,
        num_sessions=load.num_sessions,
    )


def read_load(proto: drafter_pb2.DrafterLoad) -> DrafterLoad:
    """What a drafter says of itself in every frame."""
    return DrafterLoad(proto.start_us, proto.token_us, proto.num_queued, proto.num_sessions)


def write_frame(answers: Sequence[drafter_pb2.DraftAnswer], load: DrafterLoad) -> drafter_pb2.DraftResponse:
    """A frame of answers."""
    return drafter_pb2.DraftResponse(answers=answers, load=write_load(load))


def read_answers(
    frame: drafter_pb2.DraftResponse, limits: Limits, incarnation: int
) -> list[Received[FromDrafter | None]]:
    """The answers of a frame, in order. Never raises.

    An answer of another incarnation, or one whose session cannot be told, is None with the cause. An answer that
    means nothing becomes a refusal with the reason "malformed". A draft that was cut is complete: what would follow
    hangs on what was cut.

    Args:
        limits: of the verifier that is to check the draft.
        incarnation: that the coordinator talks to.
    """
    return [_receive(answer, limits, incarnation) for answer in frame.answers]


def _receive(answer: drafter_pb2.DraftAnswer, limits: Limits, incarnation: int) -> Received[FromDrafter | None]:
    head = answer.header
    try:
        session = read_session(head)
    except InvalidArgument:
        return Received(None, "malformed")
    try:
        match answer.WhichOneof("kind"):
            case "refusal":
                return Received(read_refusal(head, answer.refusal))
            case _ if head.incarnation != incarnation:
                return Received(None, "incarnation")
            case "part":
                return _read_part(head, answer.part, limits)
            case "opened":
                return Received(Opened(session, head.position))
            case _:
                raise InvalidArgument.of("kind", None, "an answer opens, drafts or refuses")
    except PilotfishError as error:
        return Received(replace(refuse(error, session, head.incarnation), reason="malformed"), "malformed")


def _read_part(head: peer_pb2.Header, proto: drafter_pb2.DraftPart, limits: Limits) -> Received[FromDrafter | None]:
    draft, cause = read_draft(proto.draft, proto.first_node, limits)
    part = DraftPart(
        session=head.session,
        position=head.position,
        round=read_round(head),
        first_node=proto.first_node,
        draft=draft,
        is_complete=proto.is_complete or cause is not None,
        end=_END_OF.get(proto.end),
        draft_us=proto.draft_us,
        confidences=_read_confidences(proto, len(draft)),
    )
    return Received(part, cause)


def _read_confidences(proto: drafter_pb2.DraftPart, num_nodes: int) -> tuple[float, ...]:
    """One a node that is left, and that of one that was not drawn; none where there are not as many as there should."""
    most = num_nodes + (proto.end == drafter_pb2.DRAFT_END_SURVIVAL)
    if num_nodes < len(proto.draft.tokens):
        return read_confidences(proto.confidences[:num_nodes])
    return read_confidences(proto.confidences) if num_nodes <= len(proto.confidences) <= most else ()

"""The stream between a coordinator and a verifier: frames to values and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from pilotfish.errors import InvalidArgument, PilotfishError
from pilotfish.messages import Close, Open, Opened, Refusal, Verdict, VerifierLoad, Work
from pilotfish.v1 import peer_pb2, verifier_pb2
from pilotfish.wire.drafts import read_draft, write_draft
from pilotfish.wire.openings import Openings, read_start, write_chunks, write_start
from pilotfish.wire.price import read_plan, read_profile, write_plan, write_profile
from pilotfish.wire.sampling import read_finish, read_kinds, write_finish, write_kinds
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

ToVerifier: TypeAlias = Open | Work | Close
FromVerifier: TypeAlias = Opened | Verdict | Refusal

# ---- coordinator → verifier --------------------------------------------------------------------------------------


def write_items(message: ToVerifier) -> list[verifier_pb2.VerifyItem]:
    """The items of a message: one, or for an opening one and its tokens in chunks."""
    match message:
        case Work():
            return [_write_work(message)]
        case Open():
            return _write_open(message)
        case Close():
            head = header(message.session, message.incarnation, trace=message.trace)
            return [verifier_pb2.VerifyItem(header=head, close=peer_pb2.Close())]


def _write_work(work: Work) -> verifier_pb2.VerifyItem:
    return verifier_pb2.VerifyItem(
        header=header(
            work.session,
            work.incarnation,
            work.position,
            prefix_hash=work.prefix_hash,
            round=work.round,
            trace=work.trace,
        ),
        work=verifier_pb2.Work(
            draft=write_draft(work.draft, work.first_node) if work.draft else None,
            first_node=work.first_node,
            is_complete=work.is_complete,
            grant=work.grant,
            patience_us=microseconds(work.patience_us),
            assumes=work.assumes,
            profile=None if work.profile is None else write_profile(work.profile),
        ),
    )


def _write_open(opening: Open) -> list[verifier_pb2.VerifyItem]:
    session, incarnation = opening.session, opening.incarnation
    start = verifier_pb2.VerifyItem(
        header=header(session, incarnation, trace=opening.trace),
        open=verifier_pb2.VerifierOpen(
            start=write_start(opening),
            grant=opening.grant,
            patience_us=microseconds(opening.patience_us),
            first_token_us=None if opening.first_token_us is None else microseconds(opening.first_token_us),
            profile=None if opening.profile is None else write_profile(opening.profile),
        ),
    )
    head = header(session, incarnation)
    return [start, *(verifier_pb2.VerifyItem(header=head, chunk=chunk) for chunk in write_chunks(opening))]


def _at_verifier(opening: Open, proto: verifier_pb2.VerifierOpen) -> Open:
    """The opening, with what only a verifier is told."""
    return replace(
        opening,
        grant=proto.grant,
        patience_us=proto.patience_us,
        first_token_us=proto.first_token_us if proto.HasField("first_token_us") else None,
        profile=read_profile(proto.profile) if proto.HasField("profile") else None,
    )


class VerifierInbox:
    """What a verifier reads from one stream. An item that cannot be taken becomes its refusal, ready to be sent."""

    def __init__(self, limits: Limits, incarnation: int) -> None:
        self.limits = limits
        self.incarnation = incarnation
        self.openings = Openings(limits)

    def read(self, frame: verifier_pb2.VerifyRequest) -> list[Received[ToVerifier | Refusal]]:
        """The values of a frame, in order. Never raises."""
        received: list[Received[ToVerifier | Refusal]] = []
        for item in frame.items:
            try:
                value = self._read(item)
            except PilotfishError as error:
                value = Received(refuse(error, item.header.session, self.incarnation))
            if value is not None:
                received.append(value)
        return received

    def _read(self, item: verifier_pb2.VerifyItem) -> Received[ToVerifier | Refusal] | None:
        session = read_session(item.header)
        match item.WhichOneof("kind"):
            case "work":
                return self._read_work(item.header, item.work)
            case "open":
                opening, num_prompt, num_output = read_start(item.header, item.open.start, self.limits)
                self.openings.start(_at_verifier(opening, item.open), num_prompt, num_output)
                return None
            case "chunk":
                complete = self.openings.add(session, item.chunk)
                return None if complete is None else Received(complete)
            case "close":
                self.openings.drop(session)
                return Received(Close(session, item.header.incarnation, read_trace(item.header)))
            case _:
                raise InvalidArgument.of("kind", None, "an item opens, carries tokens, works or closes")

    def _read_work(self, head: peer_pb2.Header, work: verifier_pb2.Work) -> Received[ToVerifier | Refusal]:
        draft, cause = read_draft(work.draft, work.first_node, self.limits)
        value = Work(
            session=head.session,
            incarnation=head.incarnation,
            position=head.position,
            prefix_hash=head.prefix_hash,
            round=read_round(head),
            draft=draft,
            first_node=work.first_node,
            is_complete=work.is_complete or cause is not None,  # what would follow hangs on what was cut
            grant=work.grant,
            patience_us=work.patience_us,
            assumes=read_tokens("assumes", work.assumes, self.limits, self.limits.max_nodes),
            profile=read_profile(work.profile) if work.HasField("profile") else None,
            trace=read_trace(head),
        )
        return Received(value, cause)


# ---- verifier → coordinator --------------------------------------------------------------------------------------


def write_answer(message: FromVerifier, incarnation: int) -> verifier_pb2.VerifyAnswer:
    """One answer.

    Args:
        incarnation: of the verifier that answers.
    """
    match message:
        case Verdict():
            return verifier_pb2.VerifyAnswer(
                header=header(
                    message.session,
                    incarnation,
                    message.position,
                    prefix_hash=message.prefix_hash or 0,
                    round=message.round,
                ),
                verdict=_write_verdict(message),
            )
        case Opened():
            return verifier_pb2.VerifyAnswer(
                header=header(message.session, incarnation, message.position),
                opened=verifier_pb2.VerifierOpened(num_cached_tokens=message.num_cached_tokens),
            )
        case Refusal():
            head = header(message.session, message.incarnation)
            return verifier_pb2.VerifyAnswer(header=head, refusal=write_refusal(message))


def _write_verdict(verdict: Verdict) -> verifier_pb2.Verdict:
    return verifier_pb2.Verdict(
        tokens=verdict.tokens,
        kinds=write_kinds(verdict.kinds),
        num_drafted=verdict.num_drafted,
        num_accepted=verdict.num_accepted,
        num_reused=verdict.num_reused,
        node_probabilities=verdict.node_probabilities,
        finish=write_finish(verdict.finish),
        queue_us=microseconds(verdict.queue_us),
        pass_us=microseconds(verdict.pass_us),
        pass_positions=verdict.pass_positions,
    )


def write_load(load: VerifierLoad) -> verifier_pb2.VerifierLoad:
    """What a verifier says of itself in every frame."""
    return verifier_pb2.VerifierLoad(
        pass_us=microseconds(load.pass_us),
        pass_positions=load.pass_positions,
        pass_sequences=load.pass_sequences,
        num_queued=load.num_queued,
        num_sessions=load.num_sessions,
        num_kv_pages=load.num_kv_pages,
        num_kv_pages_used=load.num_kv_pages_used,
        saturation=load.saturation,
        plan=None if load.plan is None else write_plan(load.plan, load.realised_speedup),
        plain_us=microseconds(load.plain_us),
    )


def read_load(proto: verifier_pb2.VerifierLoad) -> VerifierLoad:
    """What a verifier says of itself in every frame."""
    return VerifierLoad(
        pass_us=proto.pass_us,
        pass_positions=proto.pass_positions,
        pass_sequences=proto.pass_sequences,
        num_queued=proto.num_queued,
        num_sessions=proto.num_sessions,
        num_kv_pages=proto.num_kv_pages,
        num_kv_pages_used=proto.num_kv_pages_used,
        saturation=proto.saturation,
        plan=read_plan(proto.plan) if proto.HasField("plan") else None,
        realised_speedup=proto.plan.realised_speedup if proto.plan.HasField("realised_speedup") else None,
        plain_us=proto.plain_us,
    )


def write_frame(answers: Sequence[verifier_pb2.VerifyAnswer], load: VerifierLoad) -> verifier_pb2.VerifyResponse:
    """A frame of answers."""
    return verifier_pb2.VerifyResponse(answers=answers, load=write_load(load))


def read_answers(
    frame: verifier_pb2.VerifyResponse, limits: Limits, incarnation: int
) -> list[Received[FromVerifier | None]]:
    """The answers of a frame, in order. Never raises.

    An answer of another incarnation, or one whose session cannot be told, is None with the cause. An answer that
    means nothing becomes a refusal with the reason "malformed": its session cannot go on there.

    Args:
        incarnation: that the coordinator talks to.
    """
    return [_receive(answer, limits, incarnation) for answer in frame.answers]


def _receive(answer: verifier_pb2.VerifyAnswer, limits: Limits, incarnation: int) -> Received[FromVerifier | None]:
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
            case "verdict":
                return Received(_read_verdict(head, answer.verdict, limits))
            case "opened":
                return Received(Opened(session, head.position, answer.opened.num_cached_tokens))
            case _:
                raise InvalidArgument.of("kind", None, "an answer opens, decides or refuses")
    except PilotfishError as error:
        return Received(replace(refuse(error, session, head.incarnation), reason="malformed"), "malformed")


def _read_verdict(head: peer_pb2.Header, proto: verifier_pb2.Verdict, limits: Limits) -> Verdict:
    tokens = read_tokens("verdict.tokens", proto.tokens, limits)
    kinds = read_kinds(proto.kinds)
    finish = read_finish(proto.finish)
    if len(kinds) != len(tokens):
        raise InvalidArgument.of("verdict.kinds", len(kinds), f"each of the {len(tokens)} tokens has a known kind")
    if not tokens and finish is None:
        raise InvalidArgument.of(
            "verdict.tokens", tokens, "a verdict commits at least one token, unless it is the last"
        )
    if proto.num_accepted > proto.num_drafted:
        raise InvalidArgument.of("verdict.num_accepted", proto.num_accepted, f"of {proto.num_drafted} drafted nodes")
    if len(proto.node_probabilities) not in {0, proto.num_drafted}:
        raise InvalidArgument.of("verdict.node_probabilities", len(proto.node_probabilities), "a byte a drafted node")
    return Verdict(
        session=head.session,
        position=head.position,
        tokens=tokens,
        kinds=kinds,
        round=head.round if head.HasField("round") else None,
        num_drafted=proto.num_drafted,
        num_accepted=proto.num_accepted,
        num_reused=proto.num_reused,
        node_probabilities=proto.node_probabilities,
        finish=finish,
        queue_us=proto.queue_us,
        pass_us=proto.pass_us,
        pass_positions=proto.pass_positions,
        prefix_hash=head.prefix_hash or None,
    )

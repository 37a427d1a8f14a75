"""The drafter through its own door: real gRPC on loopback."""

from __future__ import annotations

from dataclasses import replace

from drafter.settings import DrafterSettings
from pilotfish.draft import Draft
from pilotfish.messages import Close, DraftEnd, Opened, Refusal
from pilotfish.v1 import drafter_pb2, peer_pb2
from pilotfish.wire import drafter as wire
from tests.drafter.openings import opening, request
from tests.drafter.stream import served

TEXT = [1, 2, 3, 4, 5, 1, 2, 3]
A, B = b"a" * 16, b"b" * 16
NGRAM = DrafterSettings()


async def test_ngram_drafts_what_followed_before() -> None:
    """A session is opened with a text and asked for a draft: one complete part with what followed the match."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        assert await stream.open(opening(A, TEXT, incarnation=at)) == Opened(A, len(TEXT))
        draft, part = await stream.propose(request(A, TEXT, 3, incarnation=at, told=len(TEXT), round_=7))

        assert draft == Draft.chain([4, 5, 1])
        assert (part.round, part.position, part.end) == (7, len(TEXT), DraftEnd.GAMMA)


async def test_committed_tokens_are_learned_with_the_next_request() -> None:
    """Tokens that a request tells count for its own draft, overlapping ones once."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, TEXT, incarnation=at))
        longer = [*TEXT, 4, 9, 3, 4]
        draft, _ = await stream.propose(request(A, longer, 2, incarnation=at, told=6))

        assert draft.tokens == (9, 3)


async def test_request_of_no_tokens_only_tells() -> None:
    """γ = 0 is answered by nothing, and what it told is known afterwards."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, [1], incarnation=at))
        stream.send(request(A, TEXT, 0, incarnation=at, told=1))
        draft, part = await stream.propose(request(A, TEXT, 1, incarnation=at, told=8, round_=1))

        assert (draft.tokens, part.round) == ((4,), 1)


async def test_text_without_match_ends_with_no_match() -> None:
    """Nothing to copy: an empty, complete part that says why."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, [1, 2, 3], incarnation=at))
        draft, part = await stream.propose(request(A, [1, 2, 3], 4, incarnation=at))

        assert (draft, part.end) == (Draft.EMPTY, DraftEnd.NO_MATCH)


async def test_bad_items_are_refused_and_the_others_of_their_frame_served() -> None:
    """Unknown session, wrong incarnation, gap, false hash, false tokens, nonsense: one refusal each, by reason."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, TEXT, incarnation=at))
        sound = request(A, TEXT, 1, incarnation=at)
        far = request(A, [*TEXT, 6, 6], 1, incarnation=at)
        messages = [
            replace(sound, session=B),
            replace(sound, incarnation=at ^ 1),
            replace(far, tokens=(6,)),
            replace(sound, prefix_hash=5),
            replace(sound, tokens=(1, 2, 4)),
            replace(sound, position=len(TEXT) - 1, tokens=()),
            sound,
        ]
        items = [item for message in messages for item in wire.write_items(message)]
        items.insert(0, drafter_pb2.DraftItem(header=peer_pb2.Header(session=A)))
        items.insert(0, drafter_pb2.DraftItem(header=peer_pb2.Header(session=b"short"), close=peer_pb2.Close()))
        stream.send_items(items)

        refusals = [await stream.answer(Refusal) for _ in items[2:]]
        draft, _ = await stream.draft()

        assert [(refusal.reason, refusal.position) for refusal in refusals] == [
            ("argument", None),
            ("unknown_session", None),
            ("incarnation", len(TEXT)),
            ("position", len(TEXT)),
            ("prefix", len(TEXT)),
            ("prefix", len(TEXT)),
            ("position", len(TEXT)),
        ]
        assert stream.num_unreadable == 1, "an item whose session is no session is refused too, to nobody"
        assert draft.tokens == (4,)


async def test_close_frees_and_closing_nothing_is_no_error() -> None:
    """After a close the session is unknown; a second close and one of a session that never was say nothing."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, TEXT, incarnation=at))
        stream.send(Close(A, at), Close(A, at), Close(B, at), request(A, TEXT, 1, incarnation=at))

        assert (await stream.answer(Refusal)).reason == "unknown_session"
        assert drafter.service.drafter.load.num_sessions == 0

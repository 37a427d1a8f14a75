"""The drafter through its own door: real gRPC on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from drafter.service import DrafterService
from drafter.settings import DrafterSettings
from drafter.speculators import Speculator, registry
from pilotfish import tablefile
from pilotfish.draft import Draft
from pilotfish.messages import Close, DraftEnd, DraftPart, Opened, Refusal, SideLines
from pilotfish.v1 import drafter_pb2, peer_pb2
from pilotfish.wire import drafter as wire
from pilotfish.wire.values import read_info
from tests.drafter.openings import opening, request
from tests.drafter.stream import listening, served

TEXT = [1, 2, 3, 4, 5, 1, 2, 3]
A, B = b"a" * 16, b"b" * 16
NGRAM = DrafterSettings()
TABLE = {
    "vocabulary": list("abcd"),
    "law": {"*": [1, 1, 1, 1], "0": [0, 9, 1, 0], "1": [1, 0, 9, 0], "2": [0, 0, 1, 9]},
}


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


async def test_drafter_without_model_states_no_vocabulary() -> None:
    """Info of a drafter that only copies: any vocabulary will do, no model, no limit of context."""
    async with served(NGRAM) as drafter:
        answer = await drafter.stub.Info(drafter_pb2.DrafterInfoRequest())
        info = read_info("drafter", answer.peer)

        assert info.incarnation == drafter.incarnation
        assert (info.vocabulary_hash, info.model, info.context_length) == (None, "", 0)
        assert info.speculators == ("ngram",)
        assert info.settings["max_n"] == "5"


async def test_drafter_with_a_model_states_its_vocabulary(tmp_path: Path) -> None:
    """Info of a drafter with a table model has the table's hash, size and context."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    settings = DrafterSettings(model=f"table:{path}", speculators=("model", "ngram"), num_kv_pages=4, page_size=8)
    async with served(settings) as drafter:
        answer = await drafter.stub.Info(drafter_pb2.DrafterInfoRequest())
        info = read_info("drafter", answer.peer)

        assert info.vocabulary_hash == tablefile.parse(TABLE).vocabulary_hash
        assert (info.vocabulary_size, info.dtype, info.device) == (4, "float64", "cpu")
        assert info.context_length == 32, "what the pool can hold"
        assert info.speculators == ("model", "ngram")


async def test_model_drafts_through_the_stream_node_by_node(tmp_path: Path) -> None:
    """A table model drafts its greedy path; each node is sent when it is drawn; ids it does not have are refused."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    vocabulary_hash = tablefile.parse(TABLE).vocabulary_hash
    async with served(DrafterSettings(model=f"table:{path}")) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, [0], incarnation=at, vocabulary_hash=vocabulary_hash))
        stream.send(request(A, [0], 3, incarnation=at))
        parts = [await stream.answer(DraftPart) for _ in range(3)]
        assert [part.draft.tokens for part in parts] == [(1,), (2,), (3,)]
        assert [part.is_complete for part in parts] == [False, False, True]

        stream.send(request(A, [0, 4], 3, incarnation=at, told=1))
        assert "ids of this vocabulary are below 4" in (await stream.answer(Refusal)).message
        stream.send(opening(B, [0], incarnation=at, vocabulary_hash="another"))
        assert (await stream.answer(Refusal)).reason == "vocabulary"


async def test_sessions_outlive_their_stream() -> None:
    """A session opened on one stream is served on the next, as after a lost connection."""
    async with served(NGRAM) as drafter:
        at = drafter.incarnation
        async with drafter.stream() as stream:
            await stream.open(opening(A, TEXT, incarnation=at))
        async with drafter.stream() as stream:
            draft, _ = await stream.propose(request(A, TEXT, 1, incarnation=at))

        assert draft.tokens == (4,)


async def test_tenants_text_never_shows_in_anothers_drafts() -> None:
    """Tenant A's text holds a secret; no draft of B, whose text ends with the secret's beginning, has any of it."""
    secret = [7, 8, 9, 10, 11]
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, secret * 2, incarnation=at, tenant="a"))
        await stream.open(opening(B, [1, 2, *secret[:3]], incarnation=at, tenant="b"))
        stream.send(request(A, secret * 2, 2, incarnation=at), request(B, [1, 2, *secret[:3]], 2, incarnation=at))
        own, _ = await stream.draft()
        others, part = await stream.draft()

        assert own.tokens == (7, 8)
        assert (others, part.end) == (Draft.EMPTY, DraftEnd.NO_MATCH)


@pytest.mark.parametrize(("gamma", "side_lines"), [(6, None), (2, SideLines(2, 1, 1))])
async def test_more_nodes_than_the_cap_are_refused_with_the_cap(gamma: int, side_lines: SideLines | None) -> None:
    """More levels than the settings allow, or more nodes with the lines beside them: the message says how many are."""
    async with served(DrafterSettings(max_gamma=5)) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, TEXT, incarnation=at))
        stream.send(request(A, TEXT, gamma, incarnation=at, side_lines=side_lines))

        assert "at most 5" in (await stream.answer(Refusal)).message


async def test_every_frame_carries_the_load() -> None:
    """Answers come with the number of open sessions, and with times once a draft was measured."""
    async with served(NGRAM) as drafter, drafter.stream() as stream:
        at = drafter.incarnation
        await stream.open(opening(A, TEXT, incarnation=at))
        assert (stream.load.num_sessions, stream.load.start_us) == (1, 0)
        await stream.propose(request(A, TEXT, 2, incarnation=at))
        assert stream.load.start_us > 0
        assert stream.load.token_us > 0


async def test_drafter_answers_while_it_loads() -> None:
    """Loading may take minutes: it is done beside the event loop, and who asks meanwhile is told to try again."""
    may_load = threading.Event()

    def make(names: Sequence[str], settings: DrafterSettings) -> dict[str, Speculator]:
        assert may_load.wait(20)
        return registry.make(names, settings)

    async with listening(DrafterService(NGRAM, make=make)) as drafter:
        starting = asyncio.create_task(drafter.service.start())
        with pytest.raises(grpc.RpcError) as refused:
            await drafter.stub.Info(drafter_pb2.DrafterInfoRequest())
        assert "still loading" in str(refused.value)

        may_load.set()
        await starting
        assert (await drafter.stub.Info(drafter_pb2.DrafterInfoRequest())).peer.incarnation == drafter.incarnation

"""Which KV page belongs to whom: bookkeeping only, no tensors."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from pilotfish.engine.batch import slots_of

START_TRIES = 8  # places looked at for a new run of pages


class PoolFull(Exception):  # noqa: N818 - a state of the pool that the engine acts upon
    """The pool has too few pages; nothing was reserved.

    The engine preempts a sequence and tries again; where that is no way out, it raises `pilotfish.errors.PoolFull`.
    """

    def __init__(self, num_pages_needed: int, num_pages_free: int) -> None:
        super().__init__(f"{num_pages_needed} KV pages needed, {num_pages_free} free")
        self.num_pages_needed = num_pages_needed
        self.num_pages_free = num_pages_free

    @property
    def num_pages_short(self) -> int:
        return self.num_pages_needed - self.num_pages_free


@dataclass(slots=True)
class _Sequence:
    """One sequence's share of the pool.

        [0, length) valid · [length, capacity) ours to overwrite

    Of the pages, [0, num_published) are in the prefix index and may be shared: nobody writes to them. Length never
    lies before their end.
    """

    prompt: tuple[int, ...]
    salt: str
    pages: list[int] = field(default_factory=list)
    length: int = 0
    num_published: int = 0
    chain: bytes = b""  # prefix hash of the published pages


@dataclass(frozen=True, slots=True)
class _Published:
    """A full page whose KV any sequence with the same salt and the same tokens before it may read."""

    key: bytes  # hash of salt and all tokens up to this page's end
    parent: bytes  # the same of the page before it
    tokens: tuple[int, ...]


class KVPool:
    """A pool of pages of KV, shared by sequences.

    *Length is the only truth*: what lies at or beyond a sequence's length is garbage, and rolling back is making the
    length smaller. Invariants, which `check` tests:

    - Every page is in exactly one of three places: free; held by one sequence, or by several if it is published;
      or cached: published, held by nobody, kept for its prefix until the room is needed (least recently used first).
    - A sequence's pages cover its length, and its published pages end at or before it. So nobody ever writes to a
      page that another may read, and no page need be copied to be shared.
    - A published page's index entry leads back to it.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one token, got {num_pages} pages of {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = set(range(num_pages))
        self._num_runs = -1  # runs of neighbouring pages begun so far, from 0
        self._sequences: dict[Hashable, _Sequence] = {}
        self._num_holders: dict[int, int] = {}  # of pages that are held
        self._published: dict[int, _Published] = {}  # by page
        self._index: dict[bytes, int] = {}  # by key
        self._cached: OrderedDict[int, None] = OrderedDict()  # published, held by nobody; oldest first

    # -- what a caller asks ------------------------------------------------------------------------------------------

    @property
    def num_available_pages(self) -> int:
        """Pages that can be had without preempting anybody."""
        return len(self._free) + len(self._cached)

    @property
    def num_used_pages(self) -> int:
        return self.num_pages - self.num_available_pages

    @property
    def num_cached_pages(self) -> int:
        """Available pages that still hold a prefix."""
        return len(self._cached)

    def __contains__(self, sequence: Hashable) -> bool:
        return sequence in self._sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def length(self, sequence: Hashable) -> int:
        """Tokens whose KV is valid."""
        return self._sequences[sequence].length

    def capacity(self, sequence: Hashable) -> int:
        """Tokens there is room for."""
        return len(self._sequences[sequence].pages) * self.page_size

    def pages(self, sequence: Hashable) -> Sequence[int]:
        """The page table; a view that changes with the sequence."""
        return self._sequences[sequence].pages

    def lookup(self, tokens: Sequence[int], salt: str = "") -> int:
        """How many of the tokens `open` would find in KV; changes nothing."""
        return len(self._matching_pages(tokens, salt)) * self.page_size

    # -- what a caller does ------------------------------------------------------------------------------------------

    def open(self, sequence: Hashable, tokens: Sequence[int], salt: str = "") -> int:
        """Start a sequence whose first tokens these are; its length is the part found in KV, which is returned.

        Whole pages only, and at least one token is left to compute, since its logits are needed.
        Sequences share only with those of the same salt.
        """
        if sequence in self._sequences:
            raise ValueError(f"sequence {sequence!r} is open already")
        state = _Sequence(tuple(tokens), salt)
        for page in self._matching_pages(tokens, salt):
            self._hold(page)
            state.pages.append(page)
            state.chain = self._published[page].key
        state.num_published = len(state.pages)
        state.length = state.num_published * self.page_size
        self._sequences[sequence] = state
        return state.length

    def reserve(self, sequence: Hashable, num_tokens: int) -> None:
        """Make room for a length of `num_tokens`: all of it, or `PoolFull` and nothing has changed."""
        state = self._sequences[sequence]
        num_missing = -(-num_tokens // self.page_size) - len(state.pages)
        if num_missing <= 0:
            return
        if num_missing > self.num_available_pages:
            raise PoolFull(num_missing, self.num_available_pages)
        while len(self._free) < num_missing:
            self._evict()
        for _ in range(num_missing):
            page = self._next_page(state)
            self._free.remove(page)
            self._num_holders[page] = 1
            state.pages.append(page)

    def advance(self, sequence: Hashable, length: int) -> None:
        """A pass has written KV up to `length`. Full pages of the prompt become shareable."""
        state = self._sequences[sequence]
        if not state.length <= length <= self.capacity(sequence):
            raise ValueError(f"length {length} outside [{state.length}, {self.capacity(sequence)}]")
        state.length = length
        self._publish(state)

    def truncate(self, sequence: Hashable, length: int) -> int:
        """Roll back to `length`; pages wholly beyond it go back to the pool. Returns the length that is left.

        It is less than asked for only where the cut goes through a published page, which is let go as a whole,
        since others may be reading it.
        """
        state = self._sequences[sequence]
        if not 0 <= length <= state.length:
            raise ValueError(f"length {length} outside [0, {state.length}]")
        if length < state.num_published * self.page_size:
            state.num_published = length // self.page_size
            length = state.num_published * self.page_size
            state.chain = self._published[state.pages[state.num_published - 1]].key if state.num_published else b""
        state.length = length
        num_kept = -(-length // self.page_size)
        for page in reversed(state.pages[num_kept:]):
            self._let_go(page)
        del state.pages[num_kept:]
        return length

    def release(self, sequence: Hashable) -> None:
        """End a sequence. Published pages stay cached; the deepest are the first to be evicted."""
        state = self._sequences.pop(sequence)
        for page in reversed(state.pages):
            self._let_go(page)

    def move(self, sequence: Hashable, sources: Sequence[int], destination: int) -> tuple[list[int], list[int]]:
        """Slots to copy so that KV indices `sources` come to lie at `destination` and on; for an accepted tree path.

        Call it before `advance`: sources lie in the reserved part, ascending, none before its destination. Those
        that lie right already are left out. A backend reads all sources before it writes.
        """
        state = self._sequences[sequence]
        if destination < state.length or any(
            source < destination + i or (i and source <= sources[i - 1]) for i, source in enumerate(sources)
        ):
            raise ValueError(f"cannot move {list(sources)} to {destination} in a sequence of length {state.length}")
        pairs = [(source, destination + i) for i, source in enumerate(sources) if source != destination + i]
        return (
            [slots_of(state.pages, source, source + 1, self.page_size)[0] for source, _ in pairs],
            [slots_of(state.pages, target, target + 1, self.page_size)[0] for _, target in pairs],
        )

    def forget(self) -> None:
        """Drop all cached prefixes, as when the weights have changed."""
        while self._cached:
            self._evict()

    def check(self) -> None:
        """Assert every invariant; for tests."""
        holders: dict[int, int] = {}
        for state in self._sequences.values():
            assert 0 <= state.num_published * self.page_size <= state.length <= len(state.pages) * self.page_size
            assert len(set(state.pages)) == len(state.pages)
            for i, page in enumerate(state.pages):
                holders[page] = holders.get(page, 0) + 1
                is_published_here = i < state.num_published
                assert (page in self._published) == is_published_here, "written and readable by others at once"
                if is_published_here:
                    span = slice(i * self.page_size, (i + 1) * self.page_size)
                    assert self._published[page].tokens == state.prompt[span]
        assert holders == self._num_holders
        held, cached = set(holders), set(self._cached)
        assert len(held) + len(cached) + len(self._free) == self.num_pages
        assert held | cached | self._free == set(range(self.num_pages))
        assert all(page in self._published for page in cached)
        assert all(count == 1 for page, count in holders.items() if page not in self._published)
        assert {entry.key: page for page, entry in self._published.items()} == self._index

    # -- prefix sharing ----------------------------------------------------------------------------------------------

    def _matching_pages(self, tokens: Sequence[int], salt: str) -> list[int]:
        pages: list[int] = []
        chain = b""
        for start in range(0, (len(tokens) - 1) // self.page_size * self.page_size, self.page_size):
            span = tuple(tokens[start : start + self.page_size])
            key = _chain_key(salt, chain, span)
            page = self._index.get(key)
            if page is None:
                break
            entry = self._published[page]
            if entry.parent != chain or entry.tokens != span:
                break
            pages.append(page)
            chain = key
        return pages

    def _publish(self, state: _Sequence) -> None:
        num_full = min(state.length, len(state.prompt)) // self.page_size
        while state.num_published < num_full:
            start = state.num_published * self.page_size
            span = state.prompt[start : start + self.page_size]
            key = _chain_key(state.salt, state.chain, span)
            if key in self._index:
                return  # another computed the same meanwhile: ours stays private, and so does what follows it
            page = state.pages[state.num_published]
            self._published[page] = _Published(key, state.chain, span)
            self._index[key] = page
            state.chain = key
            state.num_published += 1

    # -- pages -------------------------------------------------------------------------------------------------------

    def _hold(self, page: int) -> None:
        self._cached.pop(page, None)
        self._num_holders[page] = self._num_holders.get(page, 0) + 1

    def _let_go(self, page: int) -> None:
        self._num_holders[page] -= 1
        if self._num_holders[page]:
            return
        del self._num_holders[page]
        if page in self._published:
            self._cached[page] = None
        else:
            self._free.add(page)

    def _evict(self) -> None:
        page, _ = self._cached.popitem(last=False)
        del self._index[self._published.pop(page).key]
        self._free.add(page)

    def _next_page(self, state: _Sequence) -> int:
        """The page after the sequence's last, so that attention can read a slice; else a new run, far from others."""
        if state.pages and state.pages[-1] + 1 in self._free:
            return state.pages[-1] + 1
        for _ in range(START_TRIES):
            self._num_runs += 1
            page = int(_spread(self._num_runs) * self.num_pages)
            if page in self._free:
                return page
        return next(iter(self._free))


def _spread(number: int) -> float:
    """The number's binary digits mirrored at the point, in [0, 1): each lies in a widest gap of those before it."""
    value, place = 0.0, 0.5
    while number:
        value += place * (number & 1)
        number, place = number >> 1, place / 2
    return value


def _chain_key(salt: str, parent: bytes, tokens: Sequence[int]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(len(salt).to_bytes(4, "little") + salt.encode())
    digest.update(parent + array("q", tokens).tobytes())
    return digest.digest()

"""Pages: who holds them, who shares them, and that they all come back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotfish.engine.batch import slots_of
from pilotfish.engine.kv import KVPool, PoolFull

PAGE = 4


def filled(pool: KVPool, name: str, tokens: list[int], salt: str = "") -> int:
    """Open a sequence and compute all its tokens; returns how many were found in KV."""
    cached = pool.open(name, tokens, salt)
    pool.reserve(name, len(tokens))
    pool.advance(name, len(tokens))
    pool.check()
    return cached


def test_reserve_is_all_or_nothing() -> None:
    """A reservation that does not fit says how many pages are short and changes nothing."""
    pool = KVPool(4, PAGE)
    pool.open("a", [1])
    pool.reserve("a", 2 * PAGE)
    pool.open("b", [1])
    with pytest.raises(PoolFull) as caught:
        pool.reserve("b", 3 * PAGE)
    assert (caught.value.num_pages_needed, caught.value.num_pages_free, caught.value.num_pages_short) == (3, 2, 1)
    assert pool.capacity("b") == 0
    assert pool.num_available_pages == 2
    pool.reserve("b", 2 * PAGE)
    pool.check()


def test_truncate_gives_pages_back() -> None:
    """Rolling back frees exactly the pages that lie wholly beyond the new length."""
    pool = KVPool(8, PAGE)
    filled(pool, "a", list(range(3)))
    pool.reserve("a", 5 * PAGE)
    pool.advance("a", 5 * PAGE)
    assert pool.truncate("a", PAGE + 1) == PAGE + 1
    assert pool.capacity("a") == 2 * PAGE
    assert pool.num_available_pages == 6
    pool.check()


def test_full_prompt_pages_are_shared() -> None:
    """A second sequence with the same beginning finds its whole pages in KV and uses the very same ones."""
    pool = KVPool(16, PAGE)
    prompt = list(range(11))
    assert filled(pool, "a", prompt) == 0
    assert pool.lookup([*prompt[:9], 99, 98]) == 8
    assert filled(pool, "b", [*prompt[:9], 99, 98]) == 8
    assert list(pool.pages("a"))[:2] == list(pool.pages("b"))[:2]
    assert pool.num_used_pages == 4


def test_one_token_is_always_left_to_compute() -> None:
    """A prompt that is wholly in KV still leaves its last page out, since logits of its last token are needed."""
    pool = KVPool(16, PAGE)
    filled(pool, "a", list(range(2 * PAGE)))
    assert pool.lookup(list(range(2 * PAGE))) == PAGE
    assert pool.lookup([*range(2 * PAGE), 7]) == 2 * PAGE


def test_salt_separates_tenants() -> None:
    """The same tokens under another salt share nothing."""
    pool = KVPool(16, PAGE)
    filled(pool, "a", list(range(9)), salt="tenant a")
    assert pool.lookup(list(range(9)), salt="tenant b") == 0
    assert filled(pool, "b", list(range(9)), salt="tenant b") == 0


def test_released_prefix_is_found_until_the_room_is_needed() -> None:
    """Pages of a closed sequence serve later ones, the least recently used is evicted first, its deepest page first."""
    pool = KVPool(6, PAGE)
    filled(pool, "a", [1] * 8 + [0])
    pool.release("a")
    filled(pool, "b", [2] * 8 + [0])
    pool.release("b")
    assert (pool.num_available_pages, pool.num_cached_pages) == (6, 4)
    pool.open("c", [3])
    pool.reserve("c", 3 * PAGE)
    assert pool.lookup([1] * 9) == PAGE
    assert pool.lookup([2] * 9) == 2 * PAGE
    pool.check()


def test_shared_pages_are_never_evicted() -> None:
    """A page somebody reads is not available, whoever computed it."""
    pool = KVPool(4, PAGE)
    filled(pool, "a", list(range(9)))
    filled(pool, "b", list(range(9)))
    pool.release("a")
    pool.open("c", [1])
    with pytest.raises(PoolFull):
        pool.reserve("c", 2 * PAGE)
    pool.check()


def test_generated_tokens_are_not_shared() -> None:
    """What lies beyond the prompt is nobody else's."""
    pool = KVPool(16, PAGE)
    filled(pool, "a", [1, 2, 3])
    pool.reserve("a", 12)
    pool.advance("a", 12)
    assert pool.lookup([1, 2, 3, *range(9)]) == 0
    pool.check()


def test_cut_through_a_shared_page_lets_it_go() -> None:
    """Rolling back into a page that others may read gives up the whole page instead of writing into it."""
    pool = KVPool(16, PAGE)
    filled(pool, "a", list(range(10)))
    filled(pool, "b", list(range(10)))
    assert pool.truncate("b", 6) == 4
    pool.reserve("b", 8)
    assert pool.pages("b")[1] != pool.pages("a")[1]
    pool.check()


def test_pages_of_a_sequence_are_adjacent_while_there_is_room() -> None:
    """Sequences that grow in turns each keep one run of pages, so that attention reads slices."""
    pool = KVPool(64, PAGE)
    for name in "abc":
        filled(pool, name, [ord(name)] * 9)
    for length in range(10, 30):
        for name in "abc":
            pool.reserve(name, length)
            pool.advance(name, length)
    for name in "abc":
        pages = list(pool.pages(name))
        assert pages == list(range(pages[0], pages[0] + len(pages)))


def test_move_brings_a_path_to_the_front() -> None:
    """The slots of an accepted path are copied to where a chain would have them; what lies right is left out."""
    pool = KVPool(8, PAGE)
    filled(pool, "a", [5, 6, 7])
    pool.reserve("a", 10)
    sources, destinations = pool.move("a", [3, 5, 8], 3)
    pages = list(pool.pages("a"))
    assert sources == [slots_of(pages, 5, 6, PAGE)[0], slots_of(pages, 8, 9, PAGE)[0]]
    assert destinations == slots_of(pages, 4, 6, PAGE)
    for wrong in ([2], [5, 5], [6, 5]):
        with pytest.raises(ValueError, match="cannot move"):
            pool.move("a", wrong, 3)


def test_impossible_lengths_are_refused() -> None:
    """Lengths outside what is reserved or valid, and a second opening, are errors that name the values."""
    pool = KVPool(8, PAGE)
    pool.open("a", [1, 2])
    with pytest.raises(ValueError, match="open already"):
        pool.open("a", [1])
    with pytest.raises(ValueError, match=r"length 3 outside \[0, 0\]"):
        pool.advance("a", 3)
    with pytest.raises(ValueError, match="outside"):
        pool.truncate("a", 1)
    with pytest.raises(ValueError, match="at least one page"):
        KVPool(0, PAGE)


class PoolMachine(RuleBasedStateMachine):
    """Random operations against a model that knows what KV every sequence must see."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(12, PAGE)
        self.kv: dict[int, tuple[str, int]] = {}  # slot -> (salt and token history, token): what was written there
        self.tokens: dict[int, list[int]] = {}
        self.salts: dict[int, str] = {}
        self.opened = 0

    @rule(
        length=st.integers(1, 17),
        fork=st.sampled_from([0, PAGE, PAGE + 2, 17]),
        salt=st.sampled_from(["", "x"]),
    )
    def open(self, length: int, fork: int, salt: str) -> None:
        """Prompts that agree up to a fork, so that they often share pages."""
        tokens = ([0] * fork + [1] * 17)[:length]
        name, self.opened = self.opened, self.opened + 1
        expected = self.pool.lookup(tokens, salt)
        assert self.pool.open(name, tokens, salt) == expected < len(tokens)
        self.tokens[name], self.salts[name] = tokens, salt

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.integers(1, 9))
    def compute(self, data: st.DataObject, more: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        start = self.pool.length(name)
        stop = start + more
        available = self.pool.num_available_pages
        if -(-stop // PAGE) - len(self.pool.pages(name)) > available:
            with pytest.raises(PoolFull):
                self.pool.reserve(name, stop)
            return
        self.pool.reserve(name, stop)
        tokens = self.tokens[name]
        while len(tokens) < stop:
            tokens.append(name % 2)
        for index, slot in enumerate(slots_of(self.pool.pages(name), start, stop, PAGE), start):
            self.kv[slot] = (f"{self.salts[name]}{tokens[:index]}", tokens[index])
        self.pool.advance(name, stop)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        length = data.draw(st.integers(0, self.pool.length(name)))
        left = self.pool.truncate(name, length)
        assert length - PAGE < left <= length
        prompt = self.pool._sequences[name].prompt
        self.tokens[name] = [*self.tokens[name][:left], *prompt[left:]]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        self.pool.release(name)
        del self.tokens[name], self.salts[name]

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        assert self.pool.num_cached_pages == 0

    @invariant()
    def every_sequence_sees_its_own_past(self) -> None:
        """No operation on one sequence changes what another reads."""
        self.pool.check()
        for name, tokens in self.tokens.items():
            for index, slot in enumerate(slots_of(self.pool.pages(name), 0, self.pool.length(name), PAGE)):
                assert self.kv[slot] == (f"{self.salts[name]}{tokens[:index]}", tokens[index])

    def teardown(self) -> None:
        """With no sequence left every page is available."""
        for name in self.tokens:
            self.pool.release(name)
        self.pool.check()
        assert self.pool.num_used_pages == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

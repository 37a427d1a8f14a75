from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.text import AnswerText, Detokenizer, Vocabulary
from pilotfish import tablefile
from pilotfish.tokenizer import LibraryTokenizer, TableTokenizer, Tokenizer

EMOJI = "\U0001f600"
BYTES = [f"<0x{byte:02X}>" for byte in (*EMOJI.encode(), *"é".encode(), 0xFF)]
TABLE = TableTokenizer(tablefile.parse({"vocabulary": [*"abEND !", *BYTES], "script": [0]}))
NUM_LETTERS = 7


class LibraryLike(Tokenizer):
    """A tokenizer of the tokenizers library, made in the test."""

    def __init__(self, library: Any) -> None:
        self.library = library

    @property
    def vocabulary(self) -> Sequence[str]:
        by_string: dict[str, int] = self.library.get_vocab()
        return [string for string, _ in sorted(by_string.items(), key=lambda entry: entry[1])]

    @property
    def vocabulary_hash(self) -> str:
        return "made"

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset()

    def encode(self, text: str) -> list[int]:
        return list(self.library.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.library.decode(list(ids)))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise NotImplementedError


def byte_level() -> LibraryLike:
    """Bytes and a few merges, as GPT-2 and Llama 3 have them: characters are spread over tokens."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(["the cat sat on the mat 中文 中国", f"{EMOJI}{EMOJI}"] * 20, trainer)
    return LibraryLike(library)


def byte_fallback() -> LibraryLike:
    """Words with a mark for the space, bytes for what has no token, as Llama 2 and Mistral have them."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers

    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", *"abcdefghijklmnopqrstuvwxyz"]
    library = Library(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return LibraryLike(library)


TOKENIZERS = {"table": TABLE, "byte level": byte_level(), "byte fallback": byte_fallback()}
TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("ab the cat END !"), st.characters(codec="utf-8", max_codepoint=0x1FFFF)),
    max_size=40,
)


def whole(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of tokens in the middle of a text, decoded at once behind an ordinary letter."""
    letter = next(
        token
        for token in range(len(tokenizer.vocabulary))
        if (text := tokenizer.decode([token])).isascii() and text.isalpha()
    )
    return tokenizer.decode([letter, *tokens])[len(tokenizer.decode([letter])) :]


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@given(text=TEXTS.filter(lambda text: "\ufffd" not in text))
def test_stream_equals_whole(name: str, text: str) -> None:
    """Token by token the text is the same as decoded at once, and no character is ever shown in halves."""
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text)
    detokenizer = Detokenizer(Vocabulary(tokenizer))
    pieces = [detokenizer.feed(token) for token in tokens]
    assert "".join(pieces) == whole(tokenizer, tokens)
    assert "\ufffd" not in "".join(pieces)


@given(tokens=st.lists(st.integers(0, len(TABLE.vocabulary) - 1), max_size=60))
def test_any_bytes(tokens: list[int]) -> None:
    """Bytes that are no character are U+FFFD, as in any decoder; only what the answer ends within is left out."""
    detokenizer = Detokenizer(Vocabulary(TABLE))
    text = "".join(detokenizer.feed(token) for token in tokens)
    expected = TABLE.decode(tokens)
    assert expected.startswith(text)
    assert len(expected) - len(text) <= 3
    assert set(expected[len(text) :]) <= {"\ufffd"}


@given(tokens=st.lists(st.integers(0, 255), min_size=1, max_size=80))
def test_any_bytes_of_a_library_tokenizer(tokens: list[int]) -> None:
    """The same for the tokens of a byte-level tokenizer in any order."""
    tokenizer = TOKENIZERS["byte level"]
    detokenizer = Detokenizer(Vocabulary(tokenizer))
    text = "".join(detokenizer.feed(token) for token in tokens)
    expected = whole(tokenizer, tokens)
    assert expected.startswith(text)
    assert set(expected[len(text) :]) <= {"\ufffd"}


def test_bounded_cost() -> None:
    """A token costs the same after ten thousand broken bytes as after ten."""
    decoded: list[int] = []

    class Counting(Vocabulary):
        def text(self, tokens: Sequence[int]) -> str:
            decoded.append(len(tokens))
            return super().text(tokens)

    detokenizer = Detokenizer(Counting(TABLE))
    broken = len(TABLE.vocabulary) - 1
    for _ in range(10_000):
        detokenizer.feed(broken)
    assert max(decoded) <= 16


def test_emoji_split_anywhere() -> None:
    """A character of four byte tokens comes out once, with its last byte."""
    text = AnswerText(Vocabulary(TABLE), [])
    tokens = [NUM_LETTERS + index for index in range(4)]
    pieces = [text.feed([token]) for token in tokens]
    assert [piece.text for piece in pieces] == ["", "", "", EMOJI]
    assert [piece.num_characters for piece in pieces] == [(0,), (0,), (0,), (1,)]


def test_end_within_a_character() -> None:
    """A character whose last byte never came is left out."""
    text = AnswerText(Vocabulary(TABLE), [])
    piece = text.feed([0, NUM_LETTERS, NUM_LETTERS + 1])
    assert piece.text + text.finish() == "a"
    assert piece.num_characters == (1, 0, 0)


@given(
    letters=st.text(alphabet="abEND !", max_size=40),
    stops=st.lists(st.sampled_from(["END", "ND!", "ab", "E E"]), max_size=2, unique=True),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_every_block_size_gives_the_same_answer(letters: str, stops: list[str], sizes: list[int]) -> None:
    """In blocks of any size the text, the tokens that count and the characters of each are the same as one by one."""
    tokens = TABLE.encode(letters)
    one_by_one = answer(tokens, stops, [1])
    assert answer(tokens, stops, sizes) == one_by_one
    text, num_tokens, characters = one_by_one
    assert sum(characters) <= len(text)
    assert num_tokens == len(characters)


def answer(tokens: Sequence[int], stops: Sequence[str], sizes: Sequence[int]) -> tuple[str, int, list[int]]:
    """Text, number of tokens and characters by token of an answer that comes in blocks."""
    text = AnswerText(Vocabulary(TABLE), stops)
    characters: list[int] = []
    got, start, index = "", 0, 0
    while start < len(tokens):
        block = tokens[start : start + sizes[index % len(sizes)]]
        start, index = start + len(block), index + 1
        piece = text.feed(block)
        got += piece.text
        characters += piece.num_characters
        if piece.is_stopped:
            return got, len(characters), characters
    return got + text.finish(), len(characters), characters


def test_real_tokenizer(smollm2: Path) -> None:
    """With the real model's tokenizer the stream equals the whole, for prose, code, emoji and any tokens at all."""
    tokenizer = LibraryTokenizer(smollm2)
    vocabulary = Vocabulary(tokenizer)
    text = (Path(__file__).read_text(encoding="utf-8") + f"{EMOJI}👍🏽 中文字符 ünïcödé\n\t👨‍👩‍👧‍👦") * 2
    detokenizer = Detokenizer(vocabulary)
    assert "".join(detokenizer.feed(token) for token in tokenizer.encode(text)) == text
    source = random.Random(1)
    for _ in range(100):
        tokens = [source.randrange(len(tokenizer.vocabulary)) for _ in range(60)]
        detokenizer = Detokenizer(vocabulary)
        got = "".join(detokenizer.feed(token) for token in tokens)
        expected = whole(tokenizer, tokens)
        assert expected.startswith(got)
        assert set(expected[len(got) :]) <= {"\ufffd"}

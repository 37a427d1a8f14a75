"""Tokens to text, one by one, in whole characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.stop import StopStrings
from pilotfish.tokenizer import Tokenizer

_UNFINISHED = "\ufffd"  # what decoding gives for bytes that are no character (yet)
_LONGEST_UNFINISHED = 3  # bytes of a UTF-8 character that has four
_NUM_ANCHOR_CANDIDATES = 512


class Vocabulary:
    """What each token of a tokenizer adds to a text.

    A token's text depends on what precedes it only at the beginning of a text (where some tokenizers take a space
    away) and inside a character that is spread over several tokens. So tokens are decoded behind an anchor, an
    ordinary token whose text is then cut off, and what one of them adds is remembered.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor, self._num_anchor_characters = _find_anchor(tokenizer)
        self._pieces: dict[int, str] = {}

    def text(self, tokens: Sequence[int]) -> str:
        """Text of tokens in the middle of a text; U+FFFD where bytes make no character."""
        return self._tokenizer.decode((*self._anchor, *tokens))[self._num_anchor_characters :]

    def piece(self, token: int) -> str:
        """Text of one token, as `text` gives it."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self.text((token,))
        return piece


def _find_anchor(tokenizer: Tokenizer) -> tuple[tuple[int, ...], int]:
    """A token that is a plain letter, and the length of its text; none where the vocabulary has no such token."""
    for token in range(min(len(tokenizer.vocabulary), _NUM_ANCHOR_CANDIDATES)):
        text = tokenizer.decode((token,))
        if text.isascii() and text.isalpha():
            return (token,), len(text)
    return (), 0


class Detokenizer:
    """Turns the tokens of one answer into text, in whole characters, at a bounded cost per token.

    A character that never gets its last byte, because other bytes follow, is U+FFFD as in any decoder; one that the
    answer ends within is left out.
    """

    __slots__ = ("_num_told", "_pending", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pending: list[int] = []  # tokens since the last one that ended with a whole character
        self._num_told = 0  # characters of the pending tokens' text that were returned already

    def feed(self, token: int) -> str:
        """Text that became certain with this token; "" inside a character."""
        if not self._pending:
            piece = self._vocabulary.piece(token)
            if not piece.endswith(_UNFINISHED):
                return piece
        self._pending.append(token)
        text = self._vocabulary.text(self._pending)
        whole = text.rstrip(_UNFINISHED)
        if len(whole) == len(text):
            told, self._num_told = self._num_told, 0
            self._pending.clear()
            return text[told:]
        # Only the last bytes can still become a character: what lies further back is broken for good.
        certain = max(len(whole), len(text) - _LONGEST_UNFINISHED, self._num_told)
        piece, self._num_told = text[self._num_told : certain], certain
        self._forget(text)
        return piece

    def _forget(self, text: str) -> None:
        """Keep the pending tokens few where bytes never make a whole character."""
        if len(self._pending) <= 4 * _LONGEST_UNFINISHED:
            return
        kept = self._pending[-_LONGEST_UNFINISHED - 1 :]
        tail = self._vocabulary.text(kept)
        num_forgotten = len(text) - len(tail)
        if text.endswith(tail) and num_forgotten <= self._num_told:
            self._pending = kept
            self._num_told -= num_forgotten


class Piece(NamedTuple):
    """What some committed tokens add to the answer."""

    text: str
    num_characters: tuple[int, ...]  # of `text`, by token; fewer tokens than were fed where a stop string cut them
    is_stopped: bool  # a stop string is complete with the last of these tokens


class AnswerText:
    """The text of one answer: whole characters, cut before the first stop string."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopStrings(stops)

    def feed(self, tokens: Iterable[int]) -> Piece:
        """Take the next committed tokens. Those after the one that completes a stop string are not part of it."""
        texts: list[str] = []
        for token in tokens:
            cut = self._stops.feed(self._detokenizer.feed(token))
            texts.append(cut.text)
            if cut.is_stopped:
                return Piece("".join(texts), tuple(map(len, texts)), True)
        return Piece("".join(texts), tuple(map(len, texts)), False)

    def finish(self) -> str:
        """Text that only the end made certain. A character the answer ended within is left out."""
        return self._stops.finish()

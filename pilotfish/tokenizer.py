"""Text to ids and back, for any model that `models.resolve` understands. No torch.

Stands apart from the text a coordinator streams: what is here is whole strings in, whole strings out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pilotfish import models, tablefile
from pilotfish.errors import InvalidArgument, MissingModel
from pilotfish.progress import Progress, quiet

_PADDING = re.compile(r"\[PAD(\d+)\]")


class Tokenizer(Protocol):
    """A model's vocabulary, and text in terms of it."""

    @property
    def vocabulary(self) -> Sequence[str]:
        """Token strings in id order, padding ids left out."""

    @property
    def vocabulary_hash(self) -> str:
        """Equal exactly where the vocabularies are."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply."""

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with what the model wants at its beginning."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out; U+FFFD where bytes make no character."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation (`role`, `content`), up to where the model's reply begins."""


def load_tokenizer(source: models.ModelSource | str, progress: Progress = quiet) -> Tokenizer:
    """The tokenizer of a model; fetches what `models.provide_tokenizer` has to.

    Raises:
        PilotfishError: the model cannot be had, or has no tokenizer.
    """
    source = models.resolve(source) if isinstance(source, str) else source
    path = models.provide_tokenizer(source, progress)
    return TableTokenizer(tablefile.TableFile.load(path)) if source.is_table else LibraryTokenizer(path)


class LibraryTokenizer:
    """A tokenizer of the transformers library, from a directory."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        self._directory = directory
        try:
            self.library: Any = AutoTokenizer.from_pretrained(str(directory))
        except (OSError, ValueError) as error:
            raise MissingModel(
                f"{str(directory)!r} holds no tokenizer that transformers can load ({error}); it wants tokenizer.json"
            ) from error

    @cached_property
    def vocabulary(self) -> Sequence[str]:
        by_string: dict[str, int] = self.library.get_vocab()
        strings = [""] * (max(by_string.values(), default=-1) + 1)
        for string, token in by_string.items():
            strings[token] = string
        return without_padding(strings)

    @cached_property
    def vocabulary_hash(self) -> str:
        return vocabulary_hash(self.vocabulary)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        own = self.library.eos_token_id
        return end_ids(self._directory) or frozenset(() if own is None else (own,))

    def encode(self, text: str) -> list[int]:
        return list(self.library.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.library.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation, up to where the model's reply begins.

        Raises:
            InvalidArgument: the model has no chat template, or its template refuses these messages.
        """
        from jinja2 import TemplateError

        if not self.library.chat_template:
            raise InvalidArgument("the model has no chat template: give a prompt instead of messages", field="messages")
        try:
            text = self.library.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise InvalidArgument(
                f"the model's chat template refuses these messages: {error}", field="messages"
            ) from error
        return list(self.library.encode(text, add_special_tokens=False))


class TableTokenizer:
    """The tokenizer of a table model."""

    def __init__(self, table: tablefile.TableFile) -> None:
        self._table = table

    @property
    def vocabulary(self) -> Sequence[str]:
        return self._table.vocabulary

    @property
    def vocabulary_hash(self) -> str:
        return self._table.vocabulary_hash

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset(self._table.end_ids)

    def encode(self, text: str) -> list[int]:
        return self._table.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._table.decode(token for token in ids if token not in self._table.end_ids)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The contents one after the other: a table model knows no roles."""
        return self._table.encode("".join(message["content"] for message in messages))


def vocabulary_hash(strings: Sequence[str]) -> str:
    """Hash over the token strings in id order; padding ids at the end do not count."""
    return tablefile.vocabulary_hash(without_padding(strings))


def without_padding(strings: Sequence[str]) -> Sequence[str]:
    """Cut the ids that only fill a vocabulary up to a round size: no string, or `[PAD<id>]` as GGUF files write it."""
    end = len(strings)
    while end and _is_padding(strings[end - 1], end - 1):
        end -= 1
    return strings[:end]


def _is_padding(string: str, token: int) -> bool:
    match = _PADDING.fullmatch(string)
    return not string or (match is not None and int(match[1]) == token)


def end_ids(directory: Path) -> frozenset[int]:
    """Ids that end a reply, as generation_config.json says, else config.json; empty where neither does."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if not path.is_file():
            continue
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return frozenset()

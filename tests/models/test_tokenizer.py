from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.errors import InvalidArgument, MissingModel
from pilotfish.tokenizer import LibraryTokenizer, end_ids, load_tokenizer, vocabulary_hash
from tests.models.tiny_gguf import TOKENS, write_gguf

TABLE = {"vocabulary": ["a", "b", "</s>"], "end_ids": [2], "law": {"*": [1, 1, 1]}}


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(TABLE))
    return f"table:{path}"


def test_the_hash_tells_permuted_strings_apart() -> None:
    """Vocabularies of the same strings in another order have different hashes."""
    assert vocabulary_hash(["a", "b", "c"]) != vocabulary_hash(["b", "a", "c"])


def test_the_hash_tells_borders_apart() -> None:
    """Strings that only join to the same text have different hashes."""
    assert vocabulary_hash(["ab", "c"]) != vocabulary_hash(["a", "bc"])


def test_padding_does_not_count() -> None:
    """Ids that fill a vocabulary up, nameless or named [PAD<id>], leave the hash as it is."""
    plain = vocabulary_hash(["a", "b"])
    assert vocabulary_hash(["a", "b", "", ""]) == plain
    assert vocabulary_hash(["a", "b", "[PAD2]", "[PAD3]"]) == plain


def test_what_only_looks_like_padding_counts() -> None:
    """A token named [PAD<n>] for another n, or an empty one before the end, is a token."""
    assert vocabulary_hash(["a", "b", "[PAD7]"]) != vocabulary_hash(["a", "b"])
    assert vocabulary_hash(["a", "", "b"]) != vocabulary_hash(["a", "b"])


def test_table_tokenizer(table: str) -> None:
    """A table model's tokenizer turns text into ids and back, without its end tokens."""
    tokenizer = load_tokenizer(table)
    assert tokenizer.encode("abba") == [0, 1, 1, 0]
    assert tokenizer.decode([0, 1, 2]) == "ab"
    assert tokenizer.end_ids == {2}
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ba"}]) == [1, 0]
    assert tokenizer.vocabulary_hash == vocabulary_hash(TABLE["vocabulary"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(7, 1, {7}), ([7, 8], 1, {7, 8}), (None, 1, {1}), (None, None, set())],
)
def test_end_ids(tmp_path: Path, generation: object, config: object, expected: set[int]) -> None:
    """End ids come from generation_config.json, one or several, else from config.json, else there are none."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    assert end_ids(tmp_path) == expected


def test_a_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    """A model directory without a tokenizer is refused by name."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MissingModel, match=r"tokenizer\.json"):
        LibraryTokenizer(tmp_path)


def test_the_real_tokenizer(smollm2: Path) -> None:
    """SmolLM2's tokenizer, as converted, gives back any text, splits digits, and knows its end id and its template."""
    tokenizer = load_tokenizer(str(smollm2))
    text = "Hello  wörld 😀\n\tdef f(x): return 12345"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.vocabulary) == 49_152
    assert tokenizer.end_ids == {2}
    assert len(tokenizer.encode("12345")) == 5
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    roles = [
        tokenizer.vocabulary[ids[i + 1]] for i, token in enumerate(ids) if tokenizer.vocabulary[token] == "<|im_start|>"
    ]
    assert roles == ["system", "user", "ass"]
    assert ids[-1] == tokenizer.encode("\n")[0]


def test_messages_the_template_refuses(smollm2: Path) -> None:
    """A model without a chat template refuses messages and says what to give instead."""
    tokenizer = LibraryTokenizer(smollm2)
    tokenizer.library.chat_template = None
    with pytest.raises(InvalidArgument, match="a prompt instead"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    tokenizer.library.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidArgument, match="roles must alternate"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_gguf_file_needs_no_torch_for_its_tokenizer(tmp_path: Path) -> None:
    """Where torch is not installed the tokenizer of a GGUF file is converted alone, once."""
    write_gguf(tmp_path / "tiny.gguf")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pilotfish.tokenizer import load_tokenizer\n"
        f"for _ in range(2): print(load_tokenizer({str(tmp_path / 'tiny.gguf')!r}).encode('abc'))"
    )
    environment = {**os.environ, "PILOTFISH_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([TOKENS.index("ab"), TOKENS.index("c")])] * 2
    (made,) = [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    assert made.name.endswith(".tokenizer")


def test_no_torch_is_needed(smollm2: Path) -> None:
    """Where torch cannot be imported, models are resolved and tokenizers loaded all the same."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pilotfish.tokenizer import load_tokenizer\n"
        f"print(load_tokenizer({str(smollm2)!r}).encode('hello'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == load_tokenizer(str(smollm2)).encode("hello")

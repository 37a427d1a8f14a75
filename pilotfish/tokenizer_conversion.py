"""The tokenizer of a GGUF file becomes a directory that transformers loads. No torch, so that a coordinator can do it.

The library does the same, but reads the file with torch. What a vocabulary in the file means is still its to say: only
the reading is ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def convert_tokenizer(gguf: Path, directory: Path, end_tokens: Sequence[str] = ()) -> None:
    """Write the tokenizer, its chat template and the end ids.

    Args:
        gguf: the file.
        directory: exists and is empty.
        end_tokens: what ends a reply, besides the file's own end token.
    """
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    metadata = {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}
    described, configuration = (
        {name: metadata[f"tokenizer.{key}"] for key, name in renames.items() if f"tokenizer.{key}" in metadata}
        for renames in (GGUF_TOKENIZER_MAPPING["tokenizer"], GGUF_TOKENIZER_MAPPING["tokenizer_config"])
    )
    if described.get("tokenizer_type") == "llama":
        configuration.setdefault("add_bos_token", True)  # what llama.cpp does where the file says nothing
    for name, key in _SPECIAL_TOKENS.items():
        token = metadata.get(f"tokenizer.ggml.{key}")
        configuration[name] = None if token is None else described["tokens"][token]
    backend, _ = convert_gguf_tokenizer(metadata["general.architecture"], described)
    PreTrainedTokenizerFast(tokenizer_object=backend, **configuration).save_pretrained(directory)
    write_end_ids(directory, metadata.get("tokenizer.ggml.eos_token_id"), backend.get_vocab(), end_tokens)


def write_end_ids(
    directory: Path, own: int | list[int] | None, vocabulary: Mapping[str, int], end_tokens: Iterable[str]
) -> None:
    """Put the end ids into generation_config.json, which may be there already.

    Raises:
        ValueError: a token that the vocabulary lacks.
    """
    path = directory / "generation_config.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    content.pop("_from_model_config", None)
    content["eos_token_id"] = _end_ids(own, vocabulary, end_tokens)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _end_ids(own: int | list[int] | None, vocabulary: Mapping[str, int], end_tokens: Iterable[str]) -> list[int]:
    """The file's own end ids and those of the named tokens, each once."""
    ids = [] if own is None else [own] if isinstance(own, int) else list(own)
    for token in end_tokens:
        if token not in vocabulary:
            raise ValueError(f"the end token {token!r} is not in the vocabulary")
        ids.append(vocabulary[token])
    return list(dict.fromkeys(ids))

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pilotfish.conversion import convert
from pilotfish.errors import UnsupportedModel
from pilotfish.modelcache import ModelCache
from pilotfish.tokenizer import LibraryTokenizer, end_ids
from pilotfish.tokenizer_conversion import convert_tokenizer
from tests.models.tiny_gguf import TEMPLATE, TOKENS, write_gguf


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "converted"
    path.mkdir()
    return path


def test_float32_holds_every_value_of_the_file(tmp_path: Path, directory: Path) -> None:
    """In float32 the converted weights are exactly the numbers that the file's blocks stand for."""
    values = write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", directory, torch.float32)
    model = AutoModelForCausalLM.from_pretrained(directory)
    state = model.state_dict()
    assert model.dtype == torch.float32
    for ours, theirs in {
        "token_embd": "model.embed_tokens",
        "output": "lm_head",
        "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    }.items():
        assert np.array_equal(state[f"{theirs}.weight"].numpy(), values[ours]), ours


def test_bfloat16_is_the_nearest(tmp_path: Path, directory: Path) -> None:
    """In bfloat16 the converted weights are the file's numbers rounded once."""
    values = write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", directory, torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(directory)
    expected = torch.from_numpy(values["output"]).to(torch.bfloat16)
    assert torch.equal(model.state_dict()["lm_head.weight"], expected)


def test_tokenizer_template_and_end_ids_survive(tmp_path: Path, directory: Path) -> None:
    """The converted directory has the file's tokenizer and chat template, and every end token that was named."""
    write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", directory, torch.float32, ["<reply>"])
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.encode("abc", add_special_tokens=False) == [TOKENS.index("ab"), TOKENS.index("c")]
    assert tokenizer.chat_template == TEMPLATE
    assert end_ids(directory) == {0, 1}
    assert AutoModelForCausalLM.from_pretrained(directory).generation_config.eos_token_id == [0, 1]


def test_the_tokenizer_alone_is_the_same(tmp_path: Path, directory: Path) -> None:
    """The tokenizer converted without the weights is the whole conversion's: strings, ids, template, end ids."""
    write_gguf(tmp_path / "tiny.gguf")
    alone = tmp_path / "alone"
    alone.mkdir()
    convert(tmp_path / "tiny.gguf", directory, torch.float32, ["<reply>"])
    convert_tokenizer(tmp_path / "tiny.gguf", alone, ["<reply>"])
    assert (alone / "tokenizer.json").read_bytes() == (directory / "tokenizer.json").read_bytes()
    whole, part = LibraryTokenizer(directory), LibraryTokenizer(alone)
    assert part.encode("abcab") == whole.encode("abcab")
    assert part.end_ids == whole.end_ids == {0, 1}
    assert part.apply_chat_template([{"role": "user", "content": "ab"}]) == [TOKENS.index("ab")]
    assert not list(alone.glob("*.safetensors"))


def test_a_head_that_equals_the_embedding_is_stored_once(tmp_path: Path, directory: Path) -> None:
    """A file that repeats the embedding as its head becomes a model whose head is tied."""
    write_gguf(tmp_path / "tiny.gguf", head="equal")
    convert(tmp_path / "tiny.gguf", directory, torch.float32)
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_a_file_that_lacks_weights_is_refused(tmp_path: Path, directory: Path) -> None:
    """A file without some of the weights is refused by their name; they are not made up."""
    write_gguf(tmp_path / "tiny.gguf", leave_out="blk.1.attn_q")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight"):
        convert(tmp_path / "tiny.gguf", directory, torch.float32)


def test_an_unknown_end_token_is_refused(tmp_path: Path, directory: Path) -> None:
    """An end token that the vocabulary lacks is refused by name."""
    write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ValueError, match="<nowhere>"):
        convert(tmp_path / "tiny.gguf", directory, torch.float32, ["<nowhere>"])


def test_what_the_conversion_says_reaches_the_user(tmp_path: Path) -> None:
    """A file that cannot be converted ends in an error with the file's name and the conversion's own words."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 20)
    with pytest.raises(UnsupportedModel, match=r"cut\.gguf"):
        ModelCache(tmp_path / "cache").gguf(path)

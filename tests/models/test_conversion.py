"""Conversions of a GGUF file small enough to be written here."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pilotfish.conversion import convert
from pilotfish.errors import UnsupportedModel
from pilotfish.modelcache import ModelCache
from pilotfish.tokenizer import end_ids

NUM_LAYERS, WIDTH, HEADS, FEED_FORWARD = 2, 64, 4, 96
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TOKENS = ["<end>", "<reply>", *(chr(c) for c in range(ord("a"), ord("z") + 1)), "ab", "[PAD29]"]


def write_gguf(path: Path, *, leave_out: str = "", head: str = "own") -> dict[str, np.ndarray]:
    """A Llama of random weights; its quantised tensors as the numbers they stand for are returned."""
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * 27, 5])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    if head != "none":
        shapes["output"] = (len(TOKENS), WIDTH)
    for i in range(NUM_LAYERS):
        shapes |= {f"blk.{i}.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.attn_norm": (WIDTH,), f"blk.{i}.ffn_norm": (WIDTH,)}
        shapes |= {f"blk.{i}.ffn_gate": (FEED_FORWARD, WIDTH), f"blk.{i}.ffn_up": (FEED_FORWARD, WIDTH)}
        shapes[f"blk.{i}.ffn_down"] = (WIDTH, FEED_FORWARD)
    values: dict[str, np.ndarray] = {}
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, shape in shapes.items():
        weights = random.normal(0, 0.2, shape).astype(np.float32)
        if name == "output" and head == "equal":
            weights = values["token_embd"]
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", weights)
            continue
        blocks = gguf.quants.quantize(weights, kind)
        values[name] = gguf.quants.dequantize(blocks, kind)
        if name != leave_out:
            writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


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

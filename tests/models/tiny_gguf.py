"""A GGUF file small enough to be written in a test."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

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

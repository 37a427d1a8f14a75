"""A GGUF file becomes a directory that transformers loads: weights, tokenizer, end ids. A process, run once per file.

python -m pilotfish.conversion FILE.gguf DIRECTORY --dtype float32
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pilotfish.tokenizer_conversion import write_end_ids


def convert(gguf: Path, directory: Path, dtype: torch.dtype, end_tokens: Sequence[str] = ()) -> None:
    """Write weights, tokenizer and configurations.

    Args:
        gguf: the file; its quantised blocks become numbers, exactly as the format defines them, in float32.
        directory: exists and is empty.
        dtype: of the weights on disk; any but float32 rounds them.
        end_tokens: what ends a reply, besides the file's own end token.

    Raises:
        ValueError: the file does not hold every weight its architecture needs.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.save_pretrained(directory)
    model, loading = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(f"{gguf.name} lacks weights that {type(model).__name__} needs: {', '.join(missing[:3])}")
    _tie_equal_embeddings(model)
    model.hf_quantizer = None  # it is no quantised model any more, and save_pretrained would refuse it
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(dtype).save_pretrained(directory)
    write_end_ids(directory, model.generation_config.eos_token_id, tokenizer.get_vocab(), end_tokens)
    for path in directory.iterdir():
        path.chmod(0o644)  # save_pretrained keeps weights to their owner; a service may run as somebody else


def _tie_equal_embeddings(model: Any) -> None:
    """A head that equals the input embedding is stored once."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embedding.weight and torch.equal(head.weight, embedding.weight):
        model.config.tie_word_embeddings = True
        model.tie_weights()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m pilotfish.conversion", description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--end-token", action="append", default=[], dest="end_tokens")
    parsed = parser.parse_args(arguments)
    convert(parsed.gguf, parsed.directory, getattr(torch, parsed.dtype), parsed.end_tokens)


if __name__ == "__main__":
    main()

"""Small random models of many families, and what a plain forward of the model library says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY_SIZE = 97
_LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GPT2_LIKE: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _llama_like(name: str, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, name)(**{**_LLAMA_LIKE, **more})


def _gpt2_like(name: str, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, name)(**{**_GPT2_LIKE, **more})


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama_like("LlamaConfig"),
    "qwen2": _llama_like("Qwen2Config"),
    "qwen2-window": _llama_like("Qwen2Config", use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": _llama_like("Qwen3Config", head_dim=8),
    "mistral": _llama_like("MistralConfig", sliding_window=5, head_dim=8),
    "gemma2": _llama_like(
        "Gemma2Config", sliding_window=5, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=0.5
    ),
    "gemma3": _llama_like("Gemma3TextConfig", sliding_window=5, head_dim=8, query_pre_attn_scalar=8),
    "gpt2": _gpt2_like("GPT2Config", n_positions=128),
    "phi": _llama_like("PhiConfig"),
    "phi3": _llama_like("Phi3Config"),
    "opt": _gpt2_like("OPTConfig", ffn_dim=48, max_position_embeddings=128, word_embed_proj_dim=32),
    "gpt-neox": _gpt2_like("GPTNeoXConfig", intermediate_size=48, max_position_embeddings=128),
    "cohere": _llama_like("CohereConfig"),
    "mixtral": _llama_like("MixtralConfig", num_local_experts=4),
    "qwen2-moe": _llama_like(
        "Qwen2MoeConfig",
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    "gpt-oss": _llama_like(
        "GptOssConfig", sliding_window=5, head_dim=8, num_local_experts=4, rope_parameters={"rope_type": "default"}
    ),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "stablelm": _llama_like("StableLmConfig"),
    "bloom": _gpt2_like("BloomConfig"),
    "mpt": lambda: transformers.MptConfig(vocab_size=VOCABULARY_SIZE, d_model=32, n_layers=2, n_heads=4),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCABULARY_SIZE, hidden_size=32, num_hidden_layers=2),
    "llama4": _llama_like("Llama4TextConfig", num_local_experts=2, intermediate_size_mlp=48, head_dim=8),
}


def tiny(config: Any, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """A model with random weights large enough that attention matters."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.15) if weight.dim() > 1 else weight.add_(torch.randn_like(weight) * 0.1)
            weight.data = weight.data.to(dtype)
    return model.to(device)


@torch.inference_mode()
def plain_logits(model: Any, tokens: list[int]) -> Tensor:
    """[len(tokens), V] of the library's own forward, without cache."""
    logits: Tensor = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits
    return logits[0].float().cpu()


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Pseudo-random ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY_SIZE, (count,), generator=generator).tolist()

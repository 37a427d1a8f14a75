"""A draft model from the drafter's settings."""

from __future__ import annotations

from typing import NamedTuple

import torch

from drafter.settings import DrafterSettings
from drafter.speculators import Facts
from pilotfish import models
from pilotfish.engine.backend import Backend
from pilotfish.engine.model import TransformersBackend
from pilotfish.engine.table import TableBackend
from pilotfish.errors import ConfigurationError
from pilotfish.tablefile import TableFile
from pilotfish.tokenizer import TableTokenizer, Tokenizer, load_tokenizer

MAX_KV_PAGES = 16_384  # what is read again costs a drafter little; keeping books of more pages costs every session


class DraftModel(NamedTuple):
    """A model whose KV is not allocated yet, and what there is to say of it."""

    backend: Backend
    facts: Facts
    num_kv_pages: int


def load(settings: DrafterSettings) -> DraftModel:
    """Load the model that the settings name.

    Raises:
        ConfigurationError: none is named, or its device is not there.
        MissingModel: it is not there.
        UnsupportedModel: it cannot be run faithfully.
    """
    if settings.model is None:
        raise ConfigurationError.of("model", None, "the speculator model needs one; say which with --model")
    source = models.resolve(settings.model)
    path = models.provide(source)
    tokenizer: Tokenizer
    backend: Backend
    if source.is_table:
        table = TableFile.load(path)
        backend, tokenizer = TableBackend(table), TableTokenizer(table)
    else:
        models.require_weights(path)
        tokenizer = load_tokenizer(source)
        backend = TransformersBackend.load(path, settings.dtype, _device(settings.device), settings.threads)
    num_kv_pages = _num_kv_pages(settings, backend)
    return DraftModel(backend, _facts(settings, backend, tokenizer, num_kv_pages), num_kv_pages)


def _num_kv_pages(settings: DrafterSettings, backend: Backend) -> int:
    """Pages that the memory holds, but no more than all sessions could use.

    Raises:
        ConfigurationError: not even one.
    """
    if settings.num_kv_pages is not None:
        return settings.num_kv_pages
    page_bytes = settings.page_size * backend.kv_bytes_per_token
    num_pages = settings.kv_memory_mb * 2**20 // page_bytes
    if num_pages < 1:
        remedy = f"a page of {settings.page_size} tokens needs {page_bytes} bytes; give more"
        raise ConfigurationError.of("kv_memory_mb", settings.kv_memory_mb, remedy)
    most = settings.max_sessions * -(-backend.context_length // settings.page_size)
    return min(num_pages, most, MAX_KV_PAGES)


def _facts(settings: DrafterSettings, backend: Backend, tokenizer: Tokenizer, num_kv_pages: int) -> Facts:
    return Facts(
        model=settings.model or "",
        vocabulary_hash=tokenizer.vocabulary_hash,
        vocabulary_size=min(len(tokenizer.vocabulary), backend.vocabulary_size),
        num_ids=backend.vocabulary_size,
        context_length=min(backend.context_length, num_kv_pages * settings.page_size),
        dtype=backend.dtype,
        device=str(backend.device),
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError.of("device", name, "give cpu, cuda, cuda:1, … or auto") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError.of(
            "device", name, "this torch sees no CUDA device; give cpu, or install another torch"
        )
    return device

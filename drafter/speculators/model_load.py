"""A draft model from the drafter's settings."""

from __future__ import annotations

from typing import NamedTuple

import torch

from drafter.settings import DrafterSettings
from drafter.speculators import Facts
from pilotfish import models
from pilotfish.engine.backend import Backend
from pilotfish.engine.model import TransformersBackend
from pilotfish.engine.selfcheck import UnsupportedModel
from pilotfish.engine.table import TableBackend
from pilotfish.errors import ConfigurationError, MissingModel
from pilotfish.errors import UnsupportedModel as RefusedModel
from pilotfish.tablefile import TableFile, TableFileError
from pilotfish.tokenizer import TableTokenizer, Tokenizer, load_tokenizer


class DraftModel(NamedTuple):
    """A model whose KV is not allocated yet, and what there is to say of it."""

    backend: Backend
    facts: Facts


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
        try:
            table = TableFile.load(path)
        except TableFileError as error:
            raise MissingModel(str(error)) from error
        backend, tokenizer = TableBackend(table), TableTokenizer(table)
    else:
        models.require_weights(path)
        tokenizer = load_tokenizer(source)
        try:
            backend = TransformersBackend.load(path, settings.dtype, _device(settings.device), settings.threads)
        except UnsupportedModel as error:
            raise RefusedModel(f"{settings.model!r} cannot draft: {error}") from error
    return DraftModel(backend, _facts(settings, backend, tokenizer))


def _facts(settings: DrafterSettings, backend: Backend, tokenizer: Tokenizer) -> Facts:
    return Facts(
        model=settings.model or "",
        vocabulary_hash=tokenizer.vocabulary_hash,
        vocabulary_size=min(len(tokenizer.vocabulary), backend.vocabulary_size),
        num_ids=backend.vocabulary_size,
        context_length=min(backend.context_length, settings.num_kv_pages * settings.page_size),
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

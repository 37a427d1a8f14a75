"""Settings that make no sense stop the verifier at its start, and the message names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.errors import ConfigurationError
from tests.verifier.stream import table_file
from verifier.__main__ import main
from verifier.settings import VerifierSettings
from verifier.target import Target


@pytest.mark.parametrize(
    ("arguments", "environment", "key"),
    [
        (["--port", "99999"], {}, "--port"),
        (["--start-wait-ms", "-1"], {}, "--start-wait-ms"),
        (["--max-lease-s", "0"], {}, "--max-lease-s"),
        (["--kv-memory-gb", "4"], {}, "--kv-memory-gb"),
        (["--dtype", "float8"], {}, "--dtype"),
        (["--max-nodes", "0"], {}, "--max-nodes"),
        (["--max-nodes", "600", "--max-positions", "512"], {}, "max_positions"),
        ([], {"PILOTFISH_VERIFIER_PAGE_SIZES": "16"}, "PILOTFISH_VERIFIER_PAGE_SIZES"),
        ([], {"PILOTFISH_VERIFIER_PAGE_SIZE": "none"}, "PILOTFISH_VERIFIER_PAGE_SIZE"),
    ],
)
def test_an_unknown_or_impossible_setting_is_refused_by_its_key(
    arguments: list[str], environment: dict[str, str], key: str
) -> None:
    """Misspelt keys, negative times, ports and numbers out of range are errors that name the key as it was written."""
    with pytest.raises(ConfigurationError) as caught:
        VerifierSettings.load(arguments, environment)
    assert key in caught.value.message


def test_every_setting_can_be_a_flag_or_a_variable() -> None:
    """A flag wins over the environment, and both reach the same field."""
    environment = {"PILOTFISH_VERIFIER_MAX_NODES": "8", "PILOTFISH_VERIFIER_PORT": "1"}
    settings = VerifierSettings.load(["--port", "2", "--reproducible"], environment)
    assert (settings.max_nodes, settings.port, settings.reproducible) == (8, 2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "table:/no/such/file.json"], "/no/such/file.json"),
        (["--device", "abacus"], "abacus"),
        (["--context-length", "9999999"], "4096"),
        (["--otlp-endpont", "x"], "--otlp-endpoint"),
    ],
)
def test_a_verifier_that_cannot_start_exits_with_a_reason(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends with status 2 and one line on stderr that names the value or the remedy."""
    model = table_file(tmp_path, {"random": {"seed": 1, "order": 2}})
    assert main(["--port", "0", "--model", model, *arguments]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("verifier: ")
    assert words in captured


def test_pages_follow_from_memory(tmp_path: Path) -> None:
    """KV memory over the bytes of a page, unless a number of pages is given; never more than sessions could use."""
    model = table_file(tmp_path, {"random": {"seed": 1, "order": 2}})
    few = VerifierSettings(model=model, kv_memory_mb=64, page_size=8192, max_sessions=10_000)
    target = Target.load(few)
    assert target.num_kv_pages(few) == 64 * 2**20 // (8192 * target.backend.kv_bytes_per_token)
    assert target.num_kv_pages(few.model_copy(update={"num_kv_pages": 7})) == 7
    assert target.num_kv_pages(few.model_copy(update={"max_sessions": 1, "page_size": 16})) == 4096 // 16
    assert target.num_kv_pages(few.model_copy(update={"page_size": 1})) == 64 * 2**20 // 65536

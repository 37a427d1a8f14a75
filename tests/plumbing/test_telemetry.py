from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator

import pytest

from pilotfish.errors import PortTaken
from pilotfish.telemetry import Metric, Telemetry

FOUR = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry("coordinator")
    yield telemetry
    telemetry.shutdown()


def samples(telemetry: Telemetry) -> dict[str, float]:
    """Every sample of an exposition by its name and labels."""
    lines = [line for line in telemetry.exposition().splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_a_scrape_works_before_the_first_draft(telemetry: Telemetry) -> None:
    """Everything without labels is there, at 0, and no number is NaN."""
    port = telemetry.serve_metrics("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    for metric in Metric:
        definition = metric.value
        if "coordinator" in definition.roles and not definition.labels and definition.kind != "histogram":
            assert f"\n{definition.name} 0.0\n" in text
    assert "nan" not in text.lower()


def test_the_four_counters_have_exactly_their_names(telemetry: Telemetry) -> None:
    """The names that the field's tools read are there, and nothing else begins as they do."""
    telemetry.add(Metric.DRAFTS)
    telemetry.add(Metric.DRAFT_TOKENS, 4)
    telemetry.add(Metric.ACCEPTED_TOKENS, 2)
    telemetry.add(Metric.ACCEPTED_BY_POSITION, 1, "0")
    telemetry.add(Metric.ACCEPTED_BY_POSITION, 1, "1")
    names = {re.split(r"[ {]", line)[0] for line in telemetry.exposition().splitlines() if line.startswith("vllm:")}
    assert names == FOUR
    assert samples(telemetry)['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}'] == 1.0
    assert telemetry.value(Metric.DRAFT_TOKENS) == 4.0


def test_requests_have_the_names_of_the_genai_conventions(telemetry: Telemetry) -> None:
    """Prometheus gets the conventions' names and attributes with underscores for dots."""
    labels = "chat", "pilotfish", "some-model"
    telemetry.observe(Metric.FIRST_TOKEN_SECONDS, 0.03, *labels)
    telemetry.observe(Metric.TOKEN_USAGE, 17, *labels, "output")
    common = 'gen_ai_operation_name="chat",gen_ai_provider_name="pilotfish",gen_ai_request_model="some-model"'
    found = samples(telemetry)
    assert found[f"gen_ai_server_time_to_first_token_seconds_count{{{common}}}"] == 1.0
    assert found[f'gen_ai_client_token_usage_sum{{{common},gen_ai_token_type="output"}}'] == 17.0


@pytest.mark.parametrize("role", ["drafter", "verifier"])
def test_only_a_coordinator_counts_drafts_for_the_tools(role: str) -> None:
    """Where all three services are scraped nothing is counted twice."""
    assert "vllm:" not in Telemetry(role).exposition()  # type: ignore[arg-type]


def test_counters_never_fall(telemetry: Telemetry) -> None:
    """A counter refuses to be taken back."""
    with pytest.raises(ValueError, match="can only be incremented"):
        telemetry.add(Metric.DRAFTS, -1)


def test_what_a_role_does_not_have_is_not_counted(telemetry: Telemetry) -> None:
    """Counting a metric of another role does nothing, so shared code need not ask."""
    telemetry.add(Metric.PASSES)
    telemetry.set(Metric.KV_PAGES, 3)
    telemetry.observe(Metric.PASS_SECONDS, 0.1)
    assert "pilotfish_pass" not in telemetry.exposition()
    assert telemetry.value(Metric.PASSES) == 0.0


def test_names_follow_the_conventions_and_stand_alone() -> None:
    """Names are unique, counters end in _total, durations are in seconds, and every one says what it is."""
    definitions = [metric.value for metric in Metric]
    assert len({definition.name for definition in definitions}) == len(definitions)
    for definition in definitions:
        assert definition.name.startswith(("pilotfish_", "gen_ai_")) or definition.name in FOUR
        assert definition.otlp is None or definition.name.startswith(definition.otlp.replace(".", "_"))
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.description
        assert definition.roles
        assert not re.search(r"_(ms|us|millis|percent|ratio)(_|$)", definition.name)


def test_a_metrics_port_that_is_taken_is_refused(telemetry: Telemetry) -> None:
    """Two services on one metrics port: the second says which."""
    port = telemetry.serve_metrics("127.0.0.1", 0)
    with pytest.raises(PortTaken, match=str(port)):
        Telemetry("drafter").serve_metrics("127.0.0.1", port)


def test_two_services_in_one_process_do_not_share_counters() -> None:
    """Telemetry has no global state."""
    one, other = Telemetry("coordinator"), Telemetry("coordinator")
    one.add(Metric.DRAFTS)
    assert (one.value(Metric.DRAFTS), other.value(Metric.DRAFTS)) == (1.0, 0.0)

"""The service as its users and operators meet it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.admission import Served, admit
from coordinator.service import SERVICE, keep_ready
from coordinator.settings import CoordinatorSettings
from coordinator.tenants import Terms
from pilotfish.errors import ConfigurationError, InvalidArgument, NotFound, PromptTooLong
from pilotfish.messages import Message, Request, Rule, Speculation
from pilotfish.spans import SdkTracer
from pilotfish.telemetry import Metric, Telemetry
from tests.coordinator.conftest import END, TOKENIZER, VOCABULARY, Start, ids
from tests.coordinator.fakes import chaotic, right_for, until

NUM_IDS = len(VOCABULARY)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "match"),
    [
        ("abc", {"model": "gpt-9"}, NotFound, "model is 'gpt-9': .*'letters'"),
        ([0] * 64, {}, PromptTooLong, "64 tokens.* 64"),
        ([0] * 70, {}, PromptTooLong, "70 tokens.* 64"),
        ([0] * 60, {"output_so_far": [0] * 5}, PromptTooLong, "60 tokens and output_so_far 5"),
        ("", {}, InvalidArgument, "text"),
        ([], {}, InvalidArgument, "prompt|tokens"),
        ("ä", {}, InvalidArgument, "text is 'ä'"),
        ([NUM_IDS], {}, InvalidArgument, "tokens.ids"),
        ("abc", {"temperature": -1.0}, InvalidArgument, "temperature"),
        ("abc", {"temperature": float("nan")}, InvalidArgument, "temperature"),
        ("abc", {"top_p": 1.5}, InvalidArgument, "top_p"),
        ("abc", {"top_k": 0}, InvalidArgument, "top_k"),
        ("abc", {"max_tokens": 0}, InvalidArgument, "max_tokens"),
        ("abc", {"stop": ["a", ""]}, InvalidArgument, "stop"),
        ("abc", {"speculation": Speculation(speculator="eagle")}, InvalidArgument, "speculator is 'eagle': .*model"),
        ("abc", {"speculation": Speculation(gamma=17)}, InvalidArgument, "gamma is 17: .* 16"),
        ("abc", {"seed": 1, "speculation": Speculation(rule=Rule.BLOCK)}, InvalidArgument, "rule is 'block': .*match"),
    ],
)
async def test_refused(start: Start, prompt: Any, options: dict[str, Any], error: type[Exception], match: str) -> None:
    """What cannot be served is refused with the value and the remedy, and opens no session anywhere."""
    verifier, drafter = await start.verifier(context_length=64), await start.drafter()
    stack = await start.coordinator([verifier], [drafter])
    with pytest.raises(error, match=match):
        await stack.complete(prompt, **options)
    assert not verifier.opens
    assert not drafter.opens


async def test_prompts(start: Start) -> None:
    """A prompt may be text, ids or a conversation."""
    verifier = await start.verifier()
    stack = await start.coordinator([verifier])
    for prompt in ("abc", ids("abc"), [Message("user", "a"), Message("user", "bc")]):
        done = await stack.complete(prompt, max_tokens=3)
        assert done.num_prompt_tokens == 3
    assert {opened.prompt for opened in verifier.opens} == {tuple(ids("abc"))}


async def test_info(start: Start) -> None:
    """Info says what is served, which peers there are and how the service is set."""
    verifier, drafter = await start.verifier(context_length=99), await start.drafter(speculators=("model", "ngram"))
    stack = await start.coordinator([verifier], [drafter], max_gamma=12)
    info = await stack.client.info()
    assert (info.model, info.context_length, info.max_gamma) == ("letters", 99, 12)
    assert [(peer.role, peer.address, peer.is_up) for peer in info.peers] == [
        ("verifier", verifier.address, True),
        ("drafter", drafter.address, True),
    ]
    assert info.peers[1].speculators == ("model", "ngram")
    assert info.settings["max_gamma"] == "12"


async def test_readiness(start: Start) -> None:
    """Ready is exactly while a verifier is up, whatever becomes of drafters."""
    verifier, drafter = await start.verifier(), await start.drafter()
    await verifier.kill()
    stack = await start.coordinator([verifier], [drafter], is_waiting=False)
    starting = asyncio.create_task(stack.service.start())
    keeping = asyncio.create_task(keep_ready(stack.server, stack.service))
    async with grpc.aio.insecure_channel(stack.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        updates = aiter(stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE)))

        async def becomes(status: Any) -> None:
            while (await anext(updates)).status != status:
                pass

        await becomes(health_pb2.HealthCheckResponse.NOT_SERVING)
        alive = await stub.Check(health_pb2.HealthCheckRequest(service=""))
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        await verifier.start()
        await starting
        await becomes(health_pb2.HealthCheckResponse.SERVING)
        await drafter.kill()
        await verifier.kill()
        await becomes(health_pb2.HealthCheckResponse.NOT_SERVING)
        await verifier.start()
        await becomes(health_pb2.HealthCheckResponse.SERVING)
    keeping.cancel()


async def test_metrics(start: Start) -> None:
    """The counters of all requests are sums: accepted over drafted is the rate of all of them together."""
    telemetry = Telemetry("coordinator")
    law = chaotic(26)
    stack = await start.stack(law, right_for(2, law, 26), telemetry=telemetry)
    assert "vllm:spec_decode_num_drafts_total 0.0" in telemetry.exposition()
    answers = [await stack.complete(max_tokens=number, gamma=4) for number in (10, 30)]
    plain = await stack.complete(max_tokens=10, gamma=0)
    statistics = [done.statistics for done in answers]
    assert telemetry.value(Metric.DRAFTS) == sum(entry.num_drafts for entry in statistics)
    assert telemetry.value(Metric.DRAFT_TOKENS) == sum(entry.num_drafted_tokens for entry in statistics)
    assert telemetry.value(Metric.ACCEPTED_TOKENS) == sum(entry.num_accepted_tokens for entry in statistics)
    assert telemetry.value(Metric.ACCEPTED_BY_POSITION, "0") == sum(
        entry.num_accepted_by_depth[0] for entry in statistics
    )
    assert telemetry.value(Metric.REQUESTS, "length") == 3
    num_plain = sum(entry.num_plain_tokens for entry in (*statistics, plain.statistics))
    assert telemetry.value(Metric.COMMITTED_TOKENS, "plain") == num_plain
    assert telemetry.value(Metric.PEER_UP, "drafter", stack.service.settings.drafters[0]) == 1
    assert telemetry.value(Metric.RUNNING) == 0


async def test_trace(start: Start) -> None:
    """A request is one trace: as many round spans as rounds, and every item names its round's span as the parent."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    telemetry = Telemetry("coordinator", SdkTracer("coordinator", "0", SimpleSpanProcessor(exporter)))
    verifier, drafter = await start.verifier(), await start.drafter()
    stack = await start.coordinator([verifier], [drafter], telemetry=telemetry)
    done = await stack.complete(max_tokens=20, gamma=4)
    await until(lambda: stack.service.num_running == 0)
    spans = exporter.get_finished_spans()
    rounds = [span for span in spans if span.name == "round"]
    request = next(span for span in spans if span.name == "generate")
    assert len(rounds) == done.statistics.num_verdicts == 4
    assert {span.context.trace_id for span in spans if span.context} == {int(done.started.trace_id or "", 16)}
    assert {span.parent.span_id for span in rounds if span.parent} == {
        request.context.span_id if request.context else 0
    }
    ours = {f"{span.context.span_id:016x}" for span in rounds if span.context}
    assert {work.trace.traceparent.split("-")[2] for work in verifier.works if work.trace} == ours
    assert {asked.trace.traceparent.split("-")[2] for asked in drafter.requests if asked.trace} == ours
    assert request.attributes is not None
    assert request.attributes["gen_ai.usage.output_tokens"] == 20


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--draft-deadline-ms", "-1"], "--draft-deadline-ms"),
        (["--draft-deadline-ms", "0"], "--draft-deadline-ms"),
        (["--patience-ms", "inf"], "--patience-ms"),
        (["--port", "99999"], "--port"),
        (["--gama", "4"], "--gama is not a setting; .*--gamma"),
        (["--gamma", "20"], "max_gamma of 16"),
        (["--verifiers", "nowhere"], "--verifiers"),
        (["--verifiers", "host:0"], "--verifiers"),
        (["--verifiers", ""], "verifiers"),
        (["--drafters", "a:1,a:1"], "a:1,a:1"),
        (["--patience-ms", "10", "--draft-deadline-ms", "20"], "patience_ms is 10"),
    ],
)
def test_settings(arguments: list[str], match: str) -> None:
    """Impossible settings and unknown keys are refused at start, by name."""
    with pytest.raises(ConfigurationError, match=match):
        CoordinatorSettings.load(arguments, environment={})


def test_runs_without_torch() -> None:
    """A coordinator starts, with its tokenizer library, where torch cannot be imported."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import coordinator.__main__, coordinator.service, pilotfish.tokenizer, tokenizers, transformers\n"
        "from transformers import AutoTokenizer\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help() -> None:
    """The help names every setting with its variable, its default and what it does."""
    done = subprocess.run([sys.executable, "-m", "coordinator", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    for name in CoordinatorSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in done.stdout
        assert f"PILOTFISH_COORDINATOR_{name.upper()}" in done.stdout.replace("\n", "").replace(" ", "")


def test_unseeded_requests_differ() -> None:
    """Two requests without a seed get different ones, of 64 bits."""
    served = Served("letters", TOKENIZER, 100, frozenset([END]))
    terms = Terms(max_gamma=4)
    seeds = {admit(Request("abc"), served, speculator=None, lease_s=1.0, terms=terms).opening.seed for _ in range(20)}
    assert len(seeds) == 20
    assert max(seeds) >= 1 << 56

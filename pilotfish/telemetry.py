"""Names of every span, attribute and metric, and the object that takes them. Passed as an argument, never global.

Spans, one trace a request, joined across the services by the trace context in every item:

    generate                     coordinator: the request
    └── round                    coordinator: one round; its context travels in the items
        ├── draft                drafter: from the request's arrival until the last node
        └── verify               verifier: from the draft's arrival until the verdict
            ├── queue            waiting for the pass
            └── pass             the forward of the target; linked to `whole_pass`

    whole_pass                   verifier: one pass with all it carried, in a trace of its own: it serves many requests

Metrics have base units, and are counters instead of ratios; the PromQL that makes a ratio stands beside them. They are
exposed for Prometheus under the names here. By OTLP a name has no `_total`, and a dot for a colon, so the four of the
field's tools go as `vllm.spec_decode_num_drafts` and so on; those of the GenAI conventions have the conventions' own
names there (`gen_ai.server.request.duration`), and for Prometheus the ones that it makes of them.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pilotfish.metrics import Definition, Instruments, Role, counter, gauge, seconds
from pilotfish.tracing import NoTracer, Tracer

if TYPE_CHECKING:
    from pilotfish.otlp import MetricSender
    from pilotfish.settings import OtlpProtocol

# ---- spans -------------------------------------------------------------------------------------------------------

GENERATE: Final = "generate"
ROUND: Final = "round"
DRAFT: Final = "draft"
VERIFY: Final = "verify"
QUEUE: Final = "queue"
PASS: Final = "pass"
WHOLE_PASS: Final = "whole_pass"


class Attribute:
    """Names of the attributes of spans."""

    ROUND_INDEX: Final = "pilotfish.round.index"  # from 0; a draft's and a verify's: the number its items had
    GAMMA: Final = "pilotfish.round.gamma"
    GAMMA_REASON: Final = "pilotfish.round.gamma.reason"
    DRAFTED: Final = "pilotfish.round.drafted"
    ACCEPTED: Final = "pilotfish.round.accepted"
    COMMITTED: Final = "pilotfish.round.committed"
    PRICE: Final = "pilotfish.round.price"  # μ the decision was taken at; absent: none, or drafting is not worth any
    RULE: Final = "pilotfish.rule"
    REQUEST: Final = "pilotfish.request"  # hex, as the client was told
    SESSION: Final = "pilotfish.session"  # hex
    SPECULATOR: Final = "pilotfish.speculator"
    DRAFT_END: Final = "pilotfish.draft.end"
    DROPPED: Final = "pilotfish.dropped"  # the cause
    PASS_POSITIONS: Final = "pilotfish.pass.positions"
    PASS_SEQUENCES: Final = "pilotfish.pass.sequences"
    PASS_PREFILL: Final = "pilotfish.pass.prefill_positions"
    SATURATION: Final = "pilotfish.pass.saturation"  # 0 to 1
    # The GenAI conventions, on the request.
    OPERATION: Final = "gen_ai.operation.name"  # "chat" or "text_completion"
    PROVIDER: Final = "gen_ai.provider.name"
    MODEL: Final = "gen_ai.request.model"
    MAX_TOKENS: Final = "gen_ai.request.max_tokens"
    TEMPERATURE: Final = "gen_ai.request.temperature"
    TOP_K: Final = "gen_ai.request.top_k"
    TOP_P: Final = "gen_ai.request.top_p"
    SEED: Final = "gen_ai.request.seed"
    FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
    INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
    TOKEN_TYPE: Final = "gen_ai.token.type"  # "input" or "output"
    ERROR: Final = "error.type"


PROVIDER_NAME: Final = "pilotfish"

# ---- metrics -----------------------------------------------------------------------------------------------------

_GAMMAS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
_POSITIONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
# The GenAI conventions say which buckets.
_REQUEST_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_NEXT_SECONDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(float(4**power) for power in range(14))


def _gen_ai(otlp: str, unit: str, description: str, buckets: tuple[float, ...], *labels: str) -> Definition:
    """A histogram of the GenAI conventions.

    Args:
        otlp: its name there.
        unit: that Prometheus writes behind the name; empty: a number of things.
        labels: besides what every one of them has.
    """
    name = otlp.replace(".", "_") + (f"_{unit}" if unit else "")
    common = (Attribute.OPERATION, Attribute.PROVIDER, Attribute.MODEL)
    return Definition(name, "histogram", description, ("coordinator",), (*common, *labels), buckets, otlp)


class Metric(Enum):
    """Every metric. Those without labels are there, at 0, from the start.

    Acceptance rate, over all requests and time:
        sum(rate(vllm:spec_decode_num_accepted_tokens_total[5m]))
          / sum(rate(vllm:spec_decode_num_draft_tokens_total[5m]))
    Tokens committed per round with a draft:
        1 + sum(rate(vllm:spec_decode_num_accepted_tokens_total[5m]))
              / sum(rate(vllm:spec_decode_num_drafts_total[5m]))
    Share of the drafts whose token at a depth held:
        sum by (position) (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[5m]))
          / ignoring(position) group_left sum(rate(vllm:spec_decode_num_drafts_total[5m]))
    Amplification, positions verified per token committed:
        sum(rate(pilotfish_verified_positions_total[5m]))
          / sum(rate(pilotfish_committed_tokens_total{job="verifier"}[5m]))
    Wire bytes per committed token:
        sum(rate(pilotfish_wire_bytes_total[5m]))
          / sum(rate(pilotfish_committed_tokens_total{job="coordinator"}[5m]))
    Realised speedup over free-running plain decoding, by drafter and workload:
        sum by (drafter, workload) (rate(pilotfish_speculated_tokens_total[5m]))
          / sum by (drafter, workload) (rate(pilotfish_plain_equivalent_tokens_total[5m]))
    Share of the requests that missed their target for time per token:
        rate(pilotfish_target_missed_total{target="token"}[5m]) / rate(pilotfish_targets_total{target="token"}[5m])
    The same for all sessions of a verifier, predicted less measured; where that stays apart the plan is wrong:
        pilotfish_predicted_speedup - pilotfish_realised_speedup
    Why sessions draft, or do not:
        sum by (reason) (rate(pilotfish_rounds_total[5m]))
          / ignoring(reason) group_left sum(rate(pilotfish_rounds_total[5m]))
    Mean γ:
        sum(rate(pilotfish_gamma_sum[5m])) / sum(rate(pilotfish_gamma_count[5m]))
    Share of a round spent drafting:
        sum(rate(pilotfish_draft_seconds_sum{job="coordinator"}[5m])) / sum(rate(pilotfish_round_seconds_sum[5m]))
    Share of the requests that failed:
        sum(rate(gen_ai_server_request_duration_seconds_count{error_type!=""}[5m]))
          / sum(rate(gen_ai_server_request_duration_seconds_count[5m]))
    99th percentile of the time to the first token (of the others likewise):
        histogram_quantile(0.99, sum by (le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[5m])))
    Tokens per second, by prompt and answer:
        sum by (gen_ai_token_type) (rate(gen_ai_client_token_usage_sum[5m]))
    Share of the time that the verifier's passes take, and positions in one:
        rate(pilotfish_pass_seconds_sum[5m])
        rate(pilotfish_pass_positions_sum[5m]) / rate(pilotfish_passes_total[5m])
    Share of the prompt tokens found in the prefix cache:
        rate(pilotfish_cached_tokens_total[5m])
          / (rate(pilotfish_cached_tokens_total[5m]) + rate(pilotfish_prefill_positions_total[5m]))
    Drafts that came to less than was drafted, per second, by cause:
        sum by (cause) (rate(pilotfish_drafts_dropped_total[5m]))
    KV in use:
        pilotfish_kv_pages_used / pilotfish_kv_pages
    """

    __hash__ = object.__hash__  # each is there once, and they are looked up at every count

    # The four that the field's tools read, under exactly these names. A round with γ = 0 is no draft; a bonus or a
    # correction is never accepted. Only a coordinator has them, so that nothing is counted twice.
    DRAFTS = counter("vllm:spec_decode_num_drafts_total", "Rounds with a draft", "coordinator")
    DRAFT_TOKENS = counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified", "coordinator")
    ACCEPTED_TOKENS = counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that held", "coordinator")
    ACCEPTED_BY_POSITION = counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Draft tokens that held, by their depth in the draft, from 0",
        "coordinator",
        labels=("position",),
    )

    REQUESTS = counter(
        "pilotfish_requests_total",
        "Requests that ended: stop, length, or an error's word",
        "coordinator",
        labels=("end",),
    )
    RUNNING = gauge("pilotfish_requests_running", "Requests being served", "coordinator")
    PROMPT_TOKENS = counter("pilotfish_prompt_tokens_total", "Prompt tokens taken", "coordinator")
    COMMITTED_TOKENS = counter(
        "pilotfish_committed_tokens_total",
        "Tokens committed, by how they came about",
        "coordinator",
        "verifier",
        labels=("kind",),
    )
    ROUNDS = counter("pilotfish_rounds_total", "Rounds, by the reason for their γ", "coordinator", labels=("reason",))
    GAMMA = Definition("pilotfish_gamma", "histogram", "γ that was chosen", ("coordinator",), (), _GAMMAS)
    SPECULATED_TOKENS = counter(
        "pilotfish_speculated_tokens_total",
        "Tokens committed while a session speculated",
        "coordinator",
        labels=("drafter", "workload"),
    )
    PLAIN_EQUIVALENT_TOKENS = counter(
        "pilotfish_plain_equivalent_tokens_total",
        "Tokens that plain decoding would have committed in the same time",
        "coordinator",
        labels=("drafter", "workload"),
    )
    ROUND_SECONDS = seconds("pilotfish_round_seconds", "Length of a round", "coordinator")
    DRAFT_SECONDS = seconds(
        "pilotfish_draft_seconds", "From asking for a draft until its last node", "coordinator", "drafter"
    )
    VERIFY_SECONDS = seconds("pilotfish_verify_seconds", "From the last node sent until the verdict", "coordinator")
    # The GenAI conventions, of requests.
    REQUEST_SECONDS = _gen_ai(
        "gen_ai.server.request.duration",
        "seconds",
        "From a request to its end",
        _REQUEST_SECONDS,
        Attribute.ERROR,
    )
    FIRST_TOKEN_SECONDS = _gen_ai(
        "gen_ai.server.time_to_first_token",
        "seconds",
        "From a request to its first token, where it came to its end",
        _FIRST_SECONDS,
    )
    TOKEN_SECONDS = _gen_ai(
        "gen_ai.server.time_per_output_token",
        "seconds",
        "Mean time per later token of a request that came to its end",
        _NEXT_SECONDS,
    )
    TOKEN_USAGE = _gen_ai(
        "gen_ai.client.token.usage",
        "",
        "Tokens of a request that came to its end, prompt (input) and answer (output)",
        _TOKENS,
        Attribute.TOKEN_TYPE,
    )
    TARGETS = counter(
        "pilotfish_targets_total",
        "Requests that had a target to keep (first_token, token) and ended whole",
        "coordinator",
        labels=("target",),
    )
    TARGET_MISSED = counter(
        "pilotfish_target_missed_total", "Of them: requests that missed it", "coordinator", labels=("target",)
    )
    WIRE_BYTES = counter(
        "pilotfish_wire_bytes_total",
        "Bytes of items between a coordinator and its peers",
        "coordinator",
        labels=("role", "direction"),
    )
    PEER_UP = gauge(
        "pilotfish_peer_up", "1 where the peer takes work, 0 where not", "coordinator", labels=("role", "address")
    )
    FAILOVERS = counter("pilotfish_failovers_total", "Sessions opened again elsewhere", "coordinator", labels=("role",))

    DRAFTS_DROPPED = counter(
        "pilotfish_drafts_dropped_total",
        "Drafts of which something, or all, was dropped, by cause",
        "coordinator",
        "verifier",
        labels=("cause",),
    )
    ITEMS_DROPPED = counter(
        "pilotfish_items_dropped_total",
        "Items and answers that were dropped or refused, by cause",
        "coordinator",
        "verifier",
        "drafter",
        labels=("cause",),
    )
    SESSIONS = gauge("pilotfish_sessions", "Open sessions", "coordinator", "verifier", "drafter")
    LEASES_EXPIRED = counter("pilotfish_leases_expired_total", "Sessions freed by lease", "verifier", "drafter")

    PASSES = counter("pilotfish_passes_total", "Forward passes of the target", "verifier")
    PASS_SECONDS = seconds("pilotfish_pass_seconds", "Length of a pass", "verifier")
    QUEUE_SECONDS = seconds("pilotfish_queue_seconds", "From a draft's last node until its pass", "verifier")
    PASS_POSITIONS = Definition(
        "pilotfish_pass_positions", "histogram", "Positions in a pass", ("verifier",), (), _POSITIONS
    )
    VERIFIED_POSITIONS = counter(
        "pilotfish_verified_positions_total", "Positions in passes, prefill left out", "verifier"
    )
    PREFILL_POSITIONS = counter("pilotfish_prefill_positions_total", "Prompt positions computed", "verifier")
    CACHED_TOKENS = counter("pilotfish_cached_tokens_total", "Prompt tokens found in the prefix cache", "verifier")
    PREEMPTIONS = counter("pilotfish_preemptions_total", "Sessions whose KV was given to others", "verifier")
    KV_PAGES = gauge("pilotfish_kv_pages", "Pages of KV", "verifier")
    KV_PAGES_USED = gauge("pilotfish_kv_pages_used", "Pages of KV that sessions hold", "verifier")

    SATURATION = gauge(
        "pilotfish_saturation", "Share of a pass's length that its positions are to blame for, 0 to 1", "verifier"
    )
    PRICE = gauge("pilotfish_price_tokens", "What one more position in a pass costs everybody", "verifier")
    PERIOD_SECONDS = gauge("pilotfish_period_seconds", "From pass to pass, as planned", "verifier")
    PREDICTED_SPEEDUP = gauge("pilotfish_predicted_speedup", "Over plain decoding, by the plan", "verifier")
    REALISED_SPEEDUP = gauge("pilotfish_realised_speedup", "Over plain decoding, as last measured", "verifier")
    LOSSY = gauge("pilotfish_lossy", "1 where drafts are accepted at given rates, not by the law", "verifier")

    DRAFTED_TOKENS = counter("pilotfish_drafted_tokens_total", "Nodes drawn", "drafter", labels=("speculator",))
    DRAFT_ENDS = counter("pilotfish_draft_ends_total", "Drafts, by why no node followed", "drafter", labels=("end",))
    STEP_SECONDS = seconds("pilotfish_step_seconds", "One batched draft step", "drafter")


class Telemetry:
    """Where a service reports to.

    Counting costs about a microsecond; a span costs nothing where no endpoint is set, else some tens.
    """

    def __init__(self, role: Role | None = None, tracer: Tracer | None = None) -> None:
        """Make one that counts what a role counts; without a role, nothing.

        Args:
            role: which metrics there are.
            tracer: None: nothing is traced.
        """
        self.tracer: Tracer = tracer or NoTracer()
        self._server: Any = None
        self._sender: MetricSender | None = None
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        mine = [metric.value for metric in Metric if role in metric.value.roles]
        self._instruments = Instruments(mine) if mine else None

    @staticmethod
    def off() -> Telemetry:
        """One that does nothing."""
        return Telemetry()

    @staticmethod
    def of_service(
        role: Role,
        version: str,
        otlp_endpoint: str | None = None,
        otlp_protocol: OtlpProtocol | None = None,
        trace_ratio: float | None = None,
    ) -> Telemetry:
        """The telemetry of a service: its metrics, which with its spans go to where settings or environment say.

        Args:
            otlp_endpoint: None: as OpenTelemetry's variables say, and nowhere where they say nothing.
            otlp_protocol: None: likewise, and grpc where they say nothing.
            trace_ratio: of the traces that begin here, how many are sampled; 0 to 1. None: as OpenTelemetry's variables
                say, and all where they say nothing.

        Raises:
            ConfigurationError: a variable of OpenTelemetry's has a value that cannot be.
        """
        telemetry = Telemetry(role)
        if otlp_endpoint is not None or any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
            telemetry._send(f"pilotfish-{role}", version, otlp_endpoint, otlp_protocol, trace_ratio)
        return telemetry

    def _send(
        self, service: str, version: str, endpoint: str | None, protocol: OtlpProtocol | None, ratio: float | None
    ) -> None:
        """Send spans and metrics from now on, as far as there is anywhere to."""
        from pilotfish import otlp
        from pilotfish.spans import resource_of

        resource = resource_of(service, version)
        if (to := otlp.destination("traces", endpoint, protocol, os.environ)) is not None:
            self.tracer = otlp.sdk_tracer(to, service, version, resource, ratio)
        if (to := otlp.destination("metrics", endpoint, protocol, os.environ)) is not None and self._instruments:
            self._sender = otlp.metric_sender(to, self._instruments, resource, version)

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Count."""
        child = self._children.get((metric, labels)) or self._child(metric, labels)
        if child is not None:
            child.inc(amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Put a value into a histogram."""
        child = self._children.get((metric, labels)) or self._child(metric, labels)
        if child is not None:
            child.observe(value)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge."""
        child = self._children.get((metric, labels)) or self._child(metric, labels)
        if child is not None:
            child.set(value)

    def value(self, metric: Metric, *labels: str) -> float:
        """What a counter or gauge stands at; 0.0 where nothing was counted."""
        return 0.0 if self._instruments is None else self._instruments.value(metric.value, labels)

    def exposition(self) -> str:
        """All metrics as Prometheus scrapes them."""
        return "" if self._instruments is None else self._instruments.exposition()

    def serve_metrics(self, host: str, port: int) -> int:
        """Answer scrapes at `/metrics`, from a thread of its own.

        Returns:
            The port; the free one that was found, where `port` is 0.

        Raises:
            PortTaken: the address cannot be bound.
        """
        assert self._instruments is not None, "a service has a role"
        self._server = self._instruments.serve(host, port)
        bound: int = self._server.server_port
        return bound

    def shutdown(self) -> None:
        """Send the spans that wait and what the metrics stand at, and close the metrics port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None
        self.tracer.shutdown()

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        child = None if self._instruments is None else self._instruments.child(metric.value, labels)
        if child is not None:
            self._children[metric, labels] = child
        return child

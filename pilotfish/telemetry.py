"""Names of every span, attribute and metric, and the object that takes them. Passed as an argument, never global.

Spans, one trace a request, joined across the services by the trace context in every item:

    generate                     coordinator: the request
    └── round                    coordinator: one round; its context travels in the items
        ├── draft                drafter: from the request's arrival until the last node
        └── verify               verifier: from the draft's arrival until the verdict
            ├── queue            waiting for the pass
            └── pass             the forward of the target

Metrics are exposed for Prometheus by its own client library: OpenTelemetry's names may not hold a colon, and four of
ours must. Base units, counters instead of ratios; the PromQL that makes a ratio stands beside the metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from pilotfish.errors import PortTaken
from pilotfish.tracing import NoTracer, Tracer, tracer_to

if TYPE_CHECKING:
    from collections.abc import Iterator

# ---- spans -------------------------------------------------------------------------------------------------------

GENERATE: Final = "generate"
ROUND: Final = "round"
DRAFT: Final = "draft"
VERIFY: Final = "verify"
QUEUE: Final = "queue"
PASS: Final = "pass"


class Attribute:
    """Names of the attributes of spans."""

    ROUND_INDEX: Final = "pilotfish.round.index"
    GAMMA: Final = "pilotfish.gamma"
    GAMMA_REASON: Final = "pilotfish.gamma.reason"
    DRAFTED: Final = "pilotfish.drafted"
    ACCEPTED: Final = "pilotfish.accepted"
    COMMITTED: Final = "pilotfish.committed"
    PRICE: Final = "pilotfish.price"
    RULE: Final = "pilotfish.rule"
    SESSION: Final = "pilotfish.session"  # hex
    SPECULATOR: Final = "pilotfish.speculator"
    DRAFT_END: Final = "pilotfish.draft.end"
    DROPPED: Final = "pilotfish.dropped"  # the cause
    PASS_POSITIONS: Final = "pilotfish.pass.positions"
    PASS_SEQUENCES: Final = "pilotfish.pass.sequences"
    DRAFTER: Final = "pilotfish.drafter.address"
    VERIFIER: Final = "pilotfish.verifier.address"
    # The GenAI conventions, on the request.
    OPERATION: Final = "gen_ai.operation.name"  # "chat" or "text_completion"
    MODEL: Final = "gen_ai.request.model"
    MAX_TOKENS: Final = "gen_ai.request.max_tokens"
    TEMPERATURE: Final = "gen_ai.request.temperature"
    TOP_K: Final = "gen_ai.request.top_k"
    TOP_P: Final = "gen_ai.request.top_p"
    SEED: Final = "gen_ai.request.seed"
    FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
    INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
    ERROR: Final = "error.type"


# ---- metrics -----------------------------------------------------------------------------------------------------

Role = Literal["coordinator", "drafter", "verifier"]

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_GAMMAS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
_POSITIONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a metric is called and what it means."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    roles: tuple[Role, ...]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, description: str, *roles: Role, labels: tuple[str, ...] = ()) -> Definition:
    return Definition(name, "counter", description, roles, labels)


def _gauge(name: str, description: str, *roles: Role, labels: tuple[str, ...] = ()) -> Definition:
    return Definition(name, "gauge", description, roles, labels)


def _seconds(name: str, description: str, *roles: Role, labels: tuple[str, ...] = ()) -> Definition:
    return Definition(name, "histogram", description, roles, labels, _SECONDS)


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
    KV in use:
        pilotfish_kv_pages_used / pilotfish_kv_pages
    """

    # The four that the field's tools read, under exactly these names. A round with γ = 0 is no draft; a bonus or a
    # correction is never accepted. Only a coordinator has them, so that nothing is counted twice.
    DRAFTS = _counter("vllm:spec_decode_num_drafts_total", "Rounds with a draft", "coordinator")
    DRAFT_TOKENS = _counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified", "coordinator")
    ACCEPTED_TOKENS = _counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that held", "coordinator")
    ACCEPTED_BY_POSITION = _counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Draft tokens that held, by their depth in the draft, from 0",
        "coordinator",
        labels=("position",),
    )

    REQUESTS = _counter(
        "pilotfish_requests_total",
        "Requests that ended: stop, length, or an error's word",
        "coordinator",
        labels=("end",),
    )
    RUNNING = _gauge("pilotfish_requests_running", "Requests being served", "coordinator")
    PROMPT_TOKENS = _counter("pilotfish_prompt_tokens_total", "Prompt tokens taken", "coordinator")
    COMMITTED_TOKENS = _counter(
        "pilotfish_committed_tokens_total",
        "Tokens committed, by how they came about",
        "coordinator",
        "verifier",
        labels=("kind",),
    )
    ROUNDS = _counter("pilotfish_rounds_total", "Rounds, by the reason for their γ", "coordinator", labels=("reason",))
    GAMMA = Definition("pilotfish_gamma", "histogram", "γ that was chosen", ("coordinator",), (), _GAMMAS)
    SPECULATED_TOKENS = _counter(
        "pilotfish_speculated_tokens_total",
        "Tokens committed while a session speculated",
        "coordinator",
        labels=("drafter", "workload"),
    )
    PLAIN_EQUIVALENT_TOKENS = _counter(
        "pilotfish_plain_equivalent_tokens_total",
        "Tokens that plain decoding would have committed in the same time",
        "coordinator",
        labels=("drafter", "workload"),
    )
    ROUND_SECONDS = _seconds("pilotfish_round_seconds", "Length of a round", "coordinator")
    DRAFT_SECONDS = _seconds(
        "pilotfish_draft_seconds", "From asking for a draft until its last node", "coordinator", "drafter"
    )
    VERIFY_SECONDS = _seconds("pilotfish_verify_seconds", "From the last node sent until the verdict", "coordinator")
    FIRST_TOKEN_SECONDS = _seconds("pilotfish_first_token_seconds", "From a request to its first token", "coordinator")
    TOKEN_SECONDS = _seconds("pilotfish_token_seconds", "Mean time per later token of a request", "coordinator")
    REQUEST_SECONDS = _seconds("pilotfish_request_seconds", "From a request to its end", "coordinator")
    TARGETS = _counter(
        "pilotfish_targets_total",
        "Requests that had a target to keep (first_token, token) and ended whole",
        "coordinator",
        labels=("target",),
    )
    TARGET_MISSED = _counter(
        "pilotfish_target_missed_total", "Of them: requests that missed it", "coordinator", labels=("target",)
    )
    WIRE_BYTES = _counter(
        "pilotfish_wire_bytes_total",
        "Bytes of items between a coordinator and its peers",
        "coordinator",
        labels=("role", "direction"),
    )
    PEER_UP = _gauge(
        "pilotfish_peer_up", "1 where the peer takes work, 0 where not", "coordinator", labels=("role", "address")
    )
    FAILOVERS = _counter(
        "pilotfish_failovers_total", "Sessions opened again elsewhere", "coordinator", labels=("role",)
    )

    DRAFTS_DROPPED = _counter(
        "pilotfish_drafts_dropped_total",
        "Drafts of which something, or all, was dropped, by cause",
        "coordinator",
        "verifier",
        labels=("cause",),
    )
    ITEMS_DROPPED = _counter(
        "pilotfish_items_dropped_total",
        "Items and answers that were dropped or refused, by cause",
        "coordinator",
        "verifier",
        "drafter",
        labels=("cause",),
    )
    SESSIONS = _gauge("pilotfish_sessions", "Open sessions", "coordinator", "verifier", "drafter")
    LEASES_EXPIRED = _counter("pilotfish_leases_expired_total", "Sessions freed by lease", "verifier", "drafter")

    PASSES = _counter("pilotfish_passes_total", "Forward passes of the target", "verifier")
    PASS_SECONDS = _seconds("pilotfish_pass_seconds", "Length of a pass", "verifier")
    QUEUE_SECONDS = _seconds("pilotfish_queue_seconds", "From a draft's last node until its pass", "verifier")
    PASS_POSITIONS = Definition(
        "pilotfish_pass_positions", "histogram", "Positions in a pass", ("verifier",), (), _POSITIONS
    )
    VERIFIED_POSITIONS = _counter(
        "pilotfish_verified_positions_total", "Positions in passes, prefill left out", "verifier"
    )
    PREFILL_POSITIONS = _counter("pilotfish_prefill_positions_total", "Prompt positions computed", "verifier")
    CACHED_TOKENS = _counter("pilotfish_cached_tokens_total", "Prompt tokens found in the prefix cache", "verifier")
    PREEMPTIONS = _counter("pilotfish_preemptions_total", "Sessions whose KV was given to others", "verifier")
    KV_PAGES = _gauge("pilotfish_kv_pages", "Pages of KV", "verifier")
    KV_PAGES_USED = _gauge("pilotfish_kv_pages_used", "Pages of KV that sessions hold", "verifier")

    SATURATION = _gauge(
        "pilotfish_saturation", "Share of a pass's length that its positions are to blame for, 0 to 1", "verifier"
    )
    PRICE = _gauge("pilotfish_price_tokens", "What one more position in a pass costs everybody", "verifier")
    PERIOD_SECONDS = _gauge("pilotfish_period_seconds", "From pass to pass, as planned", "verifier")
    PREDICTED_SPEEDUP = _gauge("pilotfish_predicted_speedup", "Over plain decoding, by the plan", "verifier")
    REALISED_SPEEDUP = _gauge("pilotfish_realised_speedup", "Over plain decoding, as last measured", "verifier")
    LOSSY = _gauge("pilotfish_lossy", "1 where drafts are accepted at given rates, not by the law", "verifier")

    DRAFTED_TOKENS = _counter("pilotfish_drafted_tokens_total", "Nodes drawn", "drafter", labels=("speculator",))
    DRAFT_ENDS = _counter("pilotfish_draft_ends_total", "Drafts, by why no node followed", "drafter", labels=("end",))
    STEP_SECONDS = _seconds("pilotfish_step_seconds", "One batched draft step", "drafter")


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
        self._instruments: dict[Metric, Any] = {}
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        self.registry: Any = None
        if role is not None:
            self.registry = _registry()
            mine = (metric for metric in Metric if role in metric.value.roles)
            self._instruments = {metric: _instrument(metric.value, self.registry) for metric in mine}

    @staticmethod
    def off() -> Telemetry:
        """One that does nothing."""
        return Telemetry()

    @staticmethod
    def of_service(role: Role, version: str, otlp_endpoint: str | None = None) -> Telemetry:
        """The telemetry of a service: its metrics, and spans sent to where the setting or the environment says."""
        return Telemetry(role, tracer_to(otlp_endpoint, f"pilotfish-{role}", version))

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
        if self.registry is None:
            return 0.0
        names = metric.value.labels
        return self.registry.get_sample_value(metric.value.name, dict(zip(names, labels, strict=True))) or 0.0

    def exposition(self) -> str:
        """All metrics as Prometheus scrapes them."""
        if self.registry is None:
            return ""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def serve_metrics(self, host: str, port: int) -> int:
        """Answer scrapes at `/metrics`, from a thread of its own.

        Returns:
            The port; the free one that was found, where `port` is 0.

        Raises:
            PortTaken: the address cannot be bound.
        """
        from prometheus_client import start_http_server

        try:
            self._server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            remedy = "is it taken by another process? Choose another port, or none to serve no metrics"
            raise PortTaken(f"cannot serve metrics on {host}:{port}: {remedy}", field="metrics_port") from error
        bound: int = self._server.server_port
        return bound

    def shutdown(self) -> None:
        """Send the spans that wait and close the metrics port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.tracer.shutdown()

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        instrument = self._instruments.get(metric)
        if instrument is None:
            return None
        child = instrument.labels(*labels) if metric.value.labels else instrument
        self._children[metric, labels] = child
        return child


def _registry() -> Any:
    """A registry of its own, without the `_created` series: they would begin with the names of the four counters."""
    from prometheus_client import CollectorRegistry

    class Registry(CollectorRegistry):
        def collect(self) -> Iterator[Any]:
            for family in super().collect():
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                if family.samples or not family.name.endswith("_created"):
                    yield family

    return Registry(auto_describe=True)


def _instrument(definition: Definition, registry: Any) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    name, text, labels = definition.name, definition.description, definition.labels
    match definition.kind:
        case "counter":
            return Counter(name, text, labels, registry=registry)
        case "gauge":
            return Gauge(name, text, labels, registry=registry)
        case "histogram":
            return Histogram(name, text, labels, buckets=definition.buckets, registry=registry)

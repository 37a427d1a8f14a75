"""The settings of a coordinator."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, field_validator, model_validator

from coordinator.line import MAX_LEAD
from coordinator.reasoning import USUAL_MARKS
from coordinator.tenants import Tenants, Terms
from pilotfish.gammas import MAX_GAMMA_BOUND, GammaTable
from pilotfish.messages import Objective, Targets
from pilotfish.settings import (
    LogFormat,
    OtlpProtocol,
    Port,
    PositiveInt,
    PositiveMilliseconds,
    PositiveSeconds,
    ServiceSettings,
)

_ADDRESS: Final = re.compile(r"\S+:(\d{1,5})")


def _read_gammas(value: object) -> GammaTable:
    return value if isinstance(value, GammaTable) else GammaTable.parse(str(value))


Gammas = Annotated[
    GammaTable,
    PlainValidator(_read_gammas),
    PlainSerializer(str),
    WithJsonSchema({"type": ["integer", "string"]}),
]
"""A number of tokens, or a table of them by batch size."""


class CoordinatorSettings(ServiceSettings, prefix="PILOTFISH_COORDINATOR_"):
    """A coordinator serves users: it has text drafted and verified, and streams what the verifier commits.

    It needs the target's tokenizer (not its weights), the addresses of at least one verifier, and of a drafter if
    anything is to be drafted.
    """

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: Port = Field(50050, description="port to listen on; 0: any that is free")
    model: str = Field(
        "smollm2-135m",
        description="the served model, for its tokenizer and its name: a preset, a directory, a .gguf file, "
        "table:FILE.json or a hub id; what the verifiers run",
    )
    verifiers: tuple[str, ...] = Field(("127.0.0.1:50052",), description="addresses of verifiers, host:port")
    drafters: tuple[str, ...] = Field(
        ("127.0.0.1:50051",), description="addresses of drafters, host:port; none: plain decoding"
    )
    gamma: Gammas | None = Field(
        None,
        description="tokens drafted in a round where the request does not say, or a table of them by how many sessions "
        "run at the verifier, such as 1:8,4:4,16:2,64:0; none: by acceptance and the verifier's price, anew each "
        "round; 0: plain decoding",
    )
    objective: Objective = Field(
        Objective.BALANCED,
        description="what matters most where the request does not say: latency halves the price of a position, "
        "throughput doubles it",
    )
    first_token_ms: PositiveMilliseconds | None = Field(
        None, description="target for the time to the first token, where the request does not say; none: no target"
    )
    token_ms: PositiveMilliseconds | None = Field(
        None,
        description="target for the mean time of each later token, where the request does not say: kept by drafting "
        "more, or less where there is time to spare; none: no target",
    )
    tenants: tuple[str, ...] = Field(
        (),
        description="what differs for some tenants, such as: acme max_gamma=4 token_ms=40,bulk objective=throughput; "
        "keys max_gamma, objective, first_token_ms, token_ms",
    )
    think_marks: tuple[str, ...] = Field(
        USUAL_MARKS,
        description="the tokens that begin and end a model's reasoning, where it has them: between them acceptance is "
        "counted by itself and no target for time per token counts; empty: reasoning is text like any other",
    )
    priors_file: str | None = Field(
        None, description="file where what was learned of acceptance is kept over a restart; none: it is forgotten"
    )
    max_gamma: Annotated[int, Field(ge=0, le=MAX_GAMMA_BOUND)] = Field(
        16, description="most tokens a request may have drafted in a round; more is refused"
    )
    draft_ahead: bool = Field(
        True,
        description="drafts may lie ahead of the verdict, where the policy finds that this pays; false: a drafter "
        "waits for the verdict before it goes on",
    )
    side_lines: Annotated[int, Field(ge=0, le=MAX_LEAD)] = Field(
        MAX_LEAD,
        description="where drafts lie ahead the drafter also draws what would follow so many likely corrections; the "
        "sessions of a drafter share them: one that serves more draws none",
    )
    early_stop: bool = Field(
        True,
        description="a drafter is told what a node must be worth, and ends a draft where its confidence says less; "
        "false: it draws all that it is asked for",
    )
    draft_deadline_ms: PositiveMilliseconds = Field(
        250.0, description="a drafter draws no further node after so long in a round"
    )
    patience_ms: PositiveMilliseconds = Field(
        400.0,
        description="a session waits so long for its draft, then it goes on without: what a dead drafter costs; "
        "where drafts are known to take more than half of it, twice what they take",
    )
    grant: PositiveInt = Field(
        16, description="tokens a verifier may commit without hearing again: enough to bridge the network"
    )
    lease_s: PositiveSeconds = Field(60.0, description="peers free a session of which they hear nothing for so long")
    failover_s: PositiveSeconds = Field(10.0, description="how long a request waits for a verifier to come (back)")
    lost_after_s: PositiveSeconds = Field(
        2.0,
        description="a stream that is not back, or a drafter that has not answered, after so long is given up",
    )
    max_requests: PositiveInt = Field(1024, description="most requests at once; more are refused, to come again")
    metrics_port: Port | None = Field(None, description="port that answers Prometheus at /metrics; none: no metrics")
    otlp_endpoint: str | None = Field(
        None,
        description="where spans and metrics are sent by OTLP, http://host:4317; none: OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_protocol: OtlpProtocol | None = Field(
        None, description="how they are sent; none: OTEL_EXPORTER_OTLP_PROTOCOL, and grpc where that says nothing"
    )
    trace_ratio: Annotated[float, Field(ge=0.0, le=1.0)] | None = Field(
        None,
        description="share of the requests whose spans are sent, where the client brings no trace of its own; none: "
        "OTEL_TRACES_SAMPLER, and all where that says nothing",
    )
    trace_slow_s: PositiveSeconds | None = Field(
        None,
        description="the spans of a request that takes longer, or fails, are sent whatever trace_ratio says; none: "
        "of those that fail",
    )
    log_format: LogFormat = Field("text", description="lines of the log: text for people, json for machines")
    grace_s: PositiveSeconds = Field(30.0, description="how long a shutdown waits for running requests to finish")

    @field_validator("verifiers", "drafters")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 0 < int(match[1]) <= 65535:
                raise ValueError(f"{address!r} is no address; write host:port, such as 127.0.0.1:50052")
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"an address is there twice in {','.join(addresses)}")
        return addresses

    @field_validator("think_marks")
    @classmethod
    def _are_two(cls, marks: tuple[str, ...]) -> tuple[str, ...]:
        if marks and len(set(marks)) != 2:
            raise ValueError("name two different tokens, the one that begins and the one that ends; or none at all")
        return marks

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if not self.verifiers:
            raise ValueError("verifiers is empty: nothing can be generated without one; give its address")
        if self.gamma is not None and self.gamma.most > self.max_gamma:
            raise ValueError(f"gamma is {self.gamma}, over max_gamma of {self.max_gamma}; lower it, or raise that")
        self.tenancy()
        if self.patience_ms < self.draft_deadline_ms:
            raise ValueError(
                f"patience_ms is {self.patience_ms}, under draft_deadline_ms of {self.draft_deadline_ms}: drafts would "
                "come when nobody waits for them any more"
            )
        if self.lease_s * 1e3 <= self.patience_ms:
            raise ValueError(
                f"lease_s is {self.lease_s}, not over patience_ms of {self.patience_ms}: peers would free a session "
                "while it waits for its draft"
            )
        return self

    @property
    def most_patience_ms(self) -> float:
        """For which a session waits however far away its drafts are: less than what ends a stream or a lease."""
        return min(1e3 * self.lost_after_s, 500.0 * self.lease_s)

    def tenancy(self) -> Tenants:
        """By what everybody's requests are served.

        Raises:
            ValueError: what is written of a tenant means nothing.
        """
        targets = Targets(*(None if ms is None else ms / 1e3 for ms in (self.first_token_ms, self.token_ms)))
        return Tenants.parse(self.tenants, Terms(self.max_gamma, self.objective, targets))

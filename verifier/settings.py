"""The settings of a verifier."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pilotfish.settings import (
    Count,
    LogFormat,
    Milliseconds,
    OtlpProtocol,
    Port,
    PositiveInt,
    PositiveSeconds,
    ServiceSettings,
)

MAX_NODES_BOUND = 1024


class VerifierSettings(ServiceSettings, prefix="PILOTFISH_VERIFIER_"):
    """A verifier runs the target model, checks drafts with it and commits what its law says.

    Give it the memory that the model leaves: sessions hold KV, and when that is short the latest ones wait.
    """

    model: str = Field(
        "smollm2-135m", description="target: a preset, a directory, a .gguf file, table:FILE.json or a hub id"
    )
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: Port = Field(50052, description="port to listen on; 0: any that is free")
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto",
        description="number format of the weights; auto: bfloat16 where the device computes in it, else float32. "
        "float32 also promises equal text in passes of every shape, up to rounding; bfloat16 and int8 promise the law; "
        "a table model has float64 whatever this says",
    )
    device: str = Field("auto", description="where the model runs: cpu, cuda, cuda:1, …; auto: cuda if there is one")
    threads: PositiveInt | None = Field(None, description="threads of the model on a CPU; none: as torch chooses")
    reproducible: bool = Field(
        False, description="pad passes so that float32 results are equal to the bit whatever shares a pass; slower"
    )
    kv_memory_mb: PositiveInt = Field(1024, description="memory for KV, in MiB, where num_kv_pages is not given")
    num_kv_pages: PositiveInt | None = Field(None, description="pages of KV; none: as many as kv_memory_mb holds")
    page_size: PositiveInt = Field(16, description="tokens in a page of KV")
    context_length: PositiveInt | None = Field(
        None, description="longest sequence, in tokens, prompt and answer; none: the model's own limit"
    )
    max_sessions: PositiveInt = Field(1024, description="most sessions open at once; more are refused, to come again")
    max_waiting: Count = Field(256, description="most sessions that may wait for KV; more are refused, to come again")
    max_nodes: Annotated[int, Field(ge=1, le=MAX_NODES_BOUND)] = Field(
        64, description="most nodes of a draft that are verified; a longer draft is cut"
    )
    max_positions: PositiveInt = Field(512, description="most positions in a pass")
    prefill_positions: PositiveInt = Field(
        256, description="most of them for prompts: bounds how long others wait for their next token"
    )
    start_wait_ms: Milliseconds = Field(
        100.0,
        description="longest wait of what is ready for drafts that are due, so that they share a pass; no longer than "
        "a pass, or than it is worth; 0: none",
    )
    measure_cost: Literal["once", "always", "never"] = Field(
        "once",
        description="when passes are timed at start, which takes seconds: once for a model on a device (kept in the "
        "cache), always, or never; without, no price is published and each coordinator decides for itself",
    )
    synthetic_acceptance: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = Field(
        (),
        description="LOSSY, to measure hardware: keep drafts at these rates by depth (the last one for all deeper) "
        "instead of by the law; every answer and metric then says that its text means nothing",
    )
    max_lease_s: PositiveSeconds = Field(600.0, description="longest lease of a session, whatever its opener asks")
    stall_s: PositiveSeconds = Field(
        30.0, description="after so long without progress, with work to do, the service says that it is not ready"
    )
    grace_s: PositiveSeconds = Field(30.0, description="how long a shutdown waits for running sessions to finish")
    metrics_port: Port | None = Field(None, description="port that answers Prometheus at /metrics; none: no metrics")
    otlp_endpoint: str | None = Field(
        None,
        description="where spans and metrics are sent by OTLP, http://host:4317; none: OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_protocol: OtlpProtocol | None = Field(
        None, description="how they are sent; none: OTEL_EXPORTER_OTLP_PROTOCOL, and grpc where that says nothing"
    )
    log_format: LogFormat = Field("text", description="lines of the log: text for people, json for machines")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        room = self.max_positions - self.max_positions // 4  # what prompts leave to drafts in any pass
        if 1 + self.max_nodes > room:
            raise ValueError(
                f"max_nodes of {self.max_nodes} needs max_positions of at least {-(-4 * (1 + self.max_nodes) // 3)}, "
                f"is {self.max_positions}"
            )
        return self

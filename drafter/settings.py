"""The settings of a drafter."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pilotfish.errors import ConfigurationError
from pilotfish.settings import LogFormat, OtlpProtocol, Port, PositiveInt, PositiveSeconds, ServiceSettings

MODEL = "model"
NGRAM = "ngram"


class DrafterSettings(ServiceSettings, prefix="PILOTFISH_DRAFTER_"):
    """A drafter proposes tokens; nothing it does changes what a model says, only how fast.

    Without --model it copies what followed before in the same text (ngram): no model, no torch. With --model the model
    drafts. --speculators offers several; each request may name the one it wants.
    """

    host: str = Field(default="127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: Port = Field(default=50051, description="port to listen on; 0: any that is free")
    speculators: tuple[str, ...] = Field(
        default=(),
        description="what may draft, the default first: ngram, model, any installed one, or module:Class of your own; "
        "none: model if --model is given, else ngram",
    )
    options: tuple[str, ...] = Field(default=(), description="name=value pairs for speculators of your own")
    model: str | None = Field(
        default=None, description="model that drafts: a preset, a directory, a .gguf file, table:FILE.json or a hub id"
    )
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        default="auto",
        description="number format of the model's weights; no choice changes what is generated; auto: bfloat16 where "
        "the device computes in it, else float32",
    )
    device: str = Field(
        default="auto", description="where the model runs: cpu, cuda, cuda:1, …; auto: cuda if it is there"
    )
    threads: PositiveInt | None = Field(default=None, description="threads of the model on a CPU; none: torch's choice")
    kv_memory_mb: PositiveInt = Field(default=512, description="memory for KV, in MiB, where num_kv_pages is not given")
    num_kv_pages: PositiveInt | None = Field(
        default=None, description="pages of KV, shared by all sessions; none: as many as kv_memory_mb holds"
    )
    page_size: PositiveInt = Field(default=16, description="tokens in a page of KV")
    chunk_tokens: PositiveInt = Field(default=256, description="most tokens the model reads in one step")
    num_ids: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=64, description="most ids in a q: what is drawn at a temperature is drawn from the likeliest so many"
    )
    num_bits: Annotated[int, Field(ge=1, le=32)] = Field(default=8, description="bits of a weight in a q")
    min_n: PositiveInt = Field(default=2, description="shortest n-gram that ngram looks for")
    max_n: PositiveInt = Field(default=5, description="longest n-gram that ngram looks for")
    max_gamma: Annotated[int, Field(ge=1, le=1024)] = Field(default=64, description="most levels in a draft")
    max_sessions: PositiveInt = Field(default=1024, description="most sessions open at once")
    otlp_endpoint: str | None = Field(
        default=None,
        description="where spans and metrics are sent by OTLP, http://host:4317; none: OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_protocol: OtlpProtocol | None = Field(
        default=None,
        description="how they are sent; none: OTEL_EXPORTER_OTLP_PROTOCOL, and grpc where that says nothing",
    )
    log_format: LogFormat = Field(default="text", description="lines of the log: text for people, json for machines")
    metrics_port: Port | None = Field(
        default=None, description="port where Prometheus may ask for metrics; 0: any that is free; none: no metrics"
    )
    grace_s: PositiveSeconds = Field(default=5.0, description="how long a shutdown may take")

    @field_validator("options")
    @classmethod
    def _are_pairs(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option.partition("=")[0] or "=" not in option:
                raise ValueError(f"{option!r} is no name=value pair")
        return options

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(f"min_n is {self.min_n} and max_n {self.max_n}: the shortest is longer than the longest")
        if len(set(self.speculators)) < len(self.speculators):
            raise ValueError(f"speculators is {','.join(self.speculators)}: one is named twice")
        if MODEL in self.speculators and self.model is None:
            raise ValueError("speculators names model, but model is not set: say which one drafts with --model")
        return self

    @property
    def speculator_names(self) -> tuple[str, ...]:
        """The speculators to offer, the default first."""
        return self.speculators or (MODEL if self.model is not None else NGRAM,)

    def option(self, name: str, default: str | None = None) -> str:
        """The value of one of the `options`.

        Raises:
            ConfigurationError: it is not given, and there is no default.
        """
        given = dict(option.split("=", 1) for option in self.options)
        value = given.get(name, default)
        if value is None:
            raise ConfigurationError.of("options", ",".join(self.options), f"{name}=… is needed")
        return value

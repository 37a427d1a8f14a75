"""Definitions of metrics, and their instruments: Prometheus' own client library keeps the numbers.

OpenTelemetry's names may not hold a colon, and four of ours must; so the numbers live here once, are exposed as they
are, and are read from here for OTLP (`otlp`) under names that it allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from pilotfish.errors import PortTaken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Role: TypeAlias = Literal["coordinator", "drafter", "verifier"]

SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a metric is called and what it means."""

    name: str  # in Prometheus
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    roles: tuple[Role, ...]
    labels: tuple[str, ...] = ()  # as OpenTelemetry writes them; in Prometheus a dot is an underscore
    buckets: tuple[float, ...] = ()
    otlp: str | None = None  # its name in OTLP, where that is more than Prometheus' in other letters

    @property
    def otlp_name(self) -> str:
        """In OTLP: no colon, and no suffix that says of a counter what its kind says."""
        return self.otlp or self.name.removesuffix("_total").replace(":", ".")

    @property
    def unit(self) -> str:
        """As OpenTelemetry writes it; empty: a number of things."""
        return "s" if self.name.endswith("_seconds") else ""

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(label.replace(".", "_") for label in self.labels)


def counter(name: str, description: str, *roles: Role, labels: tuple[str, ...] = ()) -> Definition:
    """Only rises."""
    return Definition(name, "counter", description, roles, labels)


def gauge(name: str, description: str, *roles: Role, labels: tuple[str, ...] = ()) -> Definition:
    """Stands at a value."""
    return Definition(name, "gauge", description, roles, labels)


def seconds(name: str, description: str, *roles: Role, labels: tuple[str, ...] = ()) -> Definition:
    """A histogram of durations."""
    return Definition(name, "histogram", description, roles, labels, SECONDS)


class Point(NamedTuple):
    """What a metric stands at for one choice of labels."""

    labels: tuple[str, ...]  # values, in the definition's order
    value: float  # of a histogram: the sum
    buckets: tuple[int, ...] = ()  # of a histogram: values in each bucket, the last one unbounded


class Instruments:
    """The metrics of one role, in a registry of their own."""

    def __init__(self, definitions: Sequence[Definition]) -> None:
        self.registry: Any = _registry()
        self._instruments = {definition.name: _instrument(definition, self.registry) for definition in definitions}
        self.definitions = tuple(definitions)

    def child(self, definition: Definition, labels: tuple[str, ...]) -> Any:
        """What counts for one choice of labels; None: this role has no such metric."""
        instrument = self._instruments.get(definition.name)
        return instrument.labels(*labels) if instrument is not None and definition.labels else instrument

    def value(self, definition: Definition, labels: tuple[str, ...]) -> float:
        """What a counter or gauge stands at; 0.0 where nothing was counted, or this role has no such metric."""
        names = dict(zip(definition.prometheus_labels, labels, strict=True))
        return self.registry.get_sample_value(definition.name, names) or 0.0

    def exposition(self) -> str:
        """All of them as Prometheus scrapes them."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def serve(self, host: str, port: int) -> Any:
        """A server that answers scrapes at `/metrics`, from a thread of its own.

        Args:
            port: 0 for any that is free.

        Raises:
            PortTaken: the address cannot be bound.
        """
        from prometheus_client import start_http_server

        try:
            server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            remedy = "is it taken by another process? Choose another port, or none to serve no metrics"
            raise PortTaken(f"cannot serve metrics on {host}:{port}: {remedy}", field="metrics_port") from error
        return server

    def points(self, definition: Definition) -> list[Point]:
        """What has been counted."""
        found: dict[tuple[str, ...], Point] = {}
        for family in self._instruments[definition.name].collect():
            for sample in family.samples:
                labels = tuple(sample.labels[label] for label in definition.prometheus_labels)
                point = found.get(labels, Point(labels, 0.0))
                if sample.name == f"{definition.name}_bucket":
                    below = sum(point.buckets)  # Prometheus' buckets hold what is in the ones before as well
                    found[labels] = point._replace(buckets=(*point.buckets, round(sample.value) - below))
                elif sample.name in {definition.name, f"{definition.name}_sum"}:
                    found[labels] = point._replace(value=sample.value)
        return list(found.values())


def _registry() -> Any:
    """A registry without the `_created` series: they would begin with the names of the four counters."""
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

    name, text, labels = definition.name, definition.description, definition.prometheus_labels
    match definition.kind:
        case "counter":
            return Counter(name, text, labels, registry=registry)
        case "gauge":
            return Gauge(name, text, labels, registry=registry)
        case "histogram":
            return Histogram(name, text, labels, buckets=definition.buckets, registry=registry)

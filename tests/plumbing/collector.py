"""A collector: takes spans and metrics by OTLP over gRPC or HTTP, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(slots=True)
class Collected:
    """What has come."""

    url: str = ""
    services: set[str] = field(default_factory=set)
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)  # by name, as sent last

    def take_spans(self, request: Any) -> None:
        for resource in request.resource_spans:
            self._take_resource(resource.resource)
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def take_metrics(self, request: Any) -> None:
        for resource in request.resource_metrics:
            self._take_resource(resource.resource)
            for scope in resource.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})

    def _take_resource(self, resource: Any) -> None:
        attributes = {entry.key: entry.value.string_value for entry in resource.attributes}
        self.services.add(attributes["service.name"])


@contextmanager
def collect(protocol: str) -> Iterator[Collected]:
    """A collector until the block ends; `url` is where it listens."""
    with _grpc() if protocol == "grpc" else _http() as collected:
        yield collected


@contextmanager
def _grpc() -> Iterator[Collected]:
    collected = Collected()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            collected.take_spans(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            collected.take_metrics(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    collected.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collected
    finally:
        server.stop(None).wait()


@contextmanager
def _http() -> Iterator[Collected]:
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                collected.take_spans(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            elif self.path == "/v1/metrics":
                collected.take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200 if self.path in {"/v1/traces", "/v1/metrics"} else 404)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    collected.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

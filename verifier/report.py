"""What a verifier tells of itself: metrics of passes and verdicts, and the spans of rounds."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.messages import Opened, Refusal, Verdict, VerifierLoad
from pilotfish.price import Plan
from pilotfish.telemetry import PASS, QUEUE, VERIFY, Attribute, Metric, Telemetry
from pilotfish.tracing import AttributeValue
from verifier.traffic import Answer, PassRecord, RoundTimes


class Report:
    """Turns the engine's doings into metrics and spans."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    # -- on the engine's thread --------------------------------------------------------------------------------------

    def passed(self, record: PassRecord) -> None:
        telemetry = self._telemetry
        telemetry.add(Metric.PASSES)
        telemetry.observe(Metric.PASS_SECONDS, record.length_s)
        telemetry.observe(Metric.PASS_POSITIONS, record.num_positions)
        telemetry.add(Metric.VERIFIED_POSITIONS, record.num_positions - record.num_prefill_positions)
        telemetry.add(Metric.PREFILL_POSITIONS, record.num_prefill_positions)
        if record.num_preempted:
            telemetry.add(Metric.PREEMPTIONS, record.num_preempted)

    def dropped(self, cause: str) -> None:
        self._telemetry.add(Metric.DRAFTS_DROPPED, 1, cause)

    def expired(self) -> None:
        self._telemetry.add(Metric.LEASES_EXPIRED)

    # -- in the event loop -------------------------------------------------------------------------------------------

    def answered(self, answers: Sequence[Answer], load: VerifierLoad) -> None:
        """Count the answers of a turn and record the rounds among them."""
        telemetry = self._telemetry
        telemetry.set(Metric.SESSIONS, load.num_sessions)
        telemetry.set(Metric.KV_PAGES, load.num_kv_pages)
        telemetry.set(Metric.KV_PAGES_USED, load.num_kv_pages_used)
        if load.plan is not None:
            self._price(load, load.plan)
        for answer in answers:
            match answer.message:
                case Verdict() as verdict:
                    for kind in verdict.kinds:
                        telemetry.add(Metric.COMMITTED_TOKENS, 1, kind.value)
                    if answer.times is not None:
                        self._round(verdict, answer.times, load)
                case Opened() as opened:
                    telemetry.add(Metric.CACHED_TOKENS, opened.num_cached_tokens)
                case Refusal() as refusal:
                    telemetry.add(Metric.ITEMS_DROPPED, 1, refusal.reason)

    def _price(self, load: VerifierLoad, plan: Plan) -> None:
        telemetry = self._telemetry
        telemetry.set(Metric.SATURATION, load.saturation)
        telemetry.set(Metric.PRICE, plan.price)
        telemetry.set(Metric.PERIOD_SECONDS, plan.period_s)
        if load.plain_us and load.num_sessions:
            telemetry.set(Metric.PREDICTED_SPEEDUP, plan.tokens_per_s * load.plain_us / 1e6 / load.num_sessions)
        if load.realised_speedup is not None:
            telemetry.set(Metric.REALISED_SPEEDUP, load.realised_speedup)

    def _round(self, verdict: Verdict, times: RoundTimes, load: VerifierLoad) -> None:
        self._telemetry.observe(Metric.QUEUE_SECONDS, max(0.0, times.began_s - times.arrived_s))
        if times.trace is None:
            return
        record = self._telemetry.tracer.record
        arrived_ns, began_ns, ended_ns = (round(at * 1e9) for at in (times.arrived_s, times.began_s, times.ended_s))
        attributes: dict[str, AttributeValue] = {
            Attribute.SESSION: verdict.session.hex(),
            Attribute.DRAFTED: verdict.num_drafted,
            Attribute.ACCEPTED: verdict.num_accepted,
            Attribute.COMMITTED: len(verdict.tokens),
        }
        if verdict.round is not None:
            attributes[Attribute.ROUND_INDEX] = verdict.round
        context = record(VERIFY, times.trace, arrived_ns, ended_ns, attributes)
        record(QUEUE, context, arrived_ns, began_ns)
        positions = {
            Attribute.PASS_POSITIONS: verdict.pass_positions,
            Attribute.PASS_SEQUENCES: load.pass_sequences,
        }
        record(PASS, context, began_ns, ended_ns, positions)

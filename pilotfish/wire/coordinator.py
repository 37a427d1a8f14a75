"""What clients and the coordinator say to one another. Needs only protobuf; the client uses it too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pilotfish.errors import InvalidArgument
from pilotfish.messages import (
    NO_TARGETS,
    Chat,
    Chunk,
    CoordinatorInfo,
    Finished,
    FinishReason,
    Message,
    Objective,
    Peer,
    Request,
    Round,
    Speculation,
    Started,
    Statistics,
    Targets,
)
from pilotfish.v1 import coordinator_pb2
from pilotfish.wire.sampling import (
    read_finish,
    read_kinds,
    read_rule,
    read_sampling,
    write_finish,
    write_kinds,
    write_rule,
    write_sampling,
)

MAX_STOPS: Final = 64  # stop strings, and stop ids, of one request
MAX_ID: Final = (1 << 31) - 1
MAX_WORKLOAD: Final = 64  # characters of a workload's label
_OBJECTIVES: Final = {
    Objective.LATENCY: coordinator_pb2.OBJECTIVE_LATENCY,
    Objective.BALANCED: coordinator_pb2.OBJECTIVE_BALANCED,
    Objective.THROUGHPUT: coordinator_pb2.OBJECTIVE_THROUGHPUT,
}

# ---- requests ----------------------------------------------------------------------------------------------------


def write_request(request: Request) -> coordinator_pb2.GenerateRequest:
    """A request as it is; what is wrong with it the coordinator says."""
    speculation = request.speculation
    proto = coordinator_pb2.GenerateRequest(
        sampling=write_sampling(request.sampling),
        seed=request.seed,
        max_tokens=request.max_tokens,
        stop=request.stop,
        stop_ids=request.stop_ids,
        ignore_eos=request.ignore_eos,
        speculation=coordinator_pb2.Speculation(
            is_off=speculation.is_off,
            gamma=speculation.gamma,
            max_gamma=speculation.max_gamma,
            rule=write_rule(speculation.rule),
            speculator=speculation.speculator or "",
        ),
        output_so_far=request.output_so_far,
        model=request.model or "",
        include_rounds=request.include_rounds,
        workload=request.workload,
        objective=coordinator_pb2.OBJECTIVE_UNSPECIFIED
        if request.objective is None
        else _OBJECTIVES[request.objective],
        targets=_write_targets(request.targets),
    )
    match request.prompt:
        case str(text):
            proto.text = text
        case Chat(messages):
            proto.chat.SetInParent()
            for message in messages:
                proto.chat.messages.add(role=message.role, content=message.content)
        case ids:
            proto.tokens.SetInParent()
            proto.tokens.ids.extend(ids)
    return proto


def _write_targets(targets: Targets) -> coordinator_pb2.Targets | None:
    if targets == NO_TARGETS:
        return None
    return coordinator_pb2.Targets(
        first_token_us=None if targets.first_token_s is None else round(targets.first_token_s * 1e6),
        token_us=None if targets.token_s is None else round(targets.token_s * 1e6),
    )


def read_request(
    proto: coordinator_pb2.GenerateRequest,
    *,
    max_gamma: int,
    whose: str = "this coordinator",
    vocabulary_size: int | None = None,
) -> Request:
    """A request that can be served, as far as its own values tell.

    Args:
        max_gamma: the cap.
        whose: cap it is, for the refusal.
        vocabulary_size: of the served model; None: not known yet, any id is taken.

    Raises:
        InvalidArgument: with the field at fault.
    """
    num_ids = MAX_ID + 1 if vocabulary_size is None else vocabulary_size
    max_tokens = proto.max_tokens if proto.HasField("max_tokens") else None
    if max_tokens == 0:
        raise InvalidArgument.of("max_tokens", 0, "must be at least 1; leave it out for the model's context")
    output_so_far = _read_ids("output_so_far", proto.output_so_far, num_ids)
    if max_tokens is not None and len(output_so_far) > max_tokens:
        remedy = f"output_so_far has {len(output_so_far)} tokens, more than that"
        raise InvalidArgument.of("max_tokens", max_tokens, remedy)
    return Request(
        prompt=_read_prompt(proto, num_ids),
        sampling=read_sampling(proto.sampling),
        seed=proto.seed if proto.HasField("seed") else None,
        max_tokens=max_tokens,
        stop=_read_stop(proto.stop),
        stop_ids=_read_ids("stop_ids", proto.stop_ids, num_ids, MAX_STOPS),
        ignore_eos=proto.ignore_eos,
        speculation=_read_speculation(proto.speculation, max_gamma, whose),
        output_so_far=output_so_far,
        model=proto.model or None,
        include_rounds=proto.include_rounds,
        workload=_read_workload(proto.workload),
        objective=_read_objective(proto.objective),
        targets=_read_targets(proto.targets),
    )


def _read_targets(proto: coordinator_pb2.Targets) -> Targets:
    first_us = proto.first_token_us if proto.HasField("first_token_us") else None
    token_us = proto.token_us if proto.HasField("token_us") else None
    for field, value in (("targets.first_token_us", first_us), ("targets.token_us", token_us)):
        if value == 0:
            raise InvalidArgument.of(field, value, "no token comes in no time; leave it out for no target")
    return Targets(
        None if first_us is None else first_us / 1e6,
        None if token_us is None else token_us / 1e6,
    )


def _read_workload(workload: str) -> str:
    if len(workload) > MAX_WORKLOAD or not workload.isprintable():
        raise InvalidArgument.of("workload", workload, f"a label of at most {MAX_WORKLOAD} printable characters")
    return workload


def _read_objective(number: int) -> Objective | None:
    if number == coordinator_pb2.OBJECTIVE_UNSPECIFIED:
        return None
    found = next((objective for objective, known in _OBJECTIVES.items() if known == number), None)
    if found is None:
        raise InvalidArgument.of(
            "objective", number, f"must be {', '.join(each.value for each in Objective)} or absent"
        )
    return found


def _read_prompt(proto: coordinator_pb2.GenerateRequest, num_ids: int) -> str | Chat | tuple[int, ...]:
    match proto.WhichOneof("prompt"):
        case "text":
            if not proto.text:
                raise InvalidArgument.of("text", "", "an empty prompt has nothing to continue")
            return proto.text
        case "chat":
            if not proto.chat.messages:
                raise InvalidArgument.of("chat.messages", [], "an empty conversation has nothing to continue")
            for index, message in enumerate(proto.chat.messages):
                if not message.role:
                    raise InvalidArgument.of(f"chat.messages[{index}].role", "", "say system, user or assistant")
            return Chat(tuple(Message(message.role, message.content) for message in proto.chat.messages))
        case "tokens":
            ids = _read_ids("tokens.ids", proto.tokens.ids, num_ids)
            if not ids:
                raise InvalidArgument.of("tokens.ids", [], "an empty prompt has nothing to continue")
            return ids
        case _:
            raise InvalidArgument.of("prompt", None, "set exactly one of text, chat and tokens")


def _read_ids(field: str, numbers: Iterable[int], num_ids: int, max_ids: int | None = None) -> tuple[int, ...]:
    ids = tuple(numbers)
    if max_ids is not None and len(ids) > max_ids:
        raise InvalidArgument(f"{field} has {len(ids)} entries: at most {max_ids} are taken", field=field)
    if ids and max(ids) >= num_ids:
        raise InvalidArgument.of(field, max(ids), f"ids of the served model are below {num_ids}")
    return ids


def _read_stop(strings: Iterable[str]) -> tuple[str, ...]:
    stop = tuple(strings)
    if len(stop) > MAX_STOPS:
        raise InvalidArgument(f"stop has {len(stop)} strings: at most {MAX_STOPS} are taken", field="stop")
    if "" in stop:
        raise InvalidArgument.of(f"stop[{stop.index('')}]", "", "an empty string would end every answer at once")
    return stop


def _read_speculation(proto: coordinator_pb2.Speculation, cap: int, whose: str) -> Speculation:
    gamma = proto.gamma if proto.HasField("gamma") else None
    max_gamma = proto.max_gamma if proto.HasField("max_gamma") else None
    for field, value in (("speculation.gamma", gamma), ("speculation.max_gamma", max_gamma)):
        if value is not None and value > cap:
            raise InvalidArgument.of(field, value, f"the cap of {whose} is {cap}")
    if gamma is not None and max_gamma is not None and gamma > max_gamma:
        raise InvalidArgument.of("speculation.gamma", gamma, f"is over the request's own max_gamma of {max_gamma}")
    if proto.is_off and gamma:
        raise InvalidArgument.of("speculation.gamma", gamma, "speculation is off in the same request; set one of them")
    rule = read_rule(proto.rule)
    if rule is None and proto.rule != 0:
        raise InvalidArgument.of("speculation.rule", int(proto.rule), "not a rule that this version knows")
    return Speculation(proto.is_off, gamma, max_gamma, rule, proto.speculator or None)


# ---- answers -----------------------------------------------------------------------------------------------------


def write_chunk(chunk: Chunk) -> coordinator_pb2.GenerateResponse:
    """A piece of an answer."""
    return coordinator_pb2.GenerateResponse(
        text=chunk.text,
        ids=chunk.ids,
        kinds=write_kinds(chunk.kinds),
        num_characters=chunk.num_characters,
        rounds=[_write_round(entry) for entry in chunk.rounds],
        started=None if chunk.started is None else _write_started(chunk.started),
        finished=None if chunk.finished is None else _write_finished(chunk.finished),
    )


def read_chunk(proto: coordinator_pb2.GenerateResponse) -> Chunk:
    """A piece of an answer."""
    return Chunk(
        text=proto.text,
        ids=tuple(proto.ids),
        kinds=read_kinds(proto.kinds),
        rounds=tuple(_read_round(entry) for entry in proto.rounds),
        started=_read_started(proto.started) if proto.HasField("started") else None,
        finished=_read_finished(proto.finished) if proto.HasField("finished") else None,
        num_characters=tuple(proto.num_characters),
    )


def _write_started(started: Started) -> coordinator_pb2.Started:
    return coordinator_pb2.Started(
        request_id=started.request_id,
        model=started.model,
        num_prompt_tokens=started.num_prompt_tokens,
        num_cached_tokens=started.num_cached_tokens,
        drafter=started.drafter or "",
        verifier=started.verifier,
        rule=write_rule(started.rule),
        trace_id=started.trace_id or "",
        is_lossy=started.is_lossy,
    )


def _read_started(proto: coordinator_pb2.Started) -> Started:
    return Started(
        request_id=proto.request_id,
        model=proto.model,
        num_prompt_tokens=proto.num_prompt_tokens,
        num_cached_tokens=proto.num_cached_tokens,
        drafter=proto.drafter or None,
        verifier=proto.verifier,
        rule=read_rule(proto.rule),
        trace_id=proto.trace_id or None,
        is_lossy=proto.is_lossy,
    )


def _write_round(entry: Round) -> coordinator_pb2.Round:
    return coordinator_pb2.Round(**{name: getattr(entry, name) for name in Round.__slots__})


def _read_round(proto: coordinator_pb2.Round) -> Round:
    return Round(**{name: getattr(proto, name) for name in Round.__slots__})


def _write_finished(finished: Finished) -> coordinator_pb2.Finished:
    return coordinator_pb2.Finished(
        reason=write_finish(finished.reason),
        num_prompt_tokens=finished.num_prompt_tokens,
        num_output_tokens=finished.num_output_tokens,
        statistics=coordinator_pb2.Statistics(
            **{name: getattr(finished.statistics, name) for name in Statistics.__slots__}
        ),
    )


def _read_finished(proto: coordinator_pb2.Finished) -> Finished:
    values = {name: getattr(proto.statistics, name) for name in Statistics.__slots__}
    values["num_accepted_by_depth"] = tuple(values["num_accepted_by_depth"])
    values["num_dropped_by_cause"] = dict(values["num_dropped_by_cause"])
    values["targets_met"] = dict(values["targets_met"])
    values["num_rounds_by_reason"] = dict(values["num_rounds_by_reason"])
    return Finished(
        reason=read_finish(proto.reason) or FinishReason.STOP,
        num_prompt_tokens=proto.num_prompt_tokens,
        num_output_tokens=proto.num_output_tokens,
        statistics=Statistics(**values),
    )


# ---- what a coordinator is ---------------------------------------------------------------------------------------


def write_info(info: CoordinatorInfo) -> coordinator_pb2.CoordinatorInfoResponse:
    """What a coordinator serves."""
    return coordinator_pb2.CoordinatorInfoResponse(
        version=info.version,
        model=info.model,
        context_length=info.context_length,
        max_gamma=info.max_gamma,
        peers=[_write_peer(peer) for peer in info.peers],
        settings=info.settings,
        acceptance_rate=info.acceptance_rate,
    )


def read_info(proto: coordinator_pb2.CoordinatorInfoResponse) -> CoordinatorInfo:
    """What a coordinator serves."""
    return CoordinatorInfo(
        version=proto.version,
        model=proto.model,
        context_length=proto.context_length,
        max_gamma=proto.max_gamma,
        peers=tuple(_read_peer(peer) for peer in proto.peers),
        settings=dict(proto.settings),
        acceptance_rate=proto.acceptance_rate if proto.HasField("acceptance_rate") else None,
    )


def _write_peer(peer: Peer) -> coordinator_pb2.Peer:
    return coordinator_pb2.Peer(
        role=peer.role,
        address=peer.address,
        is_up=peer.is_up,
        problem=peer.problem or "",
        model=peer.model or "",
        speculators=peer.speculators,
        num_sessions=peer.num_sessions,
        round_trip_us=peer.round_trip_us,
        draft_start_us=peer.draft_start_us,
        draft_token_us=peer.draft_token_us,
    )


def _read_peer(proto: coordinator_pb2.Peer) -> Peer:
    return Peer(
        role=proto.role,
        address=proto.address,
        is_up=proto.is_up,
        problem=proto.problem or None,
        model=proto.model or None,
        speculators=tuple(proto.speculators),
        num_sessions=proto.num_sessions,
        round_trip_us=proto.round_trip_us,
        draft_start_us=proto.draft_start_us,
        draft_token_us=proto.draft_token_us,
    )

"""What a caller of the client says, as a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict, Unpack

from pilotfish.errors import InvalidArgument
from pilotfish.messages import NO_TARGETS, Chat, Message, Objective, Request, Sampling, Speculation, Targets

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message] | Sequence[Mapping[str, str]] | Chat
"""Text, token ids, or the messages of a conversation (`{"role": "user", "content": "…"}`)."""

LEAST_TARGET_S: Final = 1e-6
MOST_TARGET_S: Final = 1e6


class Options(TypedDict, total=False):
    """Everything a request may say besides its prompt; None is the same as leaving it out."""

    max_tokens: int | None  # most tokens of the answer; default: up to the model's context
    temperature: float | None  # 0: greedy; default 1
    top_k: int | None  # only the ids with the k largest logits; default: all
    top_p: float | None  # only the smallest set of ids with this probability, in (0, 1]; default: all
    seed: int | None  # same seed, same answer; default: answers differ
    stop: str | Sequence[str] | None  # the answer ends before the first of these
    stop_ids: Sequence[int] | None  # the answer ends with the first of these, besides the model's own end ids
    ignore_eos: bool | None  # the model's end ids are ordinary tokens
    speculation: Speculation | None  # default: as the coordinator is set
    output_so_far: Sequence[int] | None  # tokens of the answer that exist; it goes on after them
    model: str | None  # refused where another one is served
    include_rounds: bool | None  # also send every round with its timing
    workload: str | None  # what kind of text this is; acceptance is counted by it
    objective: Objective | None  # what matters most; default: as the coordinator is set
    targets: Targets | None  # times to keep; default: as the coordinator is set


def make_request(prompt: Prompt, **options: Unpack[Options]) -> Request:
    """The request of a call.

    Raises:
        InvalidArgument: a value that cannot even be sent. What else is wrong with it the coordinator says.
        TypeError: an option that there is not.
    """
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(Options.__annotations__)}")
    for field, bits in (("max_tokens", 32), ("top_k", 32), ("seed", 64)):
        value = options.get(field)
        if value is not None and not (isinstance(value, int) and 0 <= value < 1 << bits):
            raise InvalidArgument.of(field, value, f"must be a whole number from 0 to 2**{bits} - 1")
    temperature, stop = options.get("temperature"), options.get("stop") or ()
    request = Request(
        prompt=_prompt(prompt),
        sampling=Sampling(1.0 if temperature is None else temperature, options.get("top_k"), options.get("top_p")),
        seed=options.get("seed"),
        max_tokens=options.get("max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_ids=_ids("stop_ids", options.get("stop_ids") or ()),
        ignore_eos=options.get("ignore_eos") or False,
        speculation=options.get("speculation") or Speculation(),
        output_so_far=_ids("output_so_far", options.get("output_so_far") or ()),
        model=options.get("model"),
        include_rounds=options.get("include_rounds") or False,
        workload=options.get("workload") or "",
        objective=options.get("objective"),
        targets=_checked(options.get("targets") or NO_TARGETS),
    )
    for field, text in _texts(request):
        _check_text(field, text)
    return request


def _checked(targets: Targets) -> Targets:
    for field, seconds in (("first_token_s", targets.first_token_s), ("token_s", targets.token_s)):
        if seconds is not None and not LEAST_TARGET_S <= seconds <= MOST_TARGET_S:
            bounds = f"from {LEAST_TARGET_S:g} to {MOST_TARGET_S:g}"
            raise InvalidArgument.of(f"targets.{field}", seconds, f"must be {bounds} seconds; None is no target")
    return targets


def _texts(request: Request) -> Iterator[tuple[str, str]]:
    match request.prompt:
        case str(text):
            yield "prompt", text
        case Chat(messages):
            yield from (("prompt", text) for message in messages for text in (message.role, message.content))
    yield from (("stop", text) for text in request.stop)
    yield "model", request.model or ""
    yield "workload", request.workload
    yield "speculation.speculator", request.speculation.speculator or ""


def _check_text(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start : error.start + 1]
        raise InvalidArgument.of(field, half, "this is half of a character (a lone surrogate); leave it out") from error


def _prompt(prompt: Prompt) -> str | Chat | tuple[int, ...]:
    if isinstance(prompt, str | Chat):
        return prompt
    entries: tuple[Any, ...] = tuple(prompt)
    if entries and all(isinstance(entry, Message) for entry in entries):
        return Chat(entries)
    if entries and all(isinstance(entry, Mapping) for entry in entries):
        for entry in entries:
            if set(entry) != {"role", "content"}:
                raise InvalidArgument.of("prompt", entry, "a message has exactly a role and a content")
        return Chat(tuple(Message(entry["role"], entry["content"]) for entry in entries))
    return _ids("prompt", entries)


def _ids(field: str, values: Sequence[Any]) -> tuple[int, ...]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
            raise InvalidArgument.of(field, value, "a token id is a whole number of at least 0")
    return tuple(values)

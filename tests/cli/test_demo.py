"""What the demo concludes from its runs."""

from __future__ import annotations

import pytest

from pilotfish.cli.demo import Case, Comparison, problems
from pilotfish.cli.reply import Reply, receive
from pilotfish.messages import Chunk, Finished, FinishReason, Round, Started, Statistics, TokenKind


def reply(
    ids: tuple[int, ...] = (1, 2, 3, 4), seconds: float = 3.0, drafted: int = 0, accepted: int = 0, is_cut: bool = False
) -> Reply:
    """An answer whose first token came at once."""
    statistics = Statistics(
        num_verdicts=len(ids) - accepted, num_drafts=1, num_drafted_tokens=drafted, num_accepted_tokens=accepted
    )
    finished = None if is_cut else Finished(FinishReason.STOP, 5, len(ids), statistics)
    return Reply("text", ids, (TokenKind.PLAIN,) * len(ids), (), None, finished, 0.0, 1, seconds)


def comparison(plain: Reply, fast: Reply) -> Comparison:
    """Plain decoding beside γ 4."""
    return Comparison(Case("a case", "a prompt"), {0: [plain], 4: [fast]})


def test_all_held() -> None:
    """Same ids, finished answers and accepted tokens: nothing to complain of, and the ratio is that of the rates."""
    found = comparison(reply(), reply(seconds=1.5, drafted=4, accepted=2))
    assert problems([found]) == []
    assert found.ratio(4) == pytest.approx(2.0)
    assert found.best_gamma == 4
    assert found.acceptance(4) == 0.5
    assert found.tokens_per_pass(4) == 2.0


def test_plain_decoding_can_be_the_best() -> None:
    """Where every γ is slower the best one is 0."""
    assert comparison(reply(), reply(seconds=4.0, drafted=4, accepted=1)).best_gamma == 0


@pytest.mark.parametrize(
    ("fast", "words"),
    [
        (reply(ids=(1, 2, 9, 4), drafted=4, accepted=2), "not the text without"),
        (reply(drafted=4, accepted=2, is_cut=True), "cut off"),
        (reply(drafted=4, accepted=0), "not at work"),
        (reply(), "not at work"),
    ],
)
def test_what_did_not_hold_is_said(fast: Reply, words: str) -> None:
    """Another text, an unfinished answer, or drafts of which nothing ever held make the demo fail."""
    found = problems([comparison(reply(), fast)])
    assert any(words in problem for problem in found)


def test_one_case_without_a_match_is_no_problem() -> None:
    """A prompt where lookup finds nothing is what the demo is there to show, beside one where it does."""
    good = comparison(reply(), reply(drafted=4, accepted=2))
    assert problems([good, comparison(reply(), reply())]) == []


def chunks() -> list[Chunk]:
    """A stream of three pieces."""
    started = Started(request_id="0" * 32, model="m", num_prompt_tokens=5)
    end = Finished(FinishReason.LENGTH, 5, 3, Statistics(num_verdicts=2, num_drafts=1, num_drafted_tokens=2))
    return [
        Chunk(started=started),
        Chunk("a", (1,), (TokenKind.PLAIN,), num_characters=(1,)),
        Chunk(
            "bc", (2, 3), (TokenKind.ACCEPTED, TokenKind.BONUS), (Round(0, 2, "fixed", 2, 1, 2),), num_characters=(1, 1)
        ),
        Chunk(finished=end),
    ]


def test_a_reply_is_what_was_streamed() -> None:
    """Text, ids, kinds and rounds of all pieces are kept, and what is written piece by piece is the text."""
    written: list[str] = []
    got = receive(chunks(), written.append)
    assert ("".join(written), got.text, got.ids) == ("abc", "abc", (1, 2, 3))
    assert [kind.value for kind in got.kinds] == ["plain", "accepted", "bonus"]
    assert (len(got.rounds), got.tokens_per_pass, got.num_first) == (1, 1.5, 1)
    assert "0 of 2 draft tokens held (0%)" in got.summary()
    assert "ended by length" in got.summary()


def test_an_interrupted_reply_is_kept_as_far_as_it_came() -> None:
    """Ctrl-C closes the stream; what had come is there and nothing says that it was finished."""
    closed = []

    class Stream:
        def __init__(self) -> None:
            self._left = chunks()[:2]

        def __iter__(self) -> Stream:
            return self

        def __next__(self) -> Chunk:
            if not self._left:
                raise KeyboardInterrupt
            return self._left.pop(0)

        def close(self) -> None:
            closed.append(True)

    got = receive(Stream())
    assert (got.text, got.finished, closed) == ("a", None, [True])
    assert "cut off" in got.summary()

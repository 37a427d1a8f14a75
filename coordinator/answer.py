"""The answer of one request as its client sees it."""

from __future__ import annotations

from dataclasses import replace

from coordinator.admission import Admitted
from coordinator.record import Record
from coordinator.sessions import Committed
from coordinator.text import AnswerText, Vocabulary
from pilotfish.messages import Chunk, Finished, FinishReason, Round, Started, Verdict


class Answer:
    """Makes pieces of verdicts; whatever is committed after the end of the answer is no part of it."""

    def __init__(self, admitted: Admitted, vocabulary: Vocabulary, committed: Committed, record: Record) -> None:
        self.is_finished = False
        self.verifier = ""  # address
        self.drafter: str | None = None  # address
        self.is_lossy = False  # the verifier's acceptance is not by the law
        self.num_cached_tokens = 0  # prompt tokens whose KV the verifier had
        self._admitted = admitted
        self._committed = committed
        self._record = record
        self._text = AnswerText(vocabulary, admitted.request.stop)
        self._is_started = False

    def resume(self) -> Chunk | None:
        """Take in what the client has already; the end, where that was the whole answer."""
        output, opening = self._admitted.request.output_so_far, self._admitted.opening
        if not output:
            return None
        piece = self._text.feed(output)
        if piece.is_stopped or output[-1] in opening.end_ids:
            return self._begin(self._end(Chunk(), FinishReason.STOP))
        if len(output) >= opening.max_tokens:
            return self._begin(self._end(Chunk(), FinishReason.LENGTH))
        return None

    def piece(self, verdict: Verdict, ended: Round) -> Chunk:
        """Commit what a verdict says, up to where the answer ends.

        Args:
            ended: the round that ended with the verdict.
        """
        piece = self._text.feed(verdict.tokens)
        num_tokens = len(piece.num_characters)
        self._committed.extend(verdict.tokens[:num_tokens])
        chunk = Chunk(
            text=piece.text,
            ids=verdict.tokens[:num_tokens],
            kinds=verdict.kinds[:num_tokens],
            rounds=(ended,) if self._admitted.request.include_rounds else (),
            num_characters=piece.num_characters,
        )
        finish = FinishReason.STOP if piece.is_stopped else verdict.finish
        return self._begin(chunk if finish is None else self._end(chunk, finish))

    def _begin(self, chunk: Chunk) -> Chunk:
        """The chunk, with what only the first one says."""
        if self._is_started:
            return chunk
        self._is_started = True
        admitted = self._admitted
        started = Started(
            request_id=admitted.request_id,
            model=admitted.model,
            num_prompt_tokens=len(admitted.prompt),
            num_cached_tokens=self.num_cached_tokens,
            drafter=self.drafter,
            verifier=self.verifier,
            rule=admitted.opening.rule,
            trace_id=self._record.trace_id,
            is_lossy=self.is_lossy,
        )
        return replace(chunk, started=started)

    def _end(self, chunk: Chunk, reason: FinishReason) -> Chunk:
        """The chunk, with what only the last one says."""
        self.is_finished = True
        num_output = self._committed.num_output
        finished = Finished(
            reason=reason,
            num_prompt_tokens=self._committed.num_prompt,
            num_output_tokens=num_output,
            statistics=self._record.finish(reason, self._committed.num_prompt, num_output),
        )
        return replace(chunk, text=chunk.text + self._text.finish(), finished=finished)

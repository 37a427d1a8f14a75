"""Which n-grams to look up, replayed on recorded text: `python -m benchmarks.lookup`.

A model answers the prompts greedily, once; the answers are kept in --answers. Then prompt lookup is replayed on them,
round by round, with each range of n-gram lengths: tokens committed per pass, and in brackets the share of drafted
tokens that held. The range is chosen on the prompts for development; --held-out has the figures to quote.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import prompts
from drafter.rounds import Rounds
from drafter.settings import DrafterSettings
from drafter.speculators.model import ModelSpeculator
from drafter.speculators.model_load import load
from drafter.speculators.ngram import NgramIndex
from drafter.stopping import Gamma
from pilotfish.messages import DraftRequest, Open, Rule, Sampling
from pilotfish.tokenizer import load_tokenizer

RANGES = ((1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (2, 5), (3, 3), (3, 4), (3, 5), (4, 4), (5, 5))


class Answer(NamedTuple):
    """A recorded text."""

    set: str
    prompt: list[int]
    tokens: list[int]


class Replay(NamedTuple):
    """What lookup would have done."""

    num_passes: int
    num_tokens: int
    num_drafted: int
    num_accepted: int


def record(model: str, dtype: str, num_tokens: int, chosen: Sequence[prompts.Prompt]) -> list[Answer]:
    """Greedy answers, all drafted together by the model speculator: at T = 0 that is the model's own text."""
    tokenizer = load_tokenizer(model)
    backend, facts, _ = load(DrafterSettings(model=model, dtype=dtype))
    rounds = Rounds(ModelSpeculator(backend, facts, num_kv_pages=2048), time.monotonic)
    texts = {
        index.to_bytes(16, "big"): tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}])
        for index, prompt in enumerate(chosen)
    }
    for session, text in texts.items():
        rounds.open(Open(session, 1, "", tuple(text), (), Sampling(0.0), 0, Rule.MATCH, frozenset(), num_tokens, 600.0))
        rounds.start(DraftRequest(session, 1, len(text), 0, 0, (), num_tokens, 0), 0.0, Gamma(num_tokens))
    found: dict[bytes, list[int]] = {session: [] for session in texts}
    while not rounds.is_idle:
        for _, part, _ in rounds.step():
            found[part.session] += part.draft.tokens
    answers = []
    for prompt, (session, text) in zip(chosen, texts.items(), strict=True):
        ends = [index for index, token in enumerate(found[session]) if token in tokenizer.end_ids]
        answers.append(Answer(prompt.set, text, found[session][: ends[0]] if ends else found[session]))
    return answers


def replay(answer: Answer, min_n: int, max_n: int, gamma: int) -> Replay:
    """The rounds of one answer: a draft is kept as far as it agrees, and one token more is committed."""
    index = NgramIndex(min_n, max_n)
    index.append(answer.prompt)
    done = num_passes = num_drafted = num_accepted = 0
    while done < len(answer.tokens):
        draft = index.continuation(gamma)
        kept = 0
        while kept < len(draft) and draft[kept : kept + 1] == answer.tokens[done + kept : done + kept + 1]:
            kept += 1
        index.append(answer.tokens[done : done + kept + 1])
        done += kept + 1
        num_passes, num_drafted, num_accepted = num_passes + 1, num_drafted + len(draft), num_accepted + kept
    return Replay(num_passes, len(answer.tokens), num_drafted, num_accepted)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--answers", type=Path, default=Path("answers.json"), help="where the recorded texts are kept")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--per-set", type=int, default=4)
    parser.add_argument("--gamma", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--held-out", action="store_true", help="prompts nobody tuned on")
    arguments = parser.parse_args()
    if not arguments.answers.exists():
        chosen = prompts.prompts(is_held_out=arguments.held_out, per_set=arguments.per_set)
        recorded = record(arguments.model, arguments.dtype, arguments.tokens, chosen)
        arguments.answers.write_text(json.dumps(recorded))
    answers = [Answer(*row) for row in json.loads(arguments.answers.read_text())]
    sets = list(dict.fromkeys(answer.set for answer in answers))
    for gamma in arguments.gamma:
        print(f"γ {gamma}" + "".join(f"{name:>14}" for name in sets) + f"{'all':>14}")
        for min_n, max_n in RANGES:
            row = f"{min_n}-{max_n}"
            for name in (*sets, None):
                runs = [replay(answer, min_n, max_n, gamma) for answer in answers if name in {answer.set, None}]
                passes, tokens, drafted, accepted = (sum(column) for column in zip(*runs, strict=True))
                row += f"{tokens / passes:8.2f} ({accepted / max(1, drafted):3.0%})"
            print(row)


if __name__ == "__main__":
    main()

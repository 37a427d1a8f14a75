"""A target whose law is known: the file format of table models, and their tokenizer. No torch.

The format is documented in docs/table-model.md; `pilotfish.engine.table` runs it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pilotfish.errors import ConfigurationError, InvalidArgument

MAX_VOCABULARY_SIZE = 64
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KEYS = {
    "name", "vocabulary", "end_ids", "context_length", "law", "random", "script", "pass_us", "description",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """A continuation given token by token, counted from the end of the prompt."""

    ids: tuple[int, ...]
    probability: float = 1.0  # of the scripted id; the rest is spread evenly over the other ids


@dataclass(frozen=True, slots=True)
class TableFile:
    """A fixed next-token law over the last one or two tokens, or a script."""

    name: str
    vocabulary: tuple[str, ...]
    rows: Mapping[tuple[int, ...], tuple[float, ...]]  # probabilities by the last 2, 1 or 0 tokens; longest wins
    script: Script | None = None
    end_ids: tuple[int, ...] = ()
    context_length: int = 4096  # tokens
    pass_us: tuple[tuple[int, float], ...] = field(default=())  # (positions, microseconds), ascending; (): no waiting

    @staticmethod
    def load(path: str | Path) -> TableFile:
        """Read and check a table model.

        Raises:
            ConfigurationError: no such file, not JSON, or a key that is unknown, missing or impossible.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"cannot read table model {str(path)!r}: {error.strerror}; check the path"
            ) from error
        except ValueError as error:
            raise ConfigurationError(f"table model {str(path)!r} is not JSON: {error}") from error
        try:
            return parse(content, default_name=path.stem)
        except ConfigurationError as error:
            raise ConfigurationError(f"table model {str(path)!r}: {error}") from error

    @property
    def vocabulary_size(self) -> int:
        return len(self.vocabulary)

    @property
    def vocabulary_hash(self) -> str:
        """Hash over the token strings in id order; equal exactly where the vocabularies are."""
        return vocabulary_hash(self.vocabulary)

    def probabilities(self, context: Sequence[int], num_prompt: int = 0) -> tuple[float, ...]:
        """The law of the token after `context`, of which `num_prompt` tokens are the prompt."""
        if self.script is not None:
            return self.scripted(len(context) - num_prompt)
        for order in (2, 1, 0):
            key = tuple(context[len(context) - order :])
            if len(key) == order and key in self.rows:
                return self.rows[key]
        raise ConfigurationError(f"no law after {list(context[-2:])}; give the law a '*' row")

    def scripted(self, index: int) -> tuple[float, ...]:
        """The law of the index-th token after the prompt; past the script's end, the end id or the script again."""
        assert self.script is not None
        ids = self.script.ids
        if index >= len(ids) and self.end_ids:
            token, probability = self.end_ids[0], 1.0
        else:
            token, probability = ids[index % len(ids)], self.script.probability
        rest = (1.0 - probability) / max(1, self.vocabulary_size - 1)
        return tuple(probability if i == token else rest for i in range(self.vocabulary_size))

    def pass_time_us(self, num_positions: int) -> float:
        """Simulated time of a pass: between its points straight, flat before the first, on by the last slope after."""
        points = self.pass_us
        if not points:
            return 0.0
        if num_positions <= points[0][0] or len(points) == 1:
            return points[0][1]
        (x0, y0), (x1, y1) = points[-2], points[-1]
        for before, after in pairwise(points):
            if num_positions <= after[0]:
                (x0, y0), (x1, y1) = before, after
                break
        return y0 + (y1 - y0) * (num_positions - x0) / (x1 - x0)

    # -- text --------------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of a text: at each point the longest token string that fits, else the bytes as byte tokens.

        Raises:
            InvalidArgument: nothing in the vocabulary fits.
        """
        by_string = {string: i for i, string in reversed(list(enumerate(self.vocabulary))) if string}
        longest = max(map(len, by_string), default=0)
        ids: list[int] = []
        start = 0
        while start < len(text):
            for length in range(min(longest, len(text) - start), 0, -1):
                token = by_string.get(text[start : start + length])
                if token is not None:
                    ids.append(token)
                    start += length
                    break
            else:
                ids += self._byte_ids(text[start], by_string)
                start += 1
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The text of the ids in UTF-8; byte tokens may leave a character unfinished at either end."""
        return b"".join(self.token_bytes(token) for token in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; U+FFFD where bytes make no character."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the text."""
        string = self.vocabulary[token]
        match = _BYTE_TOKEN.fullmatch(string)
        return bytes([int(match[1], 16)]) if match else string.encode()

    def _byte_ids(self, character: str, by_string: Mapping[str, int]) -> list[int]:
        try:
            return [by_string[f"<0x{byte:02X}>"] for byte in character.encode()]
        except KeyError as error:
            raise InvalidArgument.of(
                "text", character, f"the table model {self.name!r} knows only the tokens {list(self.vocabulary)}"
            ) from error


def vocabulary_hash(strings: Iterable[str]) -> str:
    """Hash over token strings in id order."""
    digest = hashlib.sha256()
    for string in strings:
        encoded = string.encode("utf-8", errors="surrogatepass")
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


def parse(content: Any, default_name: str = "table") -> TableFile:
    """Check what was read from JSON.

    Raises:
        ConfigurationError: naming the key and the remedy.
    """
    if not isinstance(content, dict):
        raise ConfigurationError(f"expected an object, found {type(content).__name__}")
    if unknown := sorted(set(content) - _KEYS):
        raise ConfigurationError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    vocabulary = _vocabulary(content.get("vocabulary"))
    sources = [key for key in ("law", "random", "script") if key in content]
    if len(sources) != 1:
        raise ConfigurationError(f"give exactly one of 'law', 'random' and 'script', found {sources or 'none'}")
    size = len(vocabulary)
    script = _script(content["script"], size) if "script" in content else None
    rows: dict[tuple[int, ...], tuple[float, ...]] = {}
    if "law" in content:
        rows = _law(content["law"], size)
    elif "random" in content:
        rows = _random_law(content["random"], size)
    return TableFile(
        name=_of_type(content, "name", str, default_name),
        vocabulary=vocabulary,
        rows=rows,
        script=script,
        end_ids=_ids(content.get("end_ids", []), "end_ids", size),
        context_length=_count(content, "context_length", 4096, at_least=2),
        pass_us=_pass_us(content.get("pass_us", [])),
    )


def _vocabulary(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(string, str) for string in value):
        raise ConfigurationError("'vocabulary' must be a list of token strings, in id order")
    if not 1 <= len(value) <= MAX_VOCABULARY_SIZE:
        raise ConfigurationError(f"'vocabulary' must have 1 to {MAX_VOCABULARY_SIZE} tokens, has {len(value)}")
    if len(set(value)) < len(value):
        twice = next(string for string in value if value.count(string) > 1)
        raise ConfigurationError(f"'vocabulary' has the token {twice!r} twice; the strings must differ")
    return tuple(value)


def _law(value: Any, size: int) -> dict[tuple[int, ...], tuple[float, ...]]:
    if not isinstance(value, dict) or not value:
        raise ConfigurationError("'law' must be an object: a row of weights by '*', 'id' or 'id,id'")
    rows = {_law_key(key, size): _row(row, f"law[{key!r}]", size) for key, row in value.items()}
    if () not in rows:
        raise ConfigurationError("'law' has no '*' row, which holds where no other does (as after an empty context)")
    return rows


def _law_key(key: str, size: int) -> tuple[int, ...]:
    if key == "*":
        return ()
    try:
        ids = tuple(int(part) for part in key.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"law[{key!r}]: the key must be '*', 'id' or 'id,id' (the last token comes last)"
        ) from error
    if len(ids) > 2:
        raise ConfigurationError(f"law[{key!r}]: a law looks at the last one or two tokens, not {len(ids)}")
    return _ids(list(ids), f"law[{key!r}]", size)


def _row(value: Any, where: str, size: int) -> tuple[float, ...]:
    """Probabilities from weights: a list of one per id, or an object of those that are not 0."""
    if isinstance(value, dict):
        weights: Any = [0.0] * size
        for key, weight in value.items():
            if not key.isdigit() or int(key) >= size:
                raise ConfigurationError(f"{where}: {key!r} is no id; ids are 0 to {size - 1}")
            weights[int(key)] = weight
    else:
        weights = value
    if not isinstance(weights, list) or len(weights) != size:
        raise ConfigurationError(f"{where} must be {size} weights, one per token, or an object {{id: weight}}")
    for i, weight in enumerate(weights):
        if not _is_number(weight) or not math.isfinite(weight) or weight < 0:
            raise ConfigurationError(f"{where}: the weight of id {i} is {weight!r}; it must be finite and not negative")
    total = math.fsum(weights)
    if not 0 < total < math.inf:
        raise ConfigurationError(f"{where}: the weights sum to {total}; at least one must be positive")
    return tuple(weight / total for weight in weights)


def _random_law(value: Any, size: int) -> dict[tuple[int, ...], tuple[float, ...]]:
    """A law drawn once from a seed: softmax of `sharpness` times standard normal numbers for every context."""
    if not isinstance(value, dict) or not set(value) <= {"seed", "order", "sharpness"}:
        raise ConfigurationError("'random' must be an object with 'seed', 'order' (1 or 2) and 'sharpness'")
    seed, order = _count(value, "seed", 0), _count(value, "order", 1, at_least=1)
    sharpness = value.get("sharpness", 1.0)
    if order > 2:
        raise ConfigurationError(f"'order' must be 1 or 2, is {order}")
    if not _is_number(sharpness) or not 0 <= sharpness <= 100:
        raise ConfigurationError(f"'sharpness' must be from 0 (uniform) to 100, is {sharpness!r}")
    source = random.Random(seed)
    contexts: list[tuple[int, ...]] = [(), *((i,) for i in range(size))]
    if order == 2:
        contexts += [(i, j) for i in range(size) for j in range(size)]
    return {
        context: _row([math.exp(sharpness * source.gauss(0.0, 1.0)) for _ in range(size)], "random", size)
        for context in contexts
    }


def _script(value: Any, size: int) -> Script:
    if isinstance(value, list):
        value = {"ids": value}
    if not isinstance(value, dict) or not set(value) <= {"ids", "probability"} or not value.get("ids"):
        raise ConfigurationError("'script' must be a list of ids, or an object with 'ids' and 'probability'")
    probability = value.get("probability", 1.0)
    if not _is_number(probability) or not 0 < probability <= 1:
        raise ConfigurationError(f"script: 'probability' must be in (0, 1], is {probability!r}")
    if size == 1 and probability < 1:
        raise ConfigurationError("script: with one token in the vocabulary its probability is 1")
    return Script(_ids(value["ids"], "script", size), float(probability))


def _pass_us(value: Any) -> tuple[tuple[int, float], ...]:
    points = [tuple(point) for point in value if isinstance(point, list)] if isinstance(value, list) else []
    is_sound = (
        isinstance(value, list)
        and len(points) == len(value)
        and all(len(point) == 2 and all(_is_number(x) and 0 <= x < math.inf for x in point) for point in points)
        and all(before[0] < after[0] for before, after in pairwise(points))
    )
    if not is_sound:
        raise ConfigurationError("'pass_us' must be a list of [positions, microseconds], positions ascending")
    return tuple((int(positions), float(us)) for positions, us in points)


def _ids(value: Any, where: str, size: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{where} must be a list of ids")
    for token in value:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
            raise ConfigurationError(f"{where}: {token!r} is no id; ids are 0 to {size - 1}")
    return tuple(value)


def _count(content: Mapping[str, Any], key: str, default: int, at_least: int = 0) -> int:
    value = content.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigurationError(f"{key!r} must be a whole number from {at_least} up, is {value!r}")
    return value


def _of_type(content: Mapping[str, Any], key: str, kind: type[str], default: str) -> str:
    value = content.get(key, default)
    if not isinstance(value, kind):
        raise ConfigurationError(f"{key!r} must be a {kind.__name__}, is {value!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

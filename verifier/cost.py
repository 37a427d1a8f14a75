"""The cost curve: how long a pass over n positions takes, measured at start and kept up to date from every pass.

The curve is piecewise linear over fixed knots in the number of positions, so a flat stretch, a step or a late
flattening (a mixture of experts) survives. Context and the number of sequences add to it linearly. Each pass corrects
the whole curve in proportion, and the knots around its own number of positions: a Kalman filter whose state drifts
slowly and whose surprises are clipped, so that one pass disturbed by the machine does not bend the curve. A curve that
falls would make positions free: after every step it is brought to the nearest one that does not.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NOISE = 0.05  # of a pass, relative: what repeats of one shape differ by
DRIFT = 0.002  # of one knot from pass to pass, relative
COMMON_DRIFT = 0.01  # of the whole curve from pass to pass, relative: the machine became slower or faster
CLIP = 3.0  # surprises beyond so many standard deviations count as so many
UNKNOWN = 0.5  # from a knot to the next beyond all passes that were measured, relative: how far off that may be
MIN_S = 1e-6  # no pass is shorter
FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True)
class PassShape:
    """What a pass's length depends on."""

    num_positions: int
    num_sequences: int = 1
    num_context_tokens: int = 0  # tokens of KV that its sequences attend to, summed

    @property
    def is_empty(self) -> bool:
        return self.num_positions < 1


def knots_up_to(max_positions: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, … : two knots an octave, the last at `max_positions`."""
    knots = [1]
    step = 1
    while knots[-1] < max_positions:
        knots += [2 * step, 3 * step]
        step *= 2
    return tuple(sorted({knot for knot in knots if knot < max_positions} | {max_positions}))


class CostCurve:
    """T(positions, sequences, context) in seconds."""

    def __init__(self, knots: Sequence[int]) -> None:
        self.knots = tuple(knots)
        self._at: Array = np.array(knots, dtype=np.float64)
        size = len(self.knots) + 2  # a value a knot, seconds a further sequence, seconds a thousand context tokens
        self._state: Array = np.zeros(size)
        self._covariance: Array = np.zeros((size, size))
        self._num_observed = 0
        self._last_shape: PassShape | None = None
        self._has_dropped = False  # the last pass

    # -- learning ----------------------------------------------------------------------------------------------------

    def fit(self, shapes: Sequence[PassShape], seconds: Sequence[float]) -> None:
        """Start from passes over a grid of shapes: least squares, pulled towards a straight line where none was."""
        rows = np.array([self._features(shape) for shape in shapes])
        target = np.array(seconds)
        weight = 1.0 / target  # relative errors count alike
        scale = float(np.median(target))
        matrix = np.vstack([rows * weight[:, None], self._bends() * (1e-3 / scale)])
        wanted = np.concatenate([np.ones(len(target)), np.zeros(len(matrix) - len(target))])
        self._state = _least_squares(matrix, wanted, size=len(self.knots))
        measured = ((rows * weight[:, None]) ** 2).sum(0)[:-2]
        self._rise(measured + 1e-9 * measured.max())
        self._covariance = np.eye(len(self._state)) * (DRIFT * 4 * scale) ** 2
        self._covariance += NOISE**2 * np.outer(self._state, self._state)
        beyond = int(np.flatnonzero(measured)[-1]) + 1
        for knot in range(beyond, len(self.knots)):
            self._covariance[knot:-2, knot:-2] += (UNKNOWN * self._state[knot]) ** 2  # and all further ones with it
        self._num_observed = len(target)

    def observe(self, shape: PassShape, seconds: float) -> None:
        """Take in one pass; not the first after a change of shape where it seems to pay for caches and compilation."""
        is_repeat, self._last_shape = shape.num_positions == getattr(self._last_shape, "num_positions", None), shape
        if shape.is_empty or not math.isfinite(seconds) or seconds <= 0.0:
            return
        if not self._num_observed:
            self.fit([shape], [seconds])
            return
        is_first = not is_repeat and self._num_observed > len(self.knots) and seconds > 2.0 * self.seconds(shape)
        self._has_dropped = is_first and not self._has_dropped  # where two in a row are slow, passes became slower
        if self._has_dropped:
            return
        features = self._features(shape)
        predicted = float(features @ self._state)
        scale = max(abs(predicted), seconds, 1e-9)
        self._covariance += COMMON_DRIFT**2 * np.outer(self._state, self._state)
        self._covariance.ravel()[:: len(self._state) + 1] += (DRIFT * scale) ** 2  # its diagonal
        spread = self._covariance @ features
        variance = float(features @ spread) + (NOISE * scale) ** 2
        limit = CLIP * math.sqrt(variance)
        surprise = min(max(seconds - predicted, -limit), limit)
        believed = surprise / (seconds - predicted) if seconds != predicted else 1.0  # what was clipped says less
        self._state += spread / variance * surprise
        self._covariance -= np.outer(spread, spread) * (believed / variance)
        self._rise(1.0 / np.maximum(np.diag(self._covariance)[:-2], 1e-18))
        self._num_observed += 1

    def _rise(self, weights: Array) -> None:
        """Bring the state to the nearest whose curve never falls and whose further terms are not negative.

        Args:
            weights: how sure each knot is, relative to the others.
        """
        self._state[:-2] = np.maximum(_non_decreasing(self._state[:-2], weights), MIN_S)
        self._state[-2:] = np.maximum(self._state[-2:], 0.0)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        return self._num_observed > 0

    def seconds(self, shape: PassShape) -> float:
        """Predicted length of a pass of this shape."""
        return float(self._curve()(np.array([float(shape.num_positions)]))[0]) + self._extra(shape)

    def at(self, num_sequences: int, num_context_tokens: int) -> Callable[[Array], Array]:
        """T as a function of positions alone, for a load of so many sequences with so much context."""
        curve, extra = self._curve(), self._extra(PassShape(1, num_sequences, num_context_tokens))
        return lambda positions: curve(positions) + extra

    def length(self, num_context_tokens: float) -> Callable[[Array, Array], Array]:
        """T as a function of positions and of sequences, for sequences with so much context each."""
        curve, each_s = self._curve(), self.context_s * num_context_tokens / 1000
        return lambda positions, sequences: (
            curve(positions) + self.sequence_s * np.maximum(sequences - 1.0, 0.0) + each_s * sequences
        )

    def saturation(self, shape: PassShape) -> float:
        """(dT/dn)·n/T in [0, 1]: the share of a pass's length that its positions are to blame for."""
        if shape.is_empty or not self.is_known:
            return 0.0
        n = float(shape.num_positions)
        width = max(1.0, 0.25 * n)
        low, here, high = self._curve()(np.array([max(1.0, n - width), n, n + width]))
        slope = float(high - low) / (n + width - max(1.0, n - width))
        return min(1.0, max(0.0, slope * n / (float(here) + self._extra(shape))))

    @property
    def ridge(self) -> int | None:
        """First number of positions whose pass is half their own doing; None where no measured pass is."""
        last = self.knots[-1]
        grid = sorted({*self.knots, *(round(last ** (i / 64)) for i in range(65))})
        return next((n for n in grid if self.saturation(PassShape(n)) >= 0.5), None)

    @property
    def sequence_s(self) -> float:
        """What each further sequence of a pass adds."""
        return float(self._state[-2])

    @property
    def context_s(self) -> float:
        """What a thousand tokens of context add."""
        return float(self._state[-1])

    def points(self) -> list[tuple[int, float]]:
        """(positions, seconds) at the knots, for one sequence without context."""
        return [(knot, float(value)) for knot, value in zip(self.knots, self._state, strict=False)]

    # -- keeping -----------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the curve to a file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        content = {
            "format": FORMAT_VERSION,
            "knots": self.knots,
            "state": self._state.tolist(),
            "covariance": self._covariance.tolist(),
            "observed": self._num_observed,
        }
        temporary.write_text(json.dumps(content))
        temporary.replace(path)

    @staticmethod
    def load(path: Path, knots: Sequence[int]) -> CostCurve | None:
        """The curve in a file; None where none can be read, or one over other knots or of another format."""
        curve = CostCurve(knots)
        try:
            content = json.loads(path.read_text())
            if (content["format"], tuple(content["knots"])) != (FORMAT_VERSION, tuple(knots)):
                return None
            state = np.array(content["state"], dtype=float).reshape(curve._state.shape)
            covariance = np.array(content["covariance"], dtype=float).reshape(curve._covariance.shape)
            curve._num_observed = int(content["observed"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not np.isfinite(state).all() or not np.isfinite(covariance).all():
            return None
        curve._state, curve._covariance = state, covariance
        return curve

    # -- inside ------------------------------------------------------------------------------------------------------

    def _features(self, shape: PassShape) -> Array:
        """Weights of the knots around the positions, and the two linear terms."""
        features = np.zeros(len(self._state))
        n = min(max(shape.num_positions, self.knots[0]), self.knots[-1])
        right = min(bisect_right(self.knots, n), len(self.knots) - 1)
        if right:
            left_n, right_n = self.knots[right - 1], self.knots[right]
            share = (n - left_n) / (right_n - left_n)
            features[right - 1], features[right] = 1.0 - share, share
        else:
            features[0] = 1.0
        features[-2] = max(0, shape.num_sequences - 1)
        features[-1] = shape.num_context_tokens / 1000
        return features

    def _bends(self) -> Array:
        """Rows that are zero where neighbouring slopes agree."""
        rows = []
        for i in range(1, len(self.knots) - 1):
            row = np.zeros(len(self._state))
            before, after = self.knots[i] - self.knots[i - 1], self.knots[i + 1] - self.knots[i]
            row[i - 1], row[i], row[i + 1] = 1.0 / before, -1.0 / before - 1.0 / after, 1.0 / after
            rows.append(row * self.knots[i])
        return np.array(rows) if rows else np.zeros((0, len(self._state)))

    def _curve(self) -> Callable[[Array], Array]:
        knots, values = self._at, self._state[:-2].copy()
        slope = float(values[-1] - values[-2]) / float(knots[-1] - knots[-2]) if len(knots) > 1 else 0.0

        def curve(positions: Array) -> Array:
            beyond = np.maximum(positions - knots[-1], 0.0)
            return np.asarray(np.interp(positions, knots, values) + slope * beyond, dtype=np.float64)

        return curve

    def _extra(self, shape: PassShape) -> float:
        sequences, context = self._state[-2:]
        return float(sequences * max(0, shape.num_sequences - 1) + context * shape.num_context_tokens / 1000)


def _least_squares(matrix: Array, wanted: Array, size: int) -> Array:
    """The solution whose terms from `size` on are not negative; those that would be are left out."""
    kept = list(range(matrix.shape[1]))
    while True:
        found = np.zeros(matrix.shape[1])
        found[kept] = np.linalg.lstsq(matrix[:, kept], wanted, rcond=None)[0]
        negative = [term for term in kept if term >= size and found[term] < 0.0]
        if not negative:
            return found
        kept = [term for term in kept if term not in negative]


def _non_decreasing(values: Array, weights: Array) -> Array:
    """The non-decreasing sequence nearest in weighted squares: pool adjacent violators."""
    given_values = values.tolist()
    if all(before <= after for before, after in pairwise(given_values)):
        return values
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, given in zip(given_values, weights.tolist(), strict=True):
        mean, weight, count = value, given, 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, number = blocks.pop()
            mean, weight = (before * heavy + mean * weight) / (heavy + weight), heavy + weight
            count += number
        blocks.append((mean, weight, count))
    return np.array([mean for mean, _, count in blocks for _ in range(count)])

"""The estimator learns what drafts do, by depth, quickly in a session and surely for a kind."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from coordinator.estimator import Estimator, Evidence, Kind, Phase, Weights, temperature_band

KIND = Kind.of("small", "model", "chat", 0.8)


def simulate(alpha: float, gamma: int, chance: random.Random) -> Evidence:
    accepted = 0
    while accepted < gamma and chance.random() < alpha:
        accepted += 1
    return Evidence.of_round(gamma, gamma, accepted)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
def test_survival_is_learned(alpha: float) -> None:
    """After 400 rounds at a steady rate the kind's estimate of the first depth is within .05 of it.

    Fixed seed; at 400 remembered trials five standard errors are at most .125, at this seed it holds.
    """
    chance = random.Random(11)
    estimator = Estimator()
    session = estimator.session(KIND)
    for _ in range(400):
        session.observe(simulate(alpha, 4, chance))
    assert estimator.rates(KIND, 1)[0] == pytest.approx(alpha, abs=0.05)
    survival = session.survival(8)
    assert len(survival) == 8
    assert all(a >= b for a, b in pairwise(survival))


def test_session_follows_a_change_within_a_few_rounds() -> None:
    """After 50 good rounds and 6 bad ones the session's first depth is under .5, though its kind's is not."""
    estimator = Estimator()
    session = estimator.session(KIND)
    for _ in range(50):
        session.observe(Evidence.of_round(4, 4, 4))
    for _ in range(6):
        session.observe(Evidence.of_round(4, 4, 0))
    assert session.survival(1)[0] < 0.5
    assert estimator.rates(KIND, 1)[0] > 0.8


def test_new_session_starts_from_its_kind() -> None:
    """A session that has seen nothing expects what its kind does; another kind knows nothing of it."""
    estimator = Estimator()
    first = estimator.session(KIND)
    for _ in range(200):
        first.observe(Evidence.of_round(4, 4, 0))
    assert estimator.session(KIND).survival(1)[0] < 0.1
    assert estimator.session(Kind.of("small", "model", "code", 0.8)).survival(1)[0] > 0.5


def test_bad_spell_fades_without_drafts() -> None:
    """A session that ran free for 400 tokens after bad rounds expects about what its kind does again."""
    estimator = Estimator()
    good = estimator.session(KIND)
    for _ in range(300):
        good.observe(Evidence.of_round(4, 4, 4))
    session = estimator.session(KIND)
    for _ in range(10):
        session.observe(Evidence.of_round(4, 4, 0))
    low = session.survival(1)[0]
    session.fade(400)
    assert low < 0.35
    assert session.survival(1)[0] > 0.6


def test_nodes_that_never_came_count_as_lost_unless_time_cut_them() -> None:
    """No match is evidence against asking; a deadline is no evidence."""
    assert Evidence.of_round(4, 2, 2).num_tried == (1.0, 1.0, 1.0)
    assert Evidence.of_round(4, 0, 0).num_kept == (0.0,)
    assert Evidence.of_round(4, 2, 2, is_cut_by_time=True).num_tried == (1.0, 1.0)
    assert Evidence.of_round(4, 4, 4).num_tried == (1.0,) * 4


def test_priors_persist(tmp_path: Path) -> None:
    """What was saved is known after loading, less surely; garbage is no prior and no error."""
    estimator = Estimator()
    session = estimator.session(KIND)
    for _ in range(100):
        session.observe(Evidence.of_round(2, 2, 0))
        session.calibrate((2.0, 2.0), 0)
        session.answered(is_given=False)
    path = tmp_path / "priors.json"
    estimator.save(path)
    other = Estimator()
    assert other.load(path)
    assert other.rates(KIND, 1)[0] == pytest.approx(estimator.rates(KIND, 1)[0], abs=0.03)
    assert other.session(KIND).calibration == session.calibration
    assert other.session(KIND).offered < 0.1
    path.write_text("[]")
    assert not other.load(path)


def test_how_often_a_draft_comes_is_known_of_the_kind_and_soon_of_the_session() -> None:
    """A session begins with what its kind found, and a few answers of its own outweigh that."""
    estimator = Estimator()
    assert estimator.session(KIND).offered == 1.0
    for number in range(100):
        estimator.session(KIND).answered(is_given=number % 5 == 0)
    one, other = estimator.session(KIND), estimator.session(KIND)
    assert one.offered == pytest.approx(0.2, abs=0.07)
    for _ in range(4):
        one.answered(is_given=True)
        other.answered(is_given=False)
    assert one.offered > 0.75
    assert other.offered < 0.1


def test_temperature_bands() -> None:
    """Greedy requests are counted apart from all others."""
    assert temperature_band(0.0) == 0
    assert temperature_band(0.1) != 0
    assert temperature_band(0.3) != temperature_band(1.0)


def test_phases_are_learned_apart() -> None:
    """What holds while a model reasons says little of its answer, of this session's and the next one's."""
    estimator = Estimator()
    session = estimator.session(KIND)
    for _ in range(40):
        session.enter(Phase.REASONING)
        session.observe(Evidence.of_round(4, 4, 4))
        session.enter(Phase.ANSWER)
        session.observe(Evidence.of_round(4, 4, 0))
    fresh = estimator.session(KIND)
    assert fresh.survival(1)[0] < 0.2
    fresh.enter(Phase.REASONING)
    assert fresh.survival(1)[0] > 0.8
    assert estimator.session(KIND._replace(phase=Phase.REASONING)).survival(1)[0] > 0.8


def test_a_phase_that_is_left_out_changes_nothing() -> None:
    """With the ingredient switched off a session is of one kind throughout."""
    session = Estimator(Weights(has_phase=False)).session(KIND)
    for _ in range(40):
        session.observe(Evidence.of_round(4, 4, 4))
    before = session.survival(4)
    session.enter(Phase.REASONING)
    assert session.survival(4) == before

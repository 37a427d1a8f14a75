"""Who asks, and what that changes: caps, objectives and targets of tenants."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.settings import CoordinatorSettings
from coordinator.tenants import Tenants, Terms
from pilotfish import AsyncClient, Speculation
from pilotfish.client import Completion
from pilotfish.errors import ConfigurationError, InvalidArgument
from pilotfish.messages import Objective, Targets
from pilotfish.telemetry import Metric, Telemetry
from tests.coordinator.conftest import Stack, Start, ids
from tests.coordinator.fakes import scripted

DEFAULT = Terms(16, Objective.BALANCED, Targets(token_s=0.05))
NEVER_S, ALWAYS_S = 1e-6, 1e6  # targets that no answer keeps, and that every one does


async def ask(stack: Stack, tenant: str | None, **options: Any) -> Completion:
    """One answer to a tenant."""
    async with AsyncClient(stack.server.address, attempts=1, tenant=tenant) as client:
        return await client.complete("abc", **({"temperature": 0.0, "max_tokens": 20} | options))


def test_a_tenant_has_what_was_written_and_else_the_coordinators_own() -> None:
    """Every key changes its own term; unknown names and callers without one have the coordinator's terms."""
    entries = ("acme max_gamma=4 first_token_ms=500", " bulk objective=throughput  token_ms=80.5 ", "free max_gamma=0")
    tenants = Tenants.parse(entries, DEFAULT)
    assert tenants.terms("acme") == Terms(4, Objective.BALANCED, Targets(0.5, 0.05), "tenant acme")
    assert tenants.terms("bulk") == Terms(16, Objective.THROUGHPUT, Targets(None, 0.0805), "tenant bulk")
    assert tenants.terms("free").max_gamma == 0
    assert tenants.terms("") == tenants.terms("stranger") == DEFAULT


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        (("max_gamma=4",), "'max_gamma=4' has no name; write NAME max_gamma="),
        (("acme gama=4",), "tenant acme has 'gama=4'; write one of max_gamma="),
        (("acme 4",), "tenant acme has '4'"),
        (("acme max_gamma=-1",), "'max_gamma=-1': write a whole number"),
        (("acme max_gamma=17",), "max_gamma=17, over the coordinator's max_gamma of 16"),
        (("acme objective=speed",), "'objective=speed': write latency, balanced, throughput"),
        (("acme token_ms=0",), "'token_ms=0': write milliseconds, over 0"),
        (("acme token_ms=nan",), "write milliseconds"),
        (("acme first_token_ms=inf",), "write milliseconds"),
        (("acme max_gamma=4", "acme token_ms=9"), "acme is there twice"),
    ],
)
def test_a_tenant_that_means_nothing_is_refused_at_start(entries: tuple[str, ...], match: str) -> None:
    """A key, value or name that cannot be, and a cap over the coordinator's own, is named with what to write."""
    with pytest.raises(ValueError, match=match):
        Tenants.parse(entries, DEFAULT)
    with pytest.raises(ConfigurationError, match=match):
        CoordinatorSettings.load(["--tenants", ",".join(entries)], {})


async def test_the_cap_that_refuses_is_named(start: Start) -> None:
    """γ and a most of γ over a tenant's cap are refused with whose cap it is; under it, and to others, they are not."""
    # seen in vllm#6993, sglang#30263, llama.cpp#23052
    stack = await start.stack(tenants=("acme max_gamma=4",), max_gamma=8)
    for speculation in (Speculation(gamma=5), Speculation(max_gamma=5)):
        with pytest.raises(InvalidArgument, match="is 5: the cap of tenant acme is 4"):
            await ask(stack, "acme", speculation=speculation)
        await ask(stack, "other", speculation=speculation)
        await ask(stack, None, speculation=speculation)
    with pytest.raises(InvalidArgument, match="is 9: the cap of this coordinator is 8"):
        await ask(stack, "other", speculation=Speculation(gamma=9))
    answer = await ask(stack, "acme", speculation=Speculation(gamma=4), include_rounds=True)
    assert {entry.gamma for entry in answer.rounds[:3]} == {4}


async def test_a_fixed_gamma_stays_under_a_tenants_cap(start: Start) -> None:
    """What the coordinator drafts by its own setting is cut to the tenant's cap; a cap of 0 is plain decoding."""
    stack = await start.stack(tenants=("acme max_gamma=2", "none max_gamma=0"), gamma="1:5")
    capped, plain, other = [await ask(stack, name, include_rounds=True) for name in ("acme", "none", None)]
    assert capped.ids == plain.ids == other.ids
    assert {entry.gamma for entry in capped.rounds[:3]} == {2}
    assert {entry.gamma for entry in other.rounds[:3]} == {5}
    assert {(entry.gamma, entry.reason) for entry in plain.rounds} == {(0, "limit")}


async def test_targets_are_a_tenants_or_a_requests_own_and_told_when_missed(start: Start) -> None:
    """Statistics and counters say of every target in force whether it was met; a request's own comes first."""
    telemetry = Telemetry("coordinator")
    tenants = (f"acme token_ms={NEVER_S * 1e3:f} first_token_ms={ALWAYS_S * 1e3:.0f}",)
    stack = await start.stack(scripted(ids("hello ")), tenants=tenants, gamma=0, telemetry=telemetry)
    assert (await ask(stack, None)).statistics.targets_met == {}
    assert (await ask(stack, "acme")).statistics.targets_met == {"first_token": True, "token": False}
    kept = await ask(stack, "acme", targets=Targets(token_s=ALWAYS_S))
    assert kept.statistics.targets_met == {"first_token": True, "token": True}
    missed = await ask(stack, "acme", targets=Targets(NEVER_S))
    assert missed.statistics.targets_met == {"first_token": False, "token": False}
    assert (telemetry.value(Metric.TARGETS, "token"), telemetry.value(Metric.TARGET_MISSED, "token")) == (3, 2)
    assert telemetry.value(Metric.TARGET_MISSED, "first_token") == 1


async def test_a_tenants_text_is_told_apart_at_the_peers(start: Start) -> None:
    """Sessions carry their tenant's name, so that nothing learned from its text serves another."""
    verifier, drafter = await start.verifier(), await start.drafter()
    stack = await start.coordinator([verifier], [drafter], gamma=2)
    for tenant in ("acme", None):
        await ask(stack, tenant)
    assert [opened.tenant for opened in verifier.opens] == ["acme", ""]
    assert [opened.tenant for opened in drafter.opens] == ["acme", ""]


@pytest.mark.parametrize("tenant", ["", " ", "ä", "a\nb"])
def test_a_tenant_that_no_header_can_name_is_refused_by_the_client(tenant: str) -> None:
    """A name that cannot be sent is refused before a connection is made."""
    with pytest.raises(InvalidArgument, match="tenant"):
        AsyncClient("localhost:1", tenant=tenant)

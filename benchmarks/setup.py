"""What the arms of a run share: models, settings, services, and the reading of the commands' lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pilotfish.errors import ConfigurationError

if TYPE_CHECKING:
    from benchmarks.prompts import Prompt
    from benchmarks.records import Arm
    from benchmarks.run import Encode
    from pilotfish.cli.local import Local
    from pilotfish.gammas import GammaTable


@dataclass(frozen=True, slots=True)
class Setup:
    """Models and settings that all arms of a run share."""

    model: str
    drafter: str
    dtype: str
    threads: int
    gammas: Sequence[int]

    @property
    def local(self) -> Local:
        """The services, on any free port."""
        from pilotfish.cli.local import Local

        return Local(self.model, self.drafter, dtype=self.dtype, port=0, threads=self.threads)

    @property
    def speculators(self) -> tuple[str, ...]:
        return ("ngram",) if self.local.drafter_model is None else ("ngram", "model")

    @contextmanager
    def arms(self, *, has_library: bool, has_one_process: bool) -> Iterator[list[Arm]]:
        """Start the services and load what else is to be compared; all is gone after the block."""
        from benchmarks import services
        from pilotfish.cli.up import running, unseen
        from pilotfish.client import Client

        with running(self.local, unseen) as fleet, Client(fleet.address("coordinator")) as client:
            arms: list[Arm] = [services.plain(client)]
            for speculator in self.speculators:
                arms.append(services.by_price(client, speculator))
                arms += [services.speculative(client, speculator, gamma) for gamma in self.gammas if gamma]
            if has_one_process:
                arms += self._one_process()
            if has_library:
                arms += self._library()
            yield arms

    def _one_process(self) -> list[Arm]:
        from benchmarks.oneprocess import LocalEngine, OneProcess
        from drafter.settings import DrafterSettings
        from drafter.speculators.ngram import NgramSpeculator
        from verifier.settings import VerifierSettings

        local = LocalEngine(VerifierSettings(model=self.model, dtype=self.dtype, threads=self.threads))
        speculators: dict[str, Any] = {"ngram": NgramSpeculator.from_settings(DrafterSettings())}
        if self.local.drafter_model is not None:
            from drafter.speculators.model import ModelSpeculator

            settings = DrafterSettings(model=self.local.drafter_model, dtype=self.dtype, threads=self.threads)
            speculators["model"] = ModelSpeculator.from_settings(settings)
        arms: list[Arm] = [OneProcess("one process plain", local)]
        for name, speculator in speculators.items():
            arms += [OneProcess(f"one process {name} γ={n}", local, speculator, n) for n in self.gammas if n]
        return arms

    def _library(self) -> list[Arm]:
        from benchmarks import baselines
        from pilotfish import models

        if self.dtype not in baselines.DTYPES:
            raise ConfigurationError(f"the library has no {self.dtype} here; give --no-library, or another --dtype")
        target = baselines.load(models.provide(self.model), self.dtype, self.threads)
        arms: list[Arm] = [baselines.plain(target)]
        arms += [baselines.lookup(target, gamma) for gamma in self.gammas if gamma]
        if self.local.drafter_model is not None:
            path = models.provide(self.local.drafter_model)
            drafters = [(baselines.load(path, self.dtype, self.threads), gamma) for gamma in self.gammas if gamma]
            arms += [baselines.assisted(target, drafter, gamma) for drafter, gamma in drafters]
        return arms


def encoder(model: str) -> Encode:
    """Ids of a prompt as a user's message in the model's chat template."""
    from pilotfish.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)

    def encode(prompt: Prompt) -> tuple[int, ...]:
        return tuple(tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}]))

    return encode


def names(text: str) -> list[str]:
    """A list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def draft_lengths(text: str) -> tuple[list[int], GammaTable | None]:
    """Draft lengths, and the table by requests at a time that the rows among them make."""
    from pilotfish.cli.local import read_gammas

    rows = [name for name in names(text) if ":" in name]
    fixed = numbers(",".join(name for name in names(text) if ":" not in name), int)
    return fixed, read_gammas("--gammas", ",".join(rows)) if rows else None


def numbers(text: str, kind: Callable[[str], Any]) -> list[Any]:
    """A list of numbers with commas.

    Raises:
        ConfigurationError: something in it is none.
    """
    try:
        return [kind(word) for word in names(text)]
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is no list of numbers ({error}); write them with commas") from error


def teller(total: int) -> Callable[[str], None]:
    """Progress on stderr: which answer of how many."""
    from pilotfish.cli.terminal import Terminal

    terminal = Terminal.of_process()
    count = 0

    def tell(text: str) -> None:
        nonlocal count
        count += not text.startswith("warm up")
        terminal.say(f"[{count}/{total}] {text}", style="dim")

    return tell

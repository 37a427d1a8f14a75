"""The commands as a person types them: what they print, where, and their exit status."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pilotfish.cli.application import run
from tests.cli.conftest import SCRIPT

TEXT = SCRIPT[:-1]  # the end id has no text of its own in an answer


class Result(NamedTuple):
    status: int
    out: str
    error: str


class Shell:
    """Runs commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._patch = patch

    def __call__(self, *arguments: str, stdin: str = "") -> Result:
        self._patch.setattr(sys, "stdin", io.StringIO(stdin))
        status = run(arguments)
        return Result(status, *self._capture.readouterr())


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell with no terminal."""
    return Shell(capsys, monkeypatch)


# ---- generate ----------------------------------------------------------------------------------------------------


def test_a_pipe_gets_the_text_alone(shell: Shell, coordinator: str) -> None:
    """Without a terminal stdout has the answer and nothing else; stderr has one line about it."""
    result = shell("generate", "ABC", "--host", coordinator, "-t", "0")
    assert (result.status, result.out) == (0, TEXT + "\n")
    assert "draft tokens held" in result.error
    assert "ended by stop" in result.error


def test_marks_tell_drafted_tokens_apart(shell: Shell, coordinator: str) -> None:
    """With --marks accepted tokens stand in brackets, and without the brackets it is the same text."""
    result = shell("generate", "ABC", "--host", coordinator, "-t", "0", "--marks", "-q")
    assert "⟦" in result.out
    assert result.out.translate(str.maketrans("", "", "⟦⟧⟨⟩«»")) == TEXT + "\n"


@pytest.mark.parametrize("flags", [["--no-speculation"], ["--gamma", "1"], ["--gamma", "8"], ["--rule", "match"]])
def test_how_it_speculates_does_not_change_the_text(shell: Shell, coordinator: str, flags: list[str]) -> None:
    """Greedy text is the same however it was drafted."""
    assert shell("generate", "ABC", "--host", coordinator, "-t", "0", "-q", *flags).out == TEXT + "\n"


def test_json_says_how_every_token_came_about(shell: Shell, coordinator: str) -> None:
    """--json prints one object with a kind for each id, statistics that agree with them, and the rounds."""
    answer = json.loads(shell("generate", "ABC", "--host", coordinator, "-t", "0", "--json").out)
    assert answer["text"] == TEXT
    assert len(answer["kinds"]) == len(answer["ids"]) == len(SCRIPT) == answer["usage"]["output_tokens"]
    assert answer["kinds"].count("accepted") == answer["statistics"]["num_accepted_tokens"] > 0
    assert sum(round_["num_committed"] for round_ in answer["rounds"]) == len(answer["ids"])


def test_no_speculation_drafts_nothing(shell: Shell, coordinator: str) -> None:
    """With --no-speculation every token is plain."""
    answer = json.loads(shell("generate", "A", "--host", coordinator, "-t", "0", "--json", "--no-speculation").out)
    assert set(answer["kinds"]) == {"plain"}
    assert answer["statistics"]["num_drafts"] == 0


def test_trace_shows_the_rounds(shell: Shell, coordinator: str) -> None:
    """--trace prints a line per round on stderr, after the answer."""
    result = shell("generate", "ABC", "--host", coordinator, "-t", "0", "--trace")
    assert result.out == TEXT + "\n"
    rows = [line for line in result.error.splitlines() if line[:5].strip().isdecimal()]
    assert [int(row[:5]) for row in rows] == list(range(len(rows)))
    assert len(rows) > 2
    assert "pass" in result.error


def test_prompt_from_stdin_and_from_a_file(shell: Shell, coordinator: str, tmp_path: Path) -> None:
    """`-` reads the prompt from stdin, --file from a file."""
    file = tmp_path / "prompt.txt"
    file.write_text("ABC")
    from_file = shell("generate", "--file", str(file), "--host", coordinator, "-t", "0", "-q")
    from_stdin = shell("generate", "-", "--host", coordinator, "-t", "0", "-q", stdin="ABC")
    assert from_file.out == from_stdin.out == TEXT + "\n"


def test_limits_and_stops_are_the_requests_own(shell: Shell, coordinator: str) -> None:
    """-n bounds the tokens and --stop ends the text before the given words."""
    assert shell("generate", "A", "--host", coordinator, "-t", "0", "-q", "-n", "3").out == "ABC\n"
    assert shell("generate", "A", "--host", coordinator, "-t", "0", "-q", "--stop", "BC A").out == "A\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["A", "-t", "-1"], "temperature is -1.0"),
        (["A", "-t", "nan"], "temperature is nan"),
        (["A", "--top-p", "1.5"], "top_p is 1.5"),
        (["A", "-n", "0"], "max_tokens is 0"),
        (["A", "-n", "-4"], "max_tokens is -4"),
        (["A", "--speculator", "nosuch"], "'nosuch'"),
        (["A", "--gamma", "1000"], "gamma is 1000"),
        (["A", "--token-ms", "0"], "targets.token_s is 0"),
        (["A", "--first-token-ms", "-5"], "targets.first_token_s is -0.005"),
        (["A", "--gamma", "2", "--no-speculation"], "contradict"),
        (["A" * 500, "--raw"], "128"),
        (["Z", "--raw"], "'Z'"),
        ([""], "empty"),
        (["-"], "empty"),
        ([], "--file"),
        (["--file", "/nosuch/file"], "/nosuch/file"),
    ],
)
def test_bad_input_is_one_line_that_names_it(shell: Shell, coordinator: str, arguments: list[str], words: str) -> None:
    """Each impossible request ends with status 1 and one line on stderr that names the value; stdout stays empty."""
    result = shell("generate", "--host", coordinator, *arguments)
    assert result.status == 1
    assert result.out == ""
    assert result.error.startswith("pilotfish: ")
    assert words in result.error
    assert result.error.count("\n") == 1


def test_nobody_there(shell: Shell) -> None:
    """An address where nobody answers is named, with what to do; --debug adds the traceback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # taken and not listened on
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = shell("generate", "A", "--host", address)
        assert result.status == 1
        assert result.error == f"pilotfish: nobody answers at {address}; start the services there with: pilotfish up\n"
        assert "Traceback" in shell("generate", "A", "--host", address, "--debug").error


# ---- chat, info, models ------------------------------------------------------------------------------------------


def test_chat_keeps_the_conversation_and_obeys(shell: Shell, coordinator: str) -> None:
    """Each line gets an answer, lines with a slash are obeyed, an error does not end the program."""
    lines = "A\n/plain\nB\nZ\n/gamma x\n/reset\nC\n/quit\nnever said\n"
    result = shell("chat", "--host", coordinator, "-t", "0", stdin=lines)
    assert result.status == 0
    assert result.out.count(TEXT) == 3
    for words in ("speculation off", "'Z'", "/gamma takes a number", "forgotten"):
        assert words in result.error


def test_chat_ends_with_its_input(shell: Shell, coordinator: str) -> None:
    """The end of the input is the end of the conversation."""
    assert shell("chat", "--host", coordinator, "-t", "0", stdin="A\n").status == 0


def test_info_of_every_role(shell: Shell, coordinator: str) -> None:
    """`info` finds out which of the three it talks to, and says what each says of itself."""
    answer = json.loads(shell("info", coordinator, "--json").out)
    assert (answer["role"], answer["is_ready"]) == ("coordinator", True)
    roles = {}
    for peer in answer["facts"]["peers"]:
        roles[peer["role"]] = json.loads(shell("info", peer["address"], "--json").out)
    assert {role: found["role"] for role, found in roles.items()} == {"drafter": "drafter", "verifier": "verifier"}
    assert roles["verifier"]["facts"]["context_length"] == 128
    assert roles["drafter"]["facts"]["speculators"] == ["ngram"]
    assert "coordinator at" in shell("info", coordinator).out


def test_models_are_listed(shell: Shell) -> None:
    """Every preset is listed with where it is from; an unknown one is refused with those there are."""
    assert "smollm2-135m (default)" in shell("models", "list").out
    result = shell("models", "fetch", "nosuch")
    assert result.status == 1
    assert "smollm2-135m" in result.error


# ---- up ----------------------------------------------------------------------------------------------------------


def start_up(*arguments: str) -> subprocess.Popen[str]:
    """`pilotfish up` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from pilotfish.cli import main; main()", "up", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """Lines of stderr, to the one with these words."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"never said {words!r}, but: {''.join(lines)}")


def children(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the services; Linux."""
    task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in task.read_text().split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_up_serves_until_it_is_told_to_end(shell: Shell, table: Path) -> None:
    """`up` starts three services that answer, and SIGTERM ends all of them with status 0."""
    with start_up("--model", f"table:{table}", "--port", "0") as process:
        address = lines_until(process, "ready:")[-1].partition(" at ")[2].partition(". Try")[0]
        pids = children(process)
        assert len(pids) == 3
        assert shell("generate", "A", "--host", address, "-t", "0", "-q").out == TEXT + "\n"
        process.send_signal(signal.SIGTERM)
        rest = "".join(process.stderr or ())
        assert process.wait() == 0
    assert "had to be killed" not in rest
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_up_ends_with_the_first_service_that_does(table: Path) -> None:
    """When a service is killed, `up` names it, ends the others and exits with status 1."""
    with start_up("--model", f"table:{table}", "--port", "0") as process:
        lines_until(process, "ready:")
        pids = children(process)
        os.kill(pids[-1], signal.SIGKILL)
        rest = "".join(process.stderr or ())
        assert process.wait() == 1
    assert "verifier ended by itself (SIGKILL)" in rest
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nosuch"], "no model 'nosuch'"),
        (["--model", "/nosuch/model.gguf"], "/nosuch/model.gguf"),
        (["--model", "table:/nosuch.json"], "/nosuch.json"),
        (["--drafter", "nosuch"], "--drafter is 'nosuch'"),
        (["--drafter", "model:nosuch"], "no model 'nosuch'"),
        (["--config", "/nosuch.toml"], "/nosuch.toml"),
    ],
)
def test_up_refuses_at_once_what_cannot_be(shell: Shell, arguments: list[str], words: str) -> None:
    """What cannot be had is said in one line before anything is started."""
    result = shell("up", *arguments)
    assert (result.status, result.error.count("\n")) == (1, 1)
    assert words in result.error


def test_up_names_a_port_that_is_taken(shell: Shell, table: Path) -> None:
    """A port that somebody has is named with the option that chooses another."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = shell("up", "--model", f"table:{table}", "--port", str(port))
    assert result.status == 1
    assert f"port {port}" in result.error
    assert "--port" in result.error


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("gama = 4", "no option 'gama'"),
        ("gamma = -1", "gamma is -1"),
        ("port = 99999", "99999"),
        ('gamma = "four"', "gamma is 'four'"),
        ('gamma = "1:4,1:2"', "1 sessions come after 1"),
        ("gamma = true", "gamma is True"),
        ("model = 3", "model is 3"),
        ("[verifer]\nport = 1", "no service 'verifer'"),
        ("verifier = 3", "[verifier]"),
        ("gamma = ", "not TOML"),
        ("[verifier]\nmax_positons = 9", "max-positons"),
    ],
)
def test_up_refuses_a_config_with_a_mistake(
    shell: Shell, table: Path, tmp_path: Path, content: str, words: str
) -> None:
    """A misspelt key or impossible value of a config file is named, whoever it is meant for."""
    config = tmp_path / "pilotfish.toml"
    config.write_text(content)
    result = shell("up", "--model", f"table:{table}", "--port", "0", "--config", str(config))
    assert result.status == 1
    assert words in result.error


# ---- help --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [[], ["up"], ["generate"], ["chat"], ["info"], ["models"], ["demo"], ["bench"], ["bench", "speed"]]
)
def test_every_command_has_help(shell: Shell, command: list[str]) -> None:
    """--help of every command exits with 0 and says more than a line."""
    result = shell(*command, "--help")
    assert result.status == 0
    assert len(result.out.splitlines()) > 10


def test_version_is_that_of_the_package(shell: Shell) -> None:
    """--version prints the installed version."""
    from importlib.metadata import version

    assert shell("--version").out == f"pilotfish {version('pilotfish')}\n"


def test_without_its_packages_the_command_line_says_what_to_install() -> None:
    """A client-only installation gets one line with the pip command, and status 2."""
    program = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in {'typer', 'rich'} else find(name, *rest)\n"
        "from pilotfish.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, "up"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'pilotfish[all]'" in done.stderr
    assert done.stderr.count("\n") == 1

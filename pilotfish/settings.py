"""Settings of a service: every field is a flag, an environment variable and a key of a TOML file.

A flag wins over the environment, the environment over the file, the file over the default. What no field has is an
error that names the nearest one; so is a value that cannot be.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from pilotfish.errors import ConfigurationError

Port = Annotated[int, Field(ge=0, le=65535)]
"""A port to listen on; 0: any that is free."""
PositiveSeconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
"""A duration over 0."""
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
"""A duration, maybe none at all."""
PositiveMilliseconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
"""A duration over 0."""
Milliseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""A duration, maybe none at all."""
PositiveInt = Annotated[int, Field(ge=1)]
"""A number of things, at least one."""
Count = Annotated[int, Field(ge=0)]
"""A number of things, maybe none."""

OtlpProtocol: TypeAlias = Literal["grpc", "http/protobuf"]
"""How telemetry travels to a collector; the words are OpenTelemetry's."""
LogFormat: TypeAlias = Literal["text", "json"]
"""How lines of the log look."""

_MASK = "********"
_CONFIG_VARIABLE = "CONFIG"  # with the prefix: the environment's name of --config


class ServiceSettings(BaseModel):
    """Base of a service's settings: `class VerifierSettings(ServiceSettings, prefix="PILOTFISH_VERIFIER_")`.

    Every field needs a description, which is its help. `SecretStr` fields are masked wherever settings are shown.
    Make them with `load`; the constructor takes values as they are, for tests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    prefix: ClassVar[str]

    def __init_subclass__(cls, prefix: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if prefix is not None:
            cls.prefix = prefix

    @classmethod
    def load(
        cls,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        program: str | None = None,
    ) -> Self:
        """The settings of a process.

        Args:
            arguments: of the command line, without the program; `--help` prints and exits.
            environment: None: that of the process.
            program: name in the help.

        Raises:
            ConfigurationError: an unknown key or an impossible value; `field` is the key as it was written.
        """
        environment = os.environ if environment is None else environment
        flags = _read_flags(cls, arguments, program)
        variables = _read_environment(cls, environment)
        config = flags.pop("config", None) or environment.get(cls.prefix + _CONFIG_VARIABLE)
        file = {} if config is None else _read_file(cls, Path(config))
        origin: dict[str, tuple[str, Any]] = {}
        for source in (file, variables, flags):
            origin.update(source)
        try:
            return cls(**{name: _parse(cls.model_fields[name], key, value) for name, (key, value) in origin.items()})
        except ValidationError as error:
            raise _impossible(error, origin) from error

    def effective(self) -> dict[str, str]:
        """Every setting as text, secrets masked: for the log at start and for `Info`."""
        return {name: _shown(getattr(self, name)) for name in type(self).model_fields}

    def describe(self) -> str:
        """Every setting on a line of its own, secrets masked."""
        return "\n".join(f"{name} = {value}" for name, value in self.effective().items())


def _shown(value: object) -> str:
    if isinstance(value, SecretStr | SecretBytes):
        return _MASK if value.get_secret_value() else ""
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(entry) for entry in value)
    return "" if value is None else str(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# ---- sources: each gives {field: (key as written, value)} --------------------------------------------------------


def _read_flags(cls: type[ServiceSettings], arguments: Sequence[str], program: str | None) -> dict[str, Any]:
    parser = _Parser(prog=program, description=cls.__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help=f"TOML file of settings [{cls.prefix}{_CONFIG_VARIABLE}]")
    for name, field in cls.model_fields.items():
        default = "required" if field.is_required() else f"default: {_shown(field.default) or 'none'}"
        text = f"{field.description} [{cls.prefix}{name.upper()}; {default}]".replace("%", "%%")
        if _is_flag(field):
            parser.add_argument(_flag(name), nargs="?", const="true", dest=name, metavar="BOOL", help=text)
        else:
            parser.add_argument(_flag(name), dest=name, metavar=_metavar(name, field), help=text)
    values, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        known = [_flag(name) for name in cls.model_fields] + ["--config"]
        raise _unknown(unknown[0].split("=")[0], known)
    given = vars(values)
    config = given.pop("config", None)
    flags: dict[str, Any] = {name: (_flag(name), value) for name, value in given.items()}
    return flags | ({"config": config} if config is not None else {})


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print and exit."""

    def error(self, message: str) -> Any:
        raise ConfigurationError(f"{message}; --help lists what there is")


def _read_environment(cls: type[ServiceSettings], environment: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    known = {cls.prefix + name.upper(): name for name in cls.model_fields}
    values = {}
    for key, value in environment.items():
        if key.upper().startswith(cls.prefix) and key != cls.prefix + _CONFIG_VARIABLE:
            if value.startswith("tcp://") or key.endswith("_SERVICE_HOST"):
                remedy = "Kubernetes sets such variables for a Service; set enableServiceLinks: false in the pod"
                raise ConfigurationError.of(key, value, remedy)
            if key not in known:
                raise _unknown(key, known)
            values[known[key]] = (key, value)
    return values


def _read_file(cls: type[ServiceSettings], path: Path) -> dict[str, tuple[str, Any]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"config is {str(path)!r}: cannot be read: {error.strerror}", field="config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"config is {str(path)!r}: not TOML: {error}", field="config") from error
    for key in table:
        if key not in cls.model_fields:
            raise _unknown(key, cls.model_fields)
    return {key: (key, value) for key, value in table.items()}


# ---- values ------------------------------------------------------------------------------------------------------


def _kinds(annotation: Any) -> list[Any]:
    """The types a field may have, `None` left out."""
    if get_origin(annotation) in {Union, UnionType}:
        return [kind for entry in get_args(annotation) if entry is not NoneType for kind in _kinds(entry)]
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    return [annotation]


def _is_flag(field: FieldInfo) -> bool:
    return _kinds(field.annotation) == [bool]


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) in {list, tuple, set, frozenset} for kind in _kinds(field.annotation))


def _metavar(name: str, field: FieldInfo) -> str:
    kind = _kinds(field.annotation)[0]
    if get_origin(kind) is Literal:
        return "{" + ",".join(str(value) for value in get_args(kind)) + "}"
    return name.rsplit("_", 1)[-1].upper()


def _parse(field: FieldInfo, key: str, value: Any) -> Any:
    """A value of a flag or a variable is text: a list is written with commas, and nothing means None where it may."""
    if not isinstance(value, str):
        return value
    if _is_list(field):
        return [entry.strip() for entry in value.split(",") if entry.strip()]
    if value == "" and NoneType in get_args(field.annotation):
        return None
    if _is_flag(field) and value.lower() not in {"true", "false", "1", "0", "yes", "no", "on", "off"}:
        raise ConfigurationError.of(key, value, "say true or false")
    return value


# ---- errors ------------------------------------------------------------------------------------------------------


def _unknown(key: str, known: Any) -> ConfigurationError:
    nearest = get_close_matches(key, list(known), n=1, cutoff=0.0)
    return ConfigurationError(f"{key} is not a setting; the nearest one is {nearest[0]}", field=key)


def _impossible(error: ValidationError, origin: Mapping[str, tuple[str, Any]]) -> ConfigurationError:
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else ""
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if problem["type"] == "missing":
        return ConfigurationError(f"{_flag(name)} is required", field=name)
    if not name:
        return ConfigurationError(text)
    key, value = origin.get(name, (name, problem["input"]))
    is_secret = isinstance(problem["input"], SecretStr | SecretBytes)
    return ConfigurationError.of(key, _MASK if is_secret else value, text)

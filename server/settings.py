"""The server's settings: a flag, an environment variable or a line in a TOML file each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from resispec.engine.config import DEFAULT, DEFAULT_NAME, EngineConfig
from resispec.engine.request import SpeculationMode

from .chat_template import readable_template
from .keys import read_keys

ENV_PREFIX = "RESISPEC_"

MODEL = {"panel": "Model"}
MEMORY = {"panel": "Batching and memory"}
SPECULATION = {"panel": "Speculation"}
HTTP = {"panel": "HTTP"}
OPERATION = {"panel": "Operation"}


def _split(value: object) -> object:
    """Let an environment variable hold a list as ``a,b``."""
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def _split_each(value: object) -> object:
    """The same for flags, which may be repeated as well."""
    values = value if isinstance(value, list | tuple) else [value]
    texts = [item for item in values if isinstance(item, str)]
    if len(texts) < len(values):
        return value
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _auto(value: object) -> object:
    """Let ``auto`` stand for "chosen at start", which is None here."""
    return None if value == "auto" else value


def _readable_keys(path: Path | None) -> Path | None:
    """Refuse a key file that cannot be read now, before models are loaded."""
    if path is not None:
        read_keys(path)
    return path


class ServerSettings(BaseSettings):
    """Everything that can be set. Precedence: flag, environment, file, default.

    ``None`` means: chosen at start from the model and the machine.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    config: Annotated[
        Path | None, Field(description="TOML file with these settings, one 'name = value' a line.")
    ] = None

    target: Annotated[
        str,
        Field(
            min_length=1,
            description="Target model: 'default', a hub id, a local folder or a GGUF file.",
            json_schema_extra=MODEL,
        ),
    ] = "default"
    draft: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Draft: 'default' (goes with the default target), 'none', a hub id, a local folder "
            "or a GGUF file, of a model, a distilled head, an EAGLE head or Medusa heads. Unset: the one "
            "that goes with the target, if there is one.",
            json_schema_extra=MODEL,
        ),
    ] = None
    served_model_name: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        NoDecode,
        BeforeValidator(_split),
        Field(
            description="Name clients ask for; repeat for aliases. Unset: the target's.",
            json_schema_extra=MODEL,
        ),
    ] = []
    chat_template: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        AfterValidator(readable_template),
        Field(
            description="In place of the model's own chat template: a Jinja file, or 'hermes', ChatML with "
            "tools, which suits the default model.",
            json_schema_extra=MODEL,
        ),
    ] = None
    device: Annotated[
        str,
        Field(
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="auto, cpu, cuda or cuda:N.",
            json_schema_extra=MODEL,
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Field(description="auto, float32, bfloat16 or float16.", json_schema_extra=MODEL),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        Field(
            description="Round the target's weights, on a CPU: none, int8 or int4. int8 is quicker where our "
            "kernels multiply it. Another model: 'resispec fidelity' tells how near.",
            json_schema_extra=MODEL,
        ),
    ] = "none"
    draft_quantization: Annotated[
        Literal["auto", "none", "int8"],
        Field(
            description="Round the draft's weights, on a CPU: auto, none or int8. Answers keep the target's "
            "law whatever it is. auto: int8 in bfloat16 on processors that are quicker with it.",
            json_schema_extra=MODEL,
        ),
    ] = "auto"
    compile: Annotated[
        bool,
        Field(
            description="Compile the target's layers on a CPU, in the background; they are kept in the cache "
            "folder. Quicker steps, for memory: the layers' weights once more, where there is room.",
            json_schema_extra=MODEL,
        ),
    ] = False
    max_model_len: Annotated[
        Annotated[int, Field(gt=1)] | None,
        BeforeValidator(_auto),
        Field(
            description="Longest sequence, prompt and answer, in tokens. Unset: the model's context.",
            json_schema_extra=MODEL,
        ),
    ] = None
    offline: Annotated[bool, Field(description="Never touch a network.", json_schema_extra=MODEL)] = False

    max_num_seqs: Annotated[
        int, Field(ge=1, le=4096, description="Sequences that run together.", json_schema_extra=MEMORY)
    ] = 16
    max_num_batched_tokens: Annotated[
        Annotated[int, Field(ge=1, le=1 << 20)] | None,
        BeforeValidator(_auto),
        Field(
            description="Tokens in one step of the target. Unset: all trees and a good chunk of a prompt.",
            json_schema_extra=MEMORY,
        ),
    ] = None
    max_prefill_ms: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Milliseconds that prompts may add to a step in which other requests decode; more "
            "where more of them wait than decode.",
            json_schema_extra=MEMORY,
        ),
    ] = 50.0
    kv_memory: Annotated[
        Annotated[ByteSize, Field(gt=0)] | None,
        BeforeValidator(_auto),
        Field(
            description="KV memory of both models together, such as 2GiB. Unset: from what is free.",
            json_schema_extra=MEMORY,
        ),
    ] = None
    prefix_caching: Annotated[
        bool, Field(description="Keep and reuse the KV memory of prompt prefixes.", json_schema_extra=MEMORY)
    ] = True
    attention: Annotated[
        Literal["auto", "rows", "segments", "flex"],
        Field(
            description="How the KV memory is read: rows, on a CPU by a kernel of our own; segments, a few "
            "requests at a time; flex, on a GPU in one kernel. auto: what the device runs best.",
            json_schema_extra=MEMORY,
        ),
    ] = "auto"
    cuda_graphs: Annotated[
        bool,
        Field(description="On a GPU, record small steps and replay them.", json_schema_extra=MEMORY),
    ] = True
    num_threads: Annotated[
        Annotated[int, Field(gt=0)] | None,
        BeforeValidator(_auto),
        Field(description="CPU threads. Unset: the physical cores.", json_schema_extra=MEMORY),
    ] = None

    speculation: Annotated[
        Literal["auto", "fixed", "off"],
        Field(
            description="auto: as much as pays, none included; fixed: always the same trees; off. "
            "A request may choose otherwise.",
            json_schema_extra=SPECULATION,
        ),
    ] = "auto"
    proposer: Annotated[
        list[Literal["draft", "ngram", "prediction", "suffix", "recycle", "medusa"]],
        NoDecode,
        BeforeValidator(_split_each),
        Field(
            min_length=1,
            description="Who says what may follow, with commas between them: draft; ngram: what followed in "
            "this text; prediction: the request's own; suffix: what followed in recent answers; recycle: "
            "what the target ranked high of late; medusa: the heads given as the draft.",
            json_schema_extra=SPECULATION,
        ),
    ] = ["draft", "ngram", "prediction"]
    baseline_probe_share: Annotated[
        float,
        Field(
            ge=0,
            le=0.5,
            allow_inf_nan=False,
            description="Share of the steps that are run without trees, to measure what trees gain.",
            json_schema_extra={**SPECULATION, "metavar": "SHARE"},
        ),
    ] = 0.01
    verifier: Annotated[
        str,
        Field(min_length=1, description="Verifier of drafted tokens.", json_schema_extra=SPECULATION),
    ] = "resispec"
    allow_inexact: Annotated[
        bool,
        Field(
            description="Allow verifiers whose answers do not follow the target's law.",
            json_schema_extra=SPECULATION,
        ),
    ] = False
    max_tree_nodes: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | None,
        BeforeValidator(_auto),
        Field(
            description="Most candidates in a tree, the root not counted. Unset: 16; of the trees of 'fixed' "
            "4 on a CPU.",
            json_schema_extra=SPECULATION,
        ),
    ] = None
    max_tree_depth: Annotated[
        Annotated[int, Field(ge=1, le=64)] | None,
        BeforeValidator(_auto),
        Field(
            description="Most drafted levels of a tree. Unset: 4; of the trees of 'fixed' 2 on a CPU.",
            json_schema_extra=SPECULATION,
        ),
    ] = None
    max_step_nodes: Annotated[
        int | None,
        Field(
            ge=1,
            description="Candidates in one step, shared by the requests without a seed. "
            "Unset: 8 on a CPU, 256 on a GPU.",
            json_schema_extra=SPECULATION,
        ),
    ] = None

    host: Annotated[str, Field(min_length=1, description="Address to listen on.", json_schema_extra=HTTP)] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Field(ge=0, le=65535, description="Port to listen on; 0: any free one.", json_schema_extra=HTTP)
    ] = 8000
    api_key: Annotated[
        list[Annotated[SecretStr, Field(min_length=1)]],
        NoDecode,
        BeforeValidator(_split),
        Field(description="Key that clients must send; repeat for several.", json_schema_extra=HTTP),
    ] = []
    api_key_file: Annotated[
        Path | None,
        AfterValidator(_readable_keys),
        Field(
            description="File with further keys, one a line; read again as it changes.",
            json_schema_extra=HTTP,
        ),
    ] = None
    key_requests_per_minute: Annotated[
        int | None,
        Field(ge=1, description="Requests a minute of one key; more get 429.", json_schema_extra=HTTP),
    ] = None
    key_tokens_per_minute: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens a minute of one key, prompts and answers; then 429.",
            json_schema_extra=HTTP,
        ),
    ] = None
    key_concurrent_requests: Annotated[
        int | None,
        Field(ge=1, description="Requests of one key at a time; more get 429.", json_schema_extra=HTTP),
    ] = None
    cors_origin: Annotated[
        list[Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")]],
        NoDecode,
        BeforeValidator(_split),
        Field(
            description="Origin whose pages may call the server, such as https://example.org, or '*'; repeat "
            "for several.",
            json_schema_extra=HTTP,
        ),
    ] = []
    max_queue: Annotated[
        int,
        Field(
            ge=0,
            description="Sequences that may wait beyond the running ones; more get 503.",
            json_schema_extra=HTTP,
        ),
    ] = 256
    max_body_bytes: Annotated[
        ByteSize,
        Field(
            gt=0, description="Longest request body, such as 4MiB; longer get 413.", json_schema_extra=HTTP
        ),
    ] = ByteSize(4 << 20)
    response_store_bytes: Annotated[
        ByteSize,
        Field(
            ge=0,
            description="Text of responses kept for each key, such as 64MiB; 0: none is kept.",
            json_schema_extra=HTTP,
        ),
    ] = ByteSize(64 << 20)
    sse_keep_alive: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Seconds between stream comments; 0: none.",
            json_schema_extra=HTTP,
        ),
    ] = 15.0
    trace_store_bytes: Annotated[
        ByteSize,
        Field(
            ge=0,
            description="Steps of requests with speculation.trace kept for each key, such as 16MiB; 0: none.",
            json_schema_extra=HTTP,
        ),
    ] = ByteSize(16 << 20)
    request_timeout: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Seconds after which an answer ends with what there is of it; 0: never.",
            json_schema_extra=HTTP,
        ),
    ] = 0.0
    ignore_unknown_fields: Annotated[
        bool, Field(description="Ignore unknown request fields, not refuse them.", json_schema_extra=HTTP)
    ] = False

    drain_timeout: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Seconds that running requests get to finish after SIGTERM.",
            json_schema_extra=OPERATION,
        ),
    ] = 30.0
    otlp_endpoint: Annotated[
        str | None,
        Field(
            pattern="^https?://.",
            description="Where to send OpenTelemetry traces, over HTTP; unset: nowhere.",
            json_schema_extra=OPERATION,
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="debug, info, warning or error.", json_schema_extra=OPERATION),
    ] = "info"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: given values (the flags), environment, the TOML file."""
        given = init_settings.init_kwargs if isinstance(init_settings, InitSettingsSource) else {}
        path = config_path(given)
        file = (TomlConfigSettingsSource(settings_cls, path),) if path else ()
        return (init_settings, env_settings, *file)

    @model_validator(mode="after")
    def _draft_fits_target(self) -> Self:
        if self.draft == "default" and self.target != "default":
            raise ValueError("draft 'default' goes with the default target only; name a draft, or use 'none'")
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names a request may ask for; the first one is shown."""
        own = (DEFAULT_NAME, DEFAULT) if self.target == DEFAULT else (self.target,)
        return tuple(self.served_model_name) or own

    def engine_config(self) -> EngineConfig:
        """The engine's part of the settings."""
        draft = self.draft or "default"  # to the engine, that is none where no draft goes with the target
        differing: dict[str, Any] = {
            "draft": None if draft == "none" else draft,
            "kv_memory": None if self.kv_memory is None else int(self.kv_memory),
            "speculation": SpeculationMode(self.speculation),
            "proposers": tuple(dict.fromkeys(self.proposer)),
        }
        names = {field.name for field in fields(EngineConfig)} - differing.keys()
        return EngineConfig(**{name: getattr(self, name) for name in names}, **differing)


def config_path(flags: Mapping[str, Any]) -> Path | None:
    """The file that ``flags`` or the environment name, if one does."""
    path = flags.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
    return Path(path) if path else None

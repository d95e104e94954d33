"""Every setting of Draftwing, its type, its range and its default. Reading them from files and flags: `config.py`.

What the format names but this version doesn't do yet is refused here, by name: a validator's message continues "KEY is
VALUE". Sizes are in tokens unless named otherwise. No torch here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from draftwing.errors import ConfigError
from draftwing.limits import DEFAULT_LIMITS, RequestLimits
from draftwing.policy.modes import FORMS, parse_mode

Name = Annotated[
    str, Field(pattern=r"^[^\s\x00-\x1f\x7f]{1,128}$", description="text of 1 to 128 characters, none of them a space")
]
Text = Annotated[
    str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,4096}$", description="text of 1 to 4096 characters on one line")
]
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=1, le=65536)]

PLACED_METHODS = ("ngram", "suffix", "draft_model")  # they need nothing of the target but its tokens
BLIND_MODE = "fixed:k=4"  # the default where plans may not depend on what was drawn
FROM_CHECKPOINT = "checkpoint"  # the method of a drafter that names a path alone


class Section(BaseModel):
    """Strict: a key that isn't known, and a value of another type, are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class ModelConfig(Section):
    """The target: where it comes from and how it is loaded.

    path: folder, hub id or GGUF file; empty means none was configured, which commands that load a model refuse.
    name: the served name (default: last part of the path). dtype auto: float32 on a CPU, the checkpoint's own on a GPU.
    quantization null: what the checkpoint carries. cpu_threads null: all cores that this process may use.
    compile: build a kernel for this machine's CPU, once, where there is a C++ compiler.
    """

    path: Text = ""
    name: Name | None = None
    aliases: list[Name] = Field(default=[], max_length=64)
    revision: Name | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["int8", "int4"] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    offline: bool = False
    cache_dir: Text | None = None
    trust_remote_code: bool = False
    cpu_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    compile: bool = True

    @property
    def served_name(self) -> str:
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")


class ParallelConfig(Section):
    """Ranks of one replica. tensor: every layer is cut into so many parts. expert: whole experts are dealt out to so
    many ranks, and everything else is cut as by tensor; where both are set they are equal."""

    tensor: Count = 1
    expert: Count = 1
    pipeline: Count = 1

    @field_validator("expert")
    @classmethod
    def _one_cut(cls, expert: int, info: ValidationInfo) -> int:
        tensor = info.data.get("tensor", 1)
        if expert > 1 and tensor not in (1, expert):
            raise ValueError(f", but parallel.tensor is {tensor}; expected {tensor}, or parallel.tensor: 1")
        return expert

    @field_validator("pipeline")
    @classmethod
    def _no_stages(cls, size: int) -> int:
        if size > 1:
            raise ValueError(", and pipeline stages are not available; expected 1 (raise parallel.tensor instead)")
        return size

    @property
    def ranks(self) -> int:
        return max(self.tensor, self.expert)


class PlacementConfig(Section):
    """A drafter in processes of its own, which follows the target over a channel.

    replicas: of the drafter. gpus: of each. mode colocated: all sequences wait for their drafts; alternate: they decode
    in two halves, and while one is verified the other is drafted for. deadline_ms: most that a step waits for drafts.
    """

    replicas: Count = 1
    gpus: float = Field(default=0, ge=0, le=16)
    mode: Literal["colocated", "alternate"] = "colocated"
    deadline_ms: float = Field(default=100, gt=0, le=60_000)


class DrafterConfig(BaseModel):
    """One drafter: a name to refer to it, a method, and that method's own options (checked by the drafter).

    placement: null where it runs beside the target. The method may be left out where `path` names a checkpoint, which
    says it when it is opened.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    method: Name
    name: Name = Field(default_factory=lambda data: data.get("method", ""))
    placement: PlacementConfig | None = None

    @field_validator("placement")
    @classmethod
    def _needs_only_tokens(cls, placement: PlacementConfig | None, info: ValidationInfo) -> PlacementConfig | None:
        method = info.data.get("method")
        if placement is not None and method not in PLACED_METHODS:
            accepted = ", ".join(PLACED_METHODS)
            raise ValueError(
                f", but method {method!r} runs beside its target; a drafter with a placement has one of {accepted}"
            )
        return placement

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key != "placement" or value is not None}

    @model_validator(mode="before")
    @classmethod
    def _told_by_its_checkpoint(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "method" in data or not isinstance(path := data.get("path"), str):
            return data
        name = "".join(path.rstrip("/").rpartition("/")[2].split())[:128] or FROM_CHECKPOINT
        return {"name": name, **data, "method": FROM_CHECKPOINT}

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TargetsConfig(Section):
    """Latency targets in milliseconds."""

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)


class PolicyConfig(Section):
    """How much to draft. log: file for every decision.

    mode's default: off without a drafter, adaptive with one, fixed:k=4 where sampling is rejection.
    """

    mode: str = Field(default="off", description=FORMS)
    profile: Text | None = None
    targets: TargetsConfig | None = None
    log: Text | None = None

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, mode: str) -> str:
        try:
            parse_mode(mode)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix(f"policy.mode is {mode!r}")) from None
        return mode.strip()

    @field_validator("targets")
    @classmethod
    def _kept(cls, targets: TargetsConfig | None) -> TargetsConfig | None:
        if targets is not None and targets.ttft_ms is not None:
            raise ValueError(", and ttft_ms is not available in this version; remove it, tpot_ms is")
        return targets

    @property
    def blind(self) -> bool:
        """Whether no plan depends on what was drawn: one that does would bias what `sampling: rejection` emits."""
        return self.mode.startswith(("off", "fixed"))

    def check(self) -> None:
        """ValueError where the mode has no use for a setting, or lacks one."""
        kind = self.mode.partition(":")[0]
        if kind == "table" and self.profile is None:
            raise ValueError(", but mode table needs a profile; publish one: draftwing tune")
        if self.profile is not None and kind not in ("table", "adaptive"):
            raise ValueError(f", but mode {self.mode!r} uses no profile; remove it, or set mode table or adaptive")
        if self.targets is not None and kind != "adaptive":
            raise ValueError(f", but mode {self.mode!r} knows no targets; remove them, or set mode adaptive")


class CacheConfig(Section):
    """The KV cache. tokens null: as many as fit into gpu_fraction of the device's memory.

    prefix: requests of one API key that begin with the same tokens share their keys and values.
    """

    block_tokens: Annotated[int, Field(ge=1, le=1024)] = 32
    gpu_fraction: float = Field(default=0.9, gt=0, le=1)
    tokens: Tokens | None = None
    prefix: bool = True


class LimitsConfig(Section):
    """What the engine takes at once, and (from `n` on: see `draftwing.limits`) what one request may ask for.

    context null: the model's own. batch_tokens: rows of one step. prefill_chunk: prompt rows of one sequence a step.
    """

    sequences: Count = 256
    queue: Annotated[int, Field(ge=0, le=2**20)] = 512
    context: Tokens | None = None
    batch_tokens: Annotated[int, Field(ge=1, le=2**20)] = 8192
    prefill_chunk: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default_factory=lambda data: min(512, data.get("batch_tokens", 512))
    )
    body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = DEFAULT_LIMITS.body_bytes
    json_depth: Annotated[int, Field(ge=4, le=256)] = DEFAULT_LIMITS.json_depth
    prompts: Count = DEFAULT_LIMITS.prompts
    n: Count = DEFAULT_LIMITS.n
    messages: Count = DEFAULT_LIMITS.messages
    stop: Annotated[int, Field(ge=0, le=1024)] = DEFAULT_LIMITS.stop
    stop_chars: Count = DEFAULT_LIMITS.stop_chars
    stop_token_ids: Annotated[int, Field(ge=0, le=65536)] = DEFAULT_LIMITS.stop_token_ids
    logprobs: Annotated[int, Field(ge=0, le=1024)] = DEFAULT_LIMITS.logprobs
    logit_bias: Annotated[int, Field(ge=0, le=65536)] = DEFAULT_LIMITS.logit_bias
    request_id_chars: Annotated[int, Field(ge=8, le=1024)] = DEFAULT_LIMITS.request_id_chars

    @field_validator("prefill_chunk")
    @classmethod
    def _fits_a_step(cls, chunk: int, info: ValidationInfo) -> int:
        batch_tokens = info.data.get("batch_tokens", chunk)
        if chunk > batch_tokens:
            raise ValueError(f", more than limits.batch_tokens; expected at most {batch_tokens}")
        return chunk

    @property
    def request(self) -> RequestLimits:
        return RequestLimits(**{name: getattr(self, name) for name in RequestLimits.__dataclass_fields__})


class ServerConfig(Section):
    """The HTTP side. keys: API keys, one of which a client must send; null: none is asked for.

    request_timeout_s: seconds from a request's arrival to its last token, after which it is given up.
    """

    host: Name = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    keys: list[Annotated[SecretStr, Field(min_length=8, max_length=512)]] | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="null or a list of 1 to 1024 keys of 8 to 512 characters",
    )
    replicas: Count = 1
    request_timeout_s: float = Field(default=1800, gt=0, le=86400)

    @field_validator("replicas")
    @classmethod
    def _one_replica(cls, replicas: int) -> int:
        if replicas > 1:
            raise ValueError(", and more than one target replica is not available in this version; expected 1")
        return replicas


class Config(Section):
    """All settings, resolved: no value here still means "decide later" unless its section says so."""

    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    drafters: list[DrafterConfig] = Field(
        default=[], max_length=16, description="a list of drafters, each a mapping with method, name and options"
    )
    sampling: Literal["invariant", "rejection"] = "invariant"
    policy: PolicyConfig = Field(default=PolicyConfig(), validate_default=True)
    cache: CacheConfig = CacheConfig()
    limits: LimitsConfig = LimitsConfig()
    server: ServerConfig = ServerConfig()

    @field_validator("parallel")
    @classmethod
    def _whole_weights(cls, parallel: ParallelConfig, info: ValidationInfo) -> ParallelConfig:
        model = info.data.get("model")
        if parallel.ranks > 1 and model is not None and model.quantization is not None:
            raise ValueError(
                f", and model.quantization is {model.quantization!r}, which runs on one rank only; set one of the two"
            )
        return parallel

    @field_validator("drafters")
    @classmethod
    def _one_or_auto(cls, drafters: list[DrafterConfig]) -> list[DrafterConfig]:
        names = [drafter.name for drafter in drafters]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f", but two of them have the name {twice!r}; give each its own")
        choosers = sum(drafter.method == "auto" for drafter in drafters)
        if len(drafters) > 1 and choosers != 1:
            raise ValueError(
                f", {len(drafters)} drafters of which {choosers} have method auto; keep one drafter, "
                "or add one {method: auto} to choose among the others"
            )
        if len(drafters) == 1 and choosers:
            raise ValueError(", but auto has nothing to choose from; add other drafters beside it")
        if len(drafters) > 1 and any(drafter.placement for drafter in drafters):
            raise ValueError(", and a drafter with a placement can't be one of several; keep it alone")
        return drafters

    @field_validator("policy")
    @classmethod
    def _resolved_mode(cls, policy: PolicyConfig, info: ValidationInfo) -> PolicyConfig:
        """A drafter that was configured is used, unless the mode says otherwise."""
        drafts = any(drafter.method != "none" for drafter in info.data.get("drafters", []))
        rejection = info.data.get("sampling") == "rejection"
        if "mode" not in policy.model_fields_set:
            learning = not rejection or policy.profile is not None or policy.targets is not None
            wanted = "adaptive" if learning else BLIND_MODE
            policy = policy.model_copy(update={"mode": wanted if drafts else "off"})
        elif policy.mode != "off" and not drafts and "drafters" in info.data:
            raise ValueError(", but no drafter is configured; add one to drafters, or use mode off")
        if rejection and not policy.blind:
            raise ValueError(f", but sampling is 'rejection', which needs mode off or fixed, not {policy.mode!r}")
        policy.check()
        return policy

    @property
    def drafter_name(self) -> str:
        """The drafter that plans ask for: the one configured, or the one that chooses; "" if none."""
        chooser = next((drafter for drafter in self.drafters if drafter.method == "auto"), None)
        first = chooser or next(iter(self.drafters), None)
        return "" if first is None else first.name

"""From a checkpoint to the drafting method it was made for, by its tensors and its configuration. Loads no torch.

Tensors decide what a checkpoint is, because configurations are known to lie (an EAGLE head calls itself
LlamaForCausalLM, Medusa's count their heads wrong); the configuration decides between what tensors leave open, and who
wrote it. The drafters' own readers take it from there: they read sizes and flags, never the method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftwing.checkpoints.config_fields import check_fields
from draftwing.checkpoints.layouts import (
    BARE,
    CONTEXTS,
    DFLASH,
    DFLASH2,
    DSPARK,
    EAGLE,
    EMBEDDINGS,
    MEDUSA,
    MODULE,
    MTP,
    OUTER,
    TOKEN_MAPS,
    UNREAD,
    WHOLE,
)
from draftwing.errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]
SPECULATORS = "speculators_model_type"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a checkpoint is.

    method: the drafting method it was made for. methods: all that can read it, that one first; a whole model can serve
    as `draft_model` too. dialect: who wrote it, in whose names. decided: what showed it, in words. unknown: tensors
    that no drafting method reads.
    """

    role: Literal["target", "drafter"]
    method: str
    methods: tuple[str, ...]
    dialect: str
    decided: tuple[str, ...]
    unknown: tuple[str, ...] = ()


@dataclass(slots=True)
class _Evidence:
    """config and tensors of a checkpoint, and what was found in them so far."""

    config: Mapping[str, Any]
    shapes: Shapes
    where: str
    decided: list[str] = field(default_factory=list)

    def shows(self, pattern: str, what: str) -> bool:
        """Whether a tensor's whole name fits; it is noted."""
        name = next((name for name in sorted(self.shapes) if re.fullmatch(pattern, name)), None)
        if name is not None:
            self.decided.append(f"tensor {name} {list(self.shapes[name])}: {what}")
        return name is not None

    def tagged(self) -> str | None:
        """The method that the configuration names, where it has a field for it."""
        tag = self.config.get(SPECULATORS)
        return str(tag) if tag else None

    @property
    def architecture(self) -> str:
        return architecture_of(self.config)

    def matrix(self, name: str) -> tuple[int, int] | None:
        """The shape of a tensor of two dimensions."""
        shape = self.shapes.get(name, ())
        return (shape[0], shape[1]) if len(shape) == 2 else None

    def drafter(self, methods: tuple[str, ...], dialect: str, known: Iterable[str]) -> Layout:
        form = re.compile("|".join(f"(?:{pattern})" for pattern in known))
        unknown = tuple(sorted(name for name in self.shapes if not form.fullmatch(name)))
        return Layout("drafter", methods[0], methods, dialect, tuple(self.decided), unknown)


def architecture_of(config: Mapping[str, Any]) -> str:
    """What the checkpoint calls itself; "" where it doesn't."""
    named = config.get("architectures")
    return str(named[0]) if named else ""


def resolve(config: Mapping[str, Any], shapes: Shapes, where: str) -> Layout:
    """What the checkpoint at `where` is. ConfigError, naming what was found, where no method here reads it."""
    check_fields(config, where)
    found = _Evidence(config, shapes, where)
    for pattern, what in UNREAD.items():
        if found.shows(pattern, what):
            raise ConfigError(f"{where} is {what}, by its {found.decided[0].split(':')[0]}; no method here reads it")
    readers: tuple[Callable[[_Evidence], Layout | None], ...] = (_whole, _medusa, _eagle3, _block, _eagle, _bare)
    layout = next((layout for reader in readers if (layout := reader(found)) is not None), None)
    if layout is None:
        names = sorted(shapes)
        raise ConfigError(
            f"{where} is neither a language model nor a drafter that is known here; its architecture is "
            f"{found.architecture or 'not named'}, its tensors are {', '.join(names[:5])}"
            f"{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        )
    _agree(layout, found)
    return layout


def check_method(method: str, layout: Layout, key: str, where: str) -> None:
    """ConfigError where a setting's method can't read this checkpoint. key: the setting, for the message."""
    if method not in layout.methods:
        raise ConfigError(
            f"{key} is {method!r}, but the checkpoint {where} is one of method {layout.method!r} "
            f"({layout.decided[0]}); expected {' or '.join(map(repr, layout.methods))}, or no method"
        )


def _agree(layout: Layout, found: _Evidence) -> None:
    tag = found.tagged()
    if tag is not None and layout.role == "drafter" and tag not in layout.methods:
        raise ConfigError(
            f"{found.where}: its config.json has {SPECULATORS} {tag!r}, but its tensors are those of method "
            f"{layout.method!r} ({layout.decided[0]}); config and weights belong to different drafters"
        )


def layer_count(config: Mapping[str, Any]) -> int:
    """Decoder layers by the configuration; 0 where it doesn't say."""
    dims = config.get("text_config") or config
    count = next((dims[name] for name in ("num_hidden_layers", "n_layer") if dims.get(name)), 0)
    return count if isinstance(count, int) else 0


def _layers(found: _Evidence, pattern: str) -> set[int]:
    return {int(m[1]) for name in found.shapes if (m := re.fullmatch(pattern, name))}


def _whole(found: _Evidence) -> Layout | None:
    """A language model, with what it carries for drafting; or modules for multi-token prediction alone."""
    mtp = next(
        (family for family, pattern in MTP.items() if found.shows(pattern, f"an MTP module of {family}")),
        None,
    )
    modules = _layers(found, MTP["deepseek_v3"])
    if modules:
        mtp = _nextn_family(found, modules)
    layers = _layers(found, WHOLE) - modules
    if not layers:
        return found.drafter(("mtp",), mtp, (MODULE, *OUTER)) if mtp else None
    merged = found.shows(MEDUSA["merged"][0], "Medusa heads inside of a language model")
    return _target(found, len(layers), mtp, merged)


def _bare(found: _Evidence) -> Layout | None:
    """A language model that was saved without its outer module."""
    layers = _layers(found, BARE)
    return _target(found, len(layers)) if layers and any(name in found.shapes for name in EMBEDDINGS) else None


def _target(found: _Evidence, layers: int, mtp: str | None = None, merged: bool = False) -> Layout:
    kind = found.config.get("model_type")
    found.decided.append(f"model_type {kind} and tensors of {layers} decoder layers: a language model")
    methods = (*(["mtp"] if mtp else []), *(["medusa"] if merged else []), "draft_model")
    dialect = mtp or ("merged" if merged else str(kind))
    unknown = tuple(name for name in sorted(found.shapes) if _is_strange(name, layer_count(found.config), methods))
    return Layout("target", methods[0], methods, dialect, tuple(found.decided), unknown)


def _is_strange(name: str, layers: int, methods: tuple[str, ...]) -> bool:
    """Whether a tensor is none of a language model's with so many layers, nor of the modules found in it."""
    if name.startswith(("mtp.", "model.mtp_layers.", "medusa_head.")):
        return False
    if m := re.fullmatch(f"{WHOLE}|{BARE}", name):
        return 0 < layers <= int(m[1] or m[2]) and "mtp" not in methods
    return not any(re.fullmatch(pattern, name) for pattern in OUTER)


def _nextn_family(found: _Evidence, modules: set[int]) -> str:
    """Who publishes modules under DeepSeek's names: by the model they came with."""
    if any(re.fullmatch(rf"model\.layers\.{min(modules)}\.final_layernorm\.weight", name) for name in found.shapes):
        return "hy3"
    kind = str(found.config.get("model_type"))
    return "glm4_moe" if kind.startswith("glm4_moe") else "deepseek_v3"


def _medusa(found: _Evidence) -> Layout | None:
    form = medusa_layout(found.shapes)
    if form is None or form == "merged":
        return None
    block, projection = MEDUSA[form]
    found.shows(block, "a residual block of a Medusa head")
    heads = {m[1] for name in found.shapes if (m := re.fullmatch(block, name))}
    found.decided.append(f"{len(heads)} heads, counted by their tensors")
    if not any(re.fullmatch(projection, name) for name in found.shapes):
        found.decided.append("no head has a projection of its own: the target's is used")
        form = "legacy"
    return found.drafter(("medusa",), form, (block, projection, *TOKEN_MAPS))


def medusa_layout(names: Iterable[str]) -> str | None:
    """Which of the layouts of `MEDUSA` the names have."""
    known = list(names)
    return next((key for key, (form, _) in MEDUSA.items() if any(re.fullmatch(form, name) for name in known)), None)


def _eagle3(found: _Evidence) -> Layout | None:
    prefix = "midlayer" if "midlayer.self_attn.q_proj.weight" in found.shapes else "layers.0"
    query, output = (found.matrix(f"{prefix}.self_attn.{part}_proj.weight") for part in "qo")
    if query is None or output is None or query[1] != 2 * output[0]:
        return None
    found.decided.append(
        f"tensor {prefix}.self_attn.q_proj.weight {list(query)} takes embedding and hidden state side by side: EAGLE-3"
    )
    if found.tagged():
        dialect = _because(found, "speculators", f"{SPECULATORS} {found.tagged()}")
    elif "target_layer_ids" in found.config:
        dialect = _because(found, "deepspec", "target_layer_ids")
    elif "Eagle3" in found.architecture or "eagle_config" in found.config:
        dialect = _because(found, "specforge", f"architecture {found.architecture}")
    else:
        dialect = "safeailab"
    return found.drafter(("eagle3",), dialect, EAGLE)


def _because(found: _Evidence, dialect: str, sign: str) -> str:
    found.decided.append(f"config.json has {sign}: dialect {dialect}")
    return dialect


def _block(found: _Evidence) -> Layout | None:
    there = (key for key, (fc, norm) in CONTEXTS.items() if found.matrix(fc) and norm in found.shapes)
    context = next(there, None)
    if context is None or "layers.0.self_attn.q_proj.weight" not in found.shapes:
        return None
    name = CONTEXTS[context][0]
    found.decided.append(f"tensor {name} {list(found.shapes[name])} and a norm after it: a block drafter's context")
    if found.shows(r"candidate_selector\.hidden_projection\.weight", "DFlash 2's candidate selector"):
        method, known = "dflash2", DFLASH2
    elif _is_dspark(found):
        method, known = "dspark", DSPARK
    else:
        method, known = "dflash", DFLASH
    if found.tagged() or "transformer_layer_config" in found.config:
        dialect = _because(found, "speculators", f"{SPECULATORS} {found.tagged()}")
    elif context != "own":
        dialect = context
    else:
        dialect = "deepspec" if method == "dspark" else "z-lab"
    return found.drafter((method,), dialect, known)


def _is_dspark(found: _Evidence) -> bool:
    """Its heads may both be switched off; then only the configuration tells it from DFlash."""
    if found.shows(r"markov_head\.markov_w1\.weight", "DSpark's Markov head"):
        return True
    if found.shows(r"confidence_head\.proj\.weight", "DSpark's confidence head"):
        return True
    signs = [
        f"architecture {found.architecture}" * ("DSpark" in found.architecture),
        "dspark_config" * ("dspark_config" in found.config),
        f"{SPECULATORS} dspark" * (found.tagged() == "dspark"),
    ]
    sign = next((sign for sign in signs if sign), None)
    if sign:
        found.decided.append(f"config.json has {sign}: DSpark without its heads")
    return sign is not None


def _eagle(found: _Evidence) -> Layout | None:
    fc, query = found.matrix("fc.weight"), found.matrix("layers.0.self_attn.q_proj.weight")
    if fc is None or query is None or fc[1] != 2 * fc[0]:
        return None
    found.decided.append(
        f"tensor fc.weight {list(fc)} joins embedding and hidden state before the first layer: EAGLE 1 and 2"
    )
    return found.drafter(("eagle", "eagle2"), "safeailab", EAGLE)

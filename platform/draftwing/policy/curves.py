"""Step-cost curves as they come in a JSON file: what was measured, or derived, for one target on one machine."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwing.errors import ConfigError


class Cell(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class VerifyCell(Cell):
    """One forward. rows: verified in all. context: cached tokens read, summed over the batch."""

    batch: int = Field(ge=1)
    rows: int = Field(ge=1)
    context: int = Field(ge=0)
    verify_ms: float = Field(gt=0)


class BatchCell(Cell):
    """A time by sequences: of one draft level, or of a step's overhead."""

    batch: int = Field(ge=1)
    ms: float = Field(ge=0)


class TokensCell(Cell):
    """What a drafter takes to run so many tokens that it missed."""

    tokens: int = Field(ge=1)
    ms: float = Field(ge=0)


class Assumptions(BaseModel):
    """What shapes the curve; other keys say where it comes from. captured: row counts that a forward is padded to."""

    model_config = ConfigDict(extra="allow", frozen=True)

    captured: tuple[int, ...] = ()
    experts: int = Field(default=0, ge=0)
    active: int = Field(default=0, ge=0)
    rho: float = Field(default=1.0, gt=0, le=1)


class CostCurves(Cell):
    """One file. draft_step_ms: one level of a drafter, or the one call of a block drafter."""

    name: str
    kind: str = ""
    how: str = ""
    assumptions: Assumptions = Assumptions()
    verify: tuple[VerifyCell, ...] = Field(min_length=1)
    draft_step_ms: tuple[BatchCell, ...] = Field(min_length=1)
    overhead_ms: tuple[BatchCell, ...] = ()
    catch_up_ms: tuple[TokensCell, ...] = ()
    transport_ms: float = Field(default=0.0, ge=0)


def read_curves(path: Path) -> CostCurves:
    """ConfigError names the file, the field and what is wrong with it."""
    try:
        return CostCurves.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cost curves {path} can't be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the document"
        raise ConfigError(f"cost curves {path}: {field}: {first['msg']}") from None

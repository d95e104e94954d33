"""What is in a torch archive, told without torch: the same as torch finds, and nothing is ever run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwing.checkpoints.archive_header import read_archive_header
from draftwing.errors import ConfigError
from tests.conftest import ROOT

ARCHIVES = sorted(path for path in (ROOT / "tests" / "goldens").glob("*/drafter/*") if path.suffix in (".bin", ".pt"))
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def write(path: Path, held: object, **options: bool) -> Path:
    getattr(torch, "save")(held, path, **options)  # noqa: B009  files as others publish them
    return path


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.parent.parent.name)
def test_a_golden_archive_is_as_torch_reads_it(path: Path) -> None:
    held = torch.load(path, weights_only=True)
    found = read_archive_header(path)
    assert found is not None
    assert {name: t.shape for name, t in found.items()} == {name: tuple(t.shape) for name, t in held.items()}
    assert {name: t.dtype for name, t in found.items()} == {name: NAMES[t.dtype] for name, t in held.items()}
    assert all(found[name].elements == tensor.numel() for name, tensor in held.items())


@pytest.mark.parametrize("dtype", NAMES)
def test_each_type_has_its_name(dtype: torch.dtype, tmp_path: Path) -> None:
    found = read_archive_header(write(tmp_path / "a.pt", {"x": torch.zeros(3, 2, dtype=dtype)}))
    assert found is not None
    assert (found["x"].dtype, found["x"].shape) == (NAMES[dtype], (3, 2))


def test_views_parameters_and_many_tensors(tmp_path: Path) -> None:
    shared = torch.arange(12.0).reshape(3, 4)
    held = {"t": shared.T, "part": shared[1], "p": torch.nn.Parameter(torch.ones(2)), "one": torch.tensor(1.0)}
    held |= {f"layers.{i}.weight": shared for i in range(300)}
    found = read_archive_header(write(tmp_path / "a.pt", held))
    assert found is not None
    assert {name: t.shape for name, t in found.items()} == {name: tuple(t.shape) for name, t in held.items()}
    state = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)).state_dict()
    again = read_archive_header(write(tmp_path / "b.pt", state))
    assert again is not None
    assert list(again) == list(state)


def test_an_archive_of_before_zip_files_is_left_to_torch(tmp_path: Path) -> None:
    old = write(tmp_path / "a.bin", {"x": torch.ones(2)}, _use_new_zipfile_serialization=False)
    assert read_archive_header(old) is None


@pytest.mark.parametrize("held", [{"x": Path("x")}, [torch.ones(1)], {"x": {"y": torch.ones(1)}}, {"lr": 1}, Path("x")])
def test_other_things_than_tensors_are_refused(held: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.pt"):
        read_archive_header(write(tmp_path / "a.pt", held))


def test_damage_is_one_line(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.pt", {"x": torch.ones(64)}).read_bytes()
    at = whole.index(b"_rebuild_tensor_v2")
    for broken in (whole[:at] + b"_rebuild_tensor_v9" + whole[at + 18 :], whole.replace(b"data.pkl", b"data.pkm")):
        (tmp_path / "b.pt").write_bytes(broken)
        with pytest.raises(ConfigError, match=r"b\.pt can't be read as tensors alone") as error:
            read_archive_header(tmp_path / "b.pt")
        assert "\n" not in str(error.value)

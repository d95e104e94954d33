"""The demo model from its package: converted once into the cache, equal to what transformers reads from GGUF."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from draftwing.checkpoints.hub import DEMO_MODEL, DEMO_PACKAGE, resolve_model
from draftwing.checkpoints.model_folder import ModelFolder
from draftwing.checkpoints.tokenizer import TextTokenizer, load_tokenizer
from draftwing.config_models import ModelConfig
from draftwing.engine.loading import LoadedTarget, load_target
from tests.conftest import require

MODULE = DEMO_PACKAGE.replace("-", "_")


@pytest.fixture(scope="module")
def gemma() -> ModelFolder:
    """In the user's cache, as `make demo` uses it: converted by whichever needs it first."""
    require(DEMO_PACKAGE, module=MODULE)
    return resolve_model(ModelConfig(path=DEMO_MODEL))


@pytest.fixture(scope="module")
def target(gemma: ModelFolder) -> LoadedTarget:
    return load_target(gemma, device="cpu", attn_implementation="eager")


@pytest.fixture(scope="module")
def tokenizer(gemma: ModelFolder) -> TextTokenizer:
    loaded = load_tokenizer(gemma)
    assert loaded is not None
    return loaded


def test_what_was_converted(gemma: ModelFolder, target: LoadedTarget) -> None:
    assert gemma.source == DEMO_MODEL
    assert (target.vocab_size, target.context_length, target.eos_token_ids) == (262144, 32768, (1,))
    assert target.dtype == torch.float32
    record = json.loads((gemma.path / "draftwing.json").read_text())
    assert record["source"].endswith(".gguf")
    assert not list(gemma.path.glob("*.gguf"))
    assert {path.name for path in gemma.path.iterdir()} >= {"config.json", "generation_config.json", "tokenizer.json"}


def test_second_use_takes_no_time(gemma: ModelFolder) -> None:
    lines: list[str] = []
    assert resolve_model(ModelConfig(path=DEMO_MODEL), lines.append) == gemma
    assert not lines


def test_it_continues_a_text_sensibly(target: LoadedTarget, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("The quick brown fox jumps over the lazy")
    assert ids[0] == 2
    with torch.inference_mode():
        best: Any = target.model(torch.tensor([ids])).logits[0, -1].argmax()
    assert tokenizer.token_text(int(best)) == " dog"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from importlib import import_module

    path = tmp_path_factory.mktemp("gguf") / "gemma.gguf"
    import_module(MODULE).assemble(path)
    yield path
    path.unlink()


@pytest.mark.slow
def test_weights_are_those_that_transformers_reads(gemma: ModelFolder, gguf: Path) -> None:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    direct = auto.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).state_dict()
    with safe_open(gemma.path / "model.safetensors", framework="pt") as stored:
        names = set(stored.keys())
        assert direct.keys() - names == {"lm_head.weight"}
        assert all(torch.equal(stored.get_tensor(name), direct[name]) for name in names)
    assert torch.equal(direct["lm_head.weight"], direct["model.embed_tokens.weight"])


@pytest.mark.slow
def test_tokenizer_is_the_one_that_transformers_reads(gemma: ModelFolder, gguf: Path, tokenizer: TextTokenizer) -> None:
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    direct = auto.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = auto.from_pretrained(gemma.path)
    assert type(loaded) is type(direct)
    assert json.loads(loaded.backend_tokenizer.to_str()) == json.loads(direct.backend_tokenizer.to_str())
    for text in (
        "Hello world",
        "  two\n\n\tspaces",
        "<start_of_turn>user\nhi<end_of_turn>",
        "caf\u00e9 \U0001f389",
        "",
    ):
        assert tokenizer.encode(text) == direct(text).input_ids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "own", "peak"),
    [
        ("float32", 0.3, 1.3),  # mapped from the file: of its own the process holds next to nothing
        ("bfloat16", 0.8, 1.9),  # half of what is stored, beside the file that it is read from
    ],
)
def test_memory_of_loading(gemma: ModelFolder, dtype: str, own: float, peak: float) -> None:
    """Shares of the stored weights that loading adds to a process. own: not backed by the file, once it is done."""
    code = f"""
from pathlib import Path
from draftwing.config_models import ModelConfig
from draftwing.checkpoints.hub import resolve_model
from draftwing.engine.loading import load_target

def kilobytes(*names):
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) for name in names]

folder = resolve_model(ModelConfig(path={str(gemma.path)!r}))
before = kilobytes("RssAnon", "VmHWM")
target = load_target(folder, device="cpu", dtype={dtype!r})
for weights in target.model.parameters():
    weights.view(-1)[::512].sum()  # every page has been read
print(*[after - start for after, start in zip(kilobytes("RssAnon", "VmHWM"), before)])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    added_own, added_peak = (1024 * int(word) for word in done.stdout.split())
    stored = (gemma.path / "model.safetensors").stat().st_size
    assert added_own <= own * stored
    assert added_peak <= peak * stored

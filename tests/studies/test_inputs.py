"""Random normalised tokens: any length, reproducible, and prefixes of longer draws."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaModel

from howsmooth.attention import abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian
from howsmooth.models import AttentionFile, load
from howsmooth.questions.inputs import NormalisedInputs
from howsmooth.spectral import plan
from howsmooth.studies import measure, resolve, spec_of
from howsmooth.studies.plan import solve_memory
from howsmooth.texts.corpora import Corpus
from tests.tolerances import FLOAT32, at_most, close

D = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Layers 0 and 2 of a narrow GPT-2 with random weights."""
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "ln_1.weight": (D,),
        "ln_1.bias": (D,),
        "attn.c_attn.weight": (D, 3 * D),
        "attn.c_attn.bias": (3 * D,),
        "attn.c_proj.weight": (D, D),
        "attn.c_proj.bias": (D,),
    }
    tensors = {
        f"h.{layer}.{key}": 0.5 * torch.randn(shape, generator=generator)
        for layer in (0, 2)
        for key, shape in shapes.items()
    }
    path = tmp_path_factory.mktemp("weights") / "attention.safetensors"
    save_file(tensors, path)
    return path


@pytest.fixture(scope="module")
def file(path):
    return AttentionFile(path, dtype=torch.float64)


def drawn_spec(model, **changes):
    """Return a spec with random tokens, resolved against the model."""
    return resolve(
        model,
        None,
        spec_of({"inputs": "normalised", "layers": [2], "lengths": [20], "samples": 1, "tol": 1e-6, **changes}),
    )


def test_the_constant_is_the_norm_of_the_dense_jacobian(file):
    records = list(measure(file, None, drawn_spec(file, layers="all", lengths=[9], samples=2, seed=5)))
    assert [(r["layer"], r["sample"]) for r in records] == [(0, 0), (2, 0), (0, 1), (2, 1)]
    assert len({r["value"] for r in records}) == 4
    for record in records:
        x = NormalisedInputs(file, 5).draw(9, record["sample"], record["layer"])
        f = file.attention(record["layer"])
        truth = torch.linalg.matrix_norm(torch.func.jacrev(f)(x).reshape(9 * D, 9 * D), 2).item()
        assert at_most(record["lower"], truth, tol=1e-10) and at_most(truth, record["upper"], tol=1e-10)
        assert record["value"] == pytest.approx(truth, rel=1e-6)
        assert (record["inputs"], record["text_sha256"], record["extrapolated"]) == ("normalised", None, False)
        assert record["width"] == pytest.approx((record["upper"] - record["lower"]) / record["value"])
        assert "seed 5" in record["drawn"] and record["source"]["sha256"] == file.source["sha256"]


def test_tokens_are_normalised_by_the_layers_normalisation(file):
    x = NormalisedInputs(file).draw(50, 0, 2)
    norm = file.normalisation(2)
    z = (x - norm.bias) / norm.gain
    assert z.mean(-1).abs().max() < 1e-5 and (z.square().mean(-1) - 1).abs().max() < 1e-3


def test_shorter_draws_are_prefixes_of_longer_ones(file):
    """Under a causal mask the constant then cannot decrease: the shorter Jacobian is a submatrix of the longer."""
    inputs = NormalisedInputs(file, 3)
    long = inputs.draw(1500, 0, 0)
    for n in (1, 7, 1024, 1025):
        assert close(inputs.draw(n, 0, 0), long[:n], FLOAT32)
    assert not close(inputs.draw(7, 1, 0), long[:7], FLOAT32)
    assert not close(NormalisedInputs(file, 4).draw(7, 0, 0), long[:7], FLOAT32)
    values = [r["value"] for r in measure(file, None, drawn_spec(file, lengths=[4, 8, 16, 32], seed=3))]
    assert at_most(*values, tol=1e-6)


def test_lengths_beyond_the_positions_are_extrapolated(file):
    model = load(
        LlamaModel(
            LlamaConfig(
                vocab_size=8,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=32,
            )
        ).eval()
    )
    near, far = model.attention(0, 16), model.attention(0, model.positions + 8, extrapolate=True)
    assert close(near.rotary.cos, far.rotary.cos[:16], FLOAT32)
    with pytest.raises(InputError, match="length from 1 to"):
        model.attention(0, model.positions + 8)
    assert NormalisedInputs(model).length_fields(model.positions + 1) == {"extrapolated": True}
    assert NormalisedInputs(model).length_fields(model.positions) == {"extrapolated": False}
    assert NormalisedInputs(file).length_fields(1025) == {"extrapolated": True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_memory_is_planned_without_tokens(path, dtype):
    """The plan from shapes alone equals the solver's own plan."""
    file = AttentionFile(path, dtype=dtype)
    inputs = NormalisedInputs(file)
    spec = drawn_spec(file, lengths=[40])
    f = file.attention(2).to(torch.float32 if dtype == torch.bfloat16 else dtype)
    truth = jacobian(f, inputs.draw(40, 0, 2).to(f.dtype))
    said = abstract_jacobian(file.attention(2), 40)
    for name in ("shape", "workspace", "held", "reference_bytes", "reference_itemsize", "dtype"):
        assert getattr(said, name) == getattr(truth, name)
    assert solve_memory(file, inputs, spec, 2) == plan(truth, tol=spec.tol)


def test_heads_and_steps(file):
    spec = drawn_spec(file, heads=[0, 11], stop="residual", max_steps=2, tol=1e-9, tokens="no-first")
    first, second = measure(file, None, spec)
    assert not close(first["value"], second["value"], FLOAT32)
    assert first["steps"] == 2 and first["status"] == "step limit"
    assert (first["stop"], first["max_steps"]) == ("residual", 2)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"map": "block"}, "expected a text for the map block"),
        ({"texts": ["river.txt"]}, 'expected a text only with inputs = "text"'),
        ({"layers": [1]}, "among 0, 2, got 1"),
        ({"lengths": [0]}, "lengths.0: expected .*, got 0"),
        ({"stop": "soon"}, "stop: expected 'interval' or 'residual'"),
        ({"max_steps": 0}, "max_steps: "),
        ({"lengths": [1], "tokens": "no-first"}, "token left to perturb"),
    ],
)
def test_invalid_specs_are_refused(file, change, words):
    with pytest.raises(InputError, match=words):
        drawn_spec(file, **change)


def test_texts_longer_than_the_positions_are_refused(tiny):
    model = load(tiny)
    with pytest.raises(InputError, match=r"at most 32 tokens.*--inputs normalised"):
        resolve(model, Corpus("t", ("the of and " * 50,)), spec_of({"lengths": [33], "samples": 1}))
    (record,) = measure(model, None, drawn_spec(model, layers=[1], lengths=[33], tol=1e-2))
    assert record["extrapolated"] and record["status"] == "converged"

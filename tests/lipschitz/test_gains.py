import pytest
import torch

from howsmooth import InputError, NotConverged, local_lipschitz, token_gains
from howsmooth.attention import reference
from howsmooth.lipschitz import gains
from tests.attention.cases import layer, normal
from tests.tolerances import at_most


@pytest.fixture(params=[16, 3], ids=["together", "in parts"])
def _parts(request, monkeypatch):
    monkeypatch.setattr(gains, "TOKENS_PER_BATCH", request.param)


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("of", ["input", "output"])
@pytest.mark.parametrize("kind", ["layer", "callable", "float32"])
def test_gains_are_the_norms_of_the_blocks_of_each_token(of, kind):
    f, x = layer("causal"), normal(50, 4, 6)
    blocks = reference.jacobian(f, x).view(4, 5, 4, 6)
    parts = [blocks[:, :, j].reshape(20, 6) if of == "input" else blocks[j].reshape(5, 24) for j in range(4)]
    truth = torch.stack([torch.linalg.svdvals(part)[0] for part in parts])
    if kind == "float32":
        f, x = f.converted(dtype=torch.float32), x.float()
    found = token_gains((lambda y: f(y)) if kind == "callable" else f, x, of=of, tol=1e-3)
    slack = 1e-6 if kind == "float32" else 1e-12  # the float32 weights are rounded ones
    assert at_most(found.lower, truth * (1 + slack)) and at_most(truth * (1 - slack), found.upper)
    assert at_most(found.upper - found.lower, 1.1e-3 * found.value)
    assert found.largest == float(found.value.max())  # exact: the largest entry of the same tensor


def test_no_gain_exceeds_the_norm_of_the_jacobian():
    f, x = layer("two heads"), normal(50, 4, 6)
    whole = local_lipschitz(f, x)
    for of in ("input", "output"):
        assert at_most(token_gains(f, x, of=of).lower, whole.upper)


def test_bad_input():
    f = layer("two heads")
    with pytest.raises(InputError, match='of="input"'):
        token_gains(f, normal(1, 4, 6), of="both")
    with pytest.raises(InputError, match=r"\(n, d\)"):
        token_gains(f, normal(1, 2, 4, 6))
    with pytest.raises(InputError, match=r"\(4, width\)"):
        token_gains(lambda x: x.sum(), normal(1, 4, 6), of="output")
    with pytest.raises(InputError, match=r"got \(2, 4, 6\)"):
        token_gains(lambda x: torch.stack([x, 5 * x]), normal(1, 4, 6), of="output")


def test_input_gains_for_outputs_of_any_shape():
    found = token_gains(lambda x: torch.stack([x, 5 * x]), normal(1, 4, 6))
    assert torch.allclose(found.value, torch.full((4,), 26**0.5, dtype=torch.float64))
    assert torch.allclose(token_gains(lambda x: x.mean(0), normal(1, 4, 6)).value, torch.full((4,), 0.25).double())


def test_half_precision_and_partial_results():
    f, x = layer("two heads").to(torch.bfloat16), normal(50, 4, 6).bfloat16()
    assert token_gains(f, x).status == ["converged"] * 4
    with pytest.raises(NotConverged, match="4 tokens") as caught:
        token_gains(f, x, tol=1e-9)
    assert caught.value.partial.value.shape == (4,) and "precision limit" in caught.value.partial.status

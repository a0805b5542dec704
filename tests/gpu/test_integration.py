"""The kernels through the public functions on a GPU: attend, the Jacobian, local_lipschitz, transformers models."""

import copy
import math

import pytest
import torch

from tests import reasons

if not torch.cuda.is_available():
    pytest.skip(reasons.GPU, allow_module_level=True)
pytest.importorskip("triton", reason=reasons.TRITON)

import howsmooth
from howsmooth import SelfAttention, attend, kernels, local_lipschitz
from howsmooth.attention import backend
from howsmooth.attention.op import pattern_of
from howsmooth.lipschitz import argmax_share
from howsmooth.lipschitz.large_radius import largest_probabilities
from tests.attention.cases import normal
from tests.gpu.test_gpu import dense, derivatives, draw, error
from tests.tolerances import at_most, less

DEVICE = "cuda"
# Errors of values and first derivatives, and of second ones: bf16 keeps 8 bits of each factor, and those have more.
ALLOWED = {torch.bfloat16: (1e-2, 3e-2), torch.float32: (1e-5, 5e-5)}
WIDTH = 32


@pytest.fixture
def used(monkeypatch):
    """Count the launches of each kernel."""
    count = dict(forward=0, jvp=0, vjp=0)

    def counted(name, launch):
        def call(*args, **options):
            count[name] += 1
            return launch(*args, **options)

        return call

    for name in count:
        monkeypatch.setattr(kernels, name, counted(name, getattr(kernels, name)))
    return count


def f(q, k, v):
    return attend(q, k, v, causal=True)


def g64(q, k, v):
    return dense(q, k, v, scale=WIDTH**-0.5, causal=True)


def problem(dtype):
    at, tangents, g = draw(1, 2, 4, 2, 70, 70, WIDTH, WIDTH, dtype)
    return tuple(at), tuple(tangents), g


def double(*tensors):
    return tuple(t.double() for t in tensors)


def assert_near(actual, truth, allowed):
    for a, b in zip(actual, truth, strict=True):
        assert error(a, b) <= allowed, f"{error(a, b):.2e}, allowed {allowed:.0e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_which_dtypes_the_kernels_support(dtype):
    at, _, _ = problem(dtype)
    why = backend.unsupported_reason(*at, pattern_of(*at, None, True, None, None, None))
    assert why is None if dtype != torch.float64 else "float64" in why


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
def test_first_derivatives_by_every_transform(dtype, used):
    at, tangents, g = problem(dtype)
    o64, do64, *pulled64 = derivatives(double(*at), double(*tangents), g.double(), scale=WIDTH**-0.5, causal=True)[:5]
    first, _ = ALLOWED[dtype]

    assert_near(torch.func.jvp(f, at, tangents), (o64, do64), first)
    assert used["forward"] and used["jvp"] and not used["vjp"]
    o, pull = torch.func.vjp(f, *at)
    assert_near((o, *pull(g)), (o64, *pulled64), first)
    assert used["vjp"]

    leaves = [t.clone().requires_grad_() for t in at]
    assert_near(torch.autograd.grad(f(*leaves), leaves, g), pulled64, first)
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(x, t) for x, t in zip(at, tangents, strict=True)]
        assert_near(torch.autograd.forward_ad.unpack_dual(f(*duals)), (o64, do64), first)

    launches = used["forward"]
    assert_near((torch.func.vmap(f)(*at),), (o64,), first)
    assert used["forward"] == launches + 1  # all in one
    o, push = torch.func.linearize(f, *at)  # computed in blocks, which PyTorch can linearise
    assert_near((o, push(*tangents)), (o64, do64), first)


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
def test_second_derivatives(dtype, used):
    at, tangents, g = problem(dtype)
    _, second = ALLOWED[dtype]

    def reverse_over_reverse(f, at, tangents, g):
        leaves = [t.clone().requires_grad_() for t in at]
        pulled = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        return torch.autograd.grad(sum((a * t).sum() for a, t in zip(pulled, tangents, strict=True)), leaves)

    def forward_over_reverse(f, at, tangents, g):
        return torch.func.jvp(lambda *x: torch.func.vjp(f, *x)[1](g), at, tangents)[1]

    truth = reverse_over_reverse(g64, double(*at), double(*tangents), g.double())
    for second_derivative in (reverse_over_reverse, forward_over_reverse):
        assert_near(second_derivative(f, at, tangents, g), truth, second)
    assert used["forward"] and used["vjp"]


def layer(dtype=torch.float32, **options):
    """Return a layer with d = 24, four heads of width 6 on two key heads, and scores of moderate size."""
    shapes = dict(wq=(24, 24), wk=(12, 24), wv=(12, 24), wo=(24, 24))
    weights = {name: normal(i, *shape).to(dtype) / 24**0.5 for i, (name, shape) in enumerate(shapes.items())}
    return SelfAttention(**weights, heads=4, kv_heads=2, **options), normal(9, 60, 24).to(dtype)


@pytest.mark.parametrize(("product_dtype", "allowed"), [(None, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_the_jacobian_and_its_transpose_are_accurate(product_dtype, allowed, used):
    f, x = layer(causal=True)
    operator = f.converted(device=DEVICE).jacobian(x.to(DEVICE), product_dtype=product_dtype)
    u, v = (normal(i, 60 * 24).float().to(DEVICE) for i in (20, 21))
    pushed, pulled = operator.matvec(v), operator.rmatvec(u)
    assert used["jvp"] == used["vjp"] == 1 and pushed.dtype == pulled.dtype == torch.float32
    gap = float(u.double() @ pushed.double() - pulled.double() @ v.double())
    assert at_most(abs(gap), allowed * float(u.norm() * pushed.norm()))
    exact = f.converted(dtype=torch.float64).jacobian(x.double())
    assert_near(
        (pushed, pulled, operator.image),
        (exact.matvec(v.double().cpu()).to(DEVICE), exact.rmatvec(u.double().cpu()).to(DEVICE), exact.image.to(DEVICE)),
        allowed,
    )


def test_gram_products_are_accurate(used):
    f, x = layer(causal=True)
    operator, v = f.converted(device=DEVICE).jacobian(x.to(DEVICE)), normal(21, 60 * 24)
    image, factor = operator.gram(v.float().to(DEVICE))
    assert operator.has_gram and used["jvp"] == used["vjp"] == 1
    exact = f.converted(dtype=torch.float64).jacobian(x.double())
    assert_near((factor * image.double(),), (exact.rmatvec(exact.matvec(v)).to(DEVICE),), 1e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_local_lipschitz_agrees_with_the_cpu(causal, used):
    f, x = layer(causal=causal)
    truth = float(torch.linalg.matrix_norm(f.converted(dtype=torch.float64).jacobian(x.double()).dense(), 2))
    f_gpu, x_gpu = f.converted(device=DEVICE), x.to(DEVICE)
    slow, fast = local_lipschitz(f, x), local_lipschitz(f_gpu, x_gpu)
    assert used["forward"] and used["jvp"] and used["vjp"]
    assert fast.status == slow.status == "converged"
    assert at_most(abs(fast.value - slow.value), 1e-3 * truth)

    unmeasured = local_lipschitz(f_gpu, x_gpu, product_dtype=torch.float32)
    rounded = local_lipschitz(f_gpu, x_gpu, product_dtype=torch.bfloat16, strict=False)
    for found in (slow, fast, unmeasured, rounded):
        assert at_most(found.lower, truth, found.upper) and less(found.upper, math.inf)

    early = local_lipschitz(f_gpu, x_gpu, product_dtype=torch.bfloat16, stop="residual", tol=0.1)
    assert early.status == "lower bound only" and early.upper is None
    assert at_most(0.9 * truth, early.lower, truth)


@pytest.mark.parametrize("product_dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_half_precision_is_certified(causal, product_dtype):
    """In half precision or, where the gap is too small, in float32; float16 rounds vectors of any size alike."""
    f, x = layer(causal=causal)
    truth = float(torch.linalg.matrix_norm(f.converted(dtype=torch.float64).jacobian(x.double()).dense(), 2))
    f, x = f.converted(device=DEVICE), x.to(DEVICE)
    found = local_lipschitz(f, x, product_dtype=product_dtype, tol=1e-2)
    assert found.status == "converged" and at_most(found.lower, truth, found.upper)
    operator, v = f.jacobian(x, product_dtype=product_dtype), normal(21, 60 * 24).float().to(DEVICE)
    for product in (operator.matvec, operator.rmatvec):
        assert_near((2.0**20 * product(2.0**-20 * v),), (product(v).double(),), 1e-3)


def test_a_transformers_model_in_bf16(used):
    pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)
    from tests.models.tiny import tiny_network

    howsmooth.register()
    network = tiny_network("gpt2")

    def last_state(implementation, dtype):
        duplicate = type(network)._from_config(copy.deepcopy(network.config), attn_implementation=implementation)
        duplicate.load_state_dict(network.state_dict())
        duplicate = duplicate.to(device=DEVICE, dtype=dtype).eval()
        tokens = torch.randint(800, (2, 40), generator=torch.Generator().manual_seed(0)).to(DEVICE)
        with torch.no_grad():
            return duplicate(tokens, use_cache=False).last_hidden_state

    truth = last_state("eager", torch.float64)
    theirs, ours = (error(last_state(name, torch.bfloat16), truth) for name in ("eager", "howsmooth"))
    assert used["forward"] == 3  # one for each layer
    assert ours <= 2 * theirs < 0.5


def test_largest_probabilities_agree_with_the_cpu():
    """The kernels form no probabilities: these are computed in blocks, also where kernels compute the derivative."""
    f, x = layer(causal=True)
    f_gpu, x_gpu = f.converted(device=DEVICE), x.to(DEVICE)
    assert isinstance(f_gpu.jacobian(x_gpu).linearised, backend.FusedLinearisation)
    found, truth = (
        largest_probabilities(f_gpu, x_gpu),
        largest_probabilities(f.converted(dtype=torch.float64), x.double()),
    )
    assert at_most(float((found.cpu().double() - truth).abs().max()), 1e-3)
    assert at_most(float((argmax_share(f_gpu, x_gpu).cpu() - argmax_share(f, x)).abs().max()), 1e-2)

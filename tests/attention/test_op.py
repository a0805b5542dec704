"""`attend` against the dense reference: values, and derivatives by every mode of PyTorch."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

from howsmooth import InputError, attend
from howsmooth.attention import blockwise, reference
from tests.attention.cases import LAYOUTS, PATTERNS, normal
from tests.tolerances import FLOAT32, assert_close, close

PADDINGS = {"none": None, "some": [True, False, True, True, False, True, True, True, False], "all": [False] * 9}


def qkv(layout, dtype=torch.float64):
    h, hkv, n, m, k, w = layout
    return normal(1, h, n, k, dtype=dtype), normal(2, hkv, m, k, dtype=dtype), normal(3, hkv, m, w, dtype=dtype)


def mask_of(padding, keys):
    return None if padding is None else torch.tensor(padding[:keys])


@pytest.fixture(params=[1 << 20, 1], ids=["one block", "a block per query"])
def block_scores(request, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", request.param)


@pytest.mark.parametrize("size", [1e3, 1e5])
def test_a_key_with_all_the_weight_of_a_row_leaves_no_rounding_errors_in_the_derivative(size):
    """Tokens far apart attend to themselves only: terms of the size of q k v cancel, and do = dv."""
    x = (2 * size) ** 0.5 * torch.eye(4)[None]
    tangents = tuple(normal(i, *x.shape, dtype=torch.float32) for i in range(3))
    _o, do = torch.func.jvp(attend, (x, x, x), tangents)
    assert_close(do, tangents[2], 1e-6)
    pulled = torch.func.vjp(attend, x, x, x)[1](tangents[0])
    for found, want in zip(pulled, (torch.zeros_like(x), torch.zeros_like(x), tangents[0]), strict=True):
        assert_close(found, want, 1e-6)


@pytest.mark.usefixtures("block_scores")
@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_value_jvp_and_vjp_equal_the_dense_reference(pattern, layout, padding):
    at = qkv(layout)
    options = pattern | {"padding": mask_of(padding, layout[3])}
    tangents = [normal(4 + i, *t.shape) for i, t in enumerate(at)]
    o, do = torch.func.jvp(lambda *t: attend(*t, **options), at, tuple(tangents))
    assert_close(o, reference.forward(*at, **options))
    assert_close(do, reference.jvp(*at, *tangents, **options))
    g = normal(7, *o.shape)
    for actual, expected in zip(
        torch.func.vjp(lambda *t: attend(*t, **options), *at)[1](g), reference.vjp(*at, g, **options), strict=True
    ):
        assert_close(actual, expected)


@pytest.mark.usefixtures("block_scores")
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_gradcheck_and_gradgradcheck_in_both_modes(pattern):
    at = [t.requires_grad_() for t in qkv((2, 1, 4, 4, 2, 3))]
    padding = torch.tensor([True, False, True, True])
    for options in (pattern, pattern | {"padding": padding}):

        def f(*t, options=options):
            return attend(*t, **options)

        assert torch.autograd.gradcheck(f, at, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, at, check_fwd_over_rev=True)


TRANSFORMS = {
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "reverse over reverse": lambda f: torch.func.jacrev(torch.func.jacrev(f)),
    "forward over reverse": lambda f: torch.func.jacfwd(torch.func.jacrev(f)),
    "reverse over forward": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    "vmap": lambda f: lambda x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
    "vmap of vmap": lambda f: lambda x: torch.func.vmap(torch.func.vmap(f))(torch.stack([x, 2 * x])[None]),
    "vmap over a later axis": lambda f: lambda x: torch.func.vmap(f, in_dims=2)(torch.stack([x, 2 * x], 2)),
    "jacrev of vmap": lambda f: lambda x: torch.func.jacrev(torch.func.vmap(f))(torch.stack([x, 2 * x])),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_function_transforms_agree_with_the_reference(pattern, transform):
    x = normal(5, 2, 3, 2)
    fast, slow = (lambda t, op=op: op(t, t.sin(), t.cos(), **pattern) for op in (attend, reference.forward))
    assert_close(transform(fast)(x), transform(slow)(x))


def test_vmap_over_padding():
    q, k, v = qkv((2, 2, 4, 4, 3, 3))
    paddings = torch.tensor([[True, True, False, True], [True, False, False, False]])
    together = torch.func.vmap(lambda p: attend(q, k, v, padding=p))(paddings)
    assert_close(together, torch.stack([reference.forward(q, k, v, padding=p) for p in paddings]))


def test_forward_ad_without_torch_func():
    x, t = normal(5, 2, 4, 3), normal(6, 2, 4, 3)
    expected = torch.func.jvp(lambda y: reference.forward(y, y, y, causal=True), (x,), (t,))[1]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        assert_close(forward_ad.unpack_dual(attend(dual, dual, dual, causal=True)).tangent, expected)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_linearize_is_right_at_every_call(pattern):
    x = normal(5, 2, 4, 3)
    _, linear = torch.func.linearize(lambda y: attend(y, y.sin(), y.cos(), **pattern), x)
    for seed in (6, 7):  # in-place writes into folded constants would corrupt the second call
        t = normal(seed, 2, 4, 3)
        slow = torch.func.jvp(lambda y: reference.forward(y, y.sin(), y.cos(), **pattern), (x,), (t,))[1]
        assert_close(linear(t), slow)


def test_jacobian_vector_product_from_a_cached_graph():
    at = [t.requires_grad_() for t in qkv((2, 1, 5, 5, 3, 4))]
    o = attend(*at, causal=True)
    g = torch.zeros_like(o, requires_grad=True)
    pulled_back = torch.autograd.grad(o, at, g, create_graph=True)
    tangents = [normal(20 + i, *t.shape) for i, t in enumerate(at)]
    (do,) = torch.autograd.grad(pulled_back, g, tangents)
    assert_close(do, reference.jvp(*(t.detach() for t in at), *tangents, causal=True))


def test_the_largest_singular_value_can_be_differentiated():
    x = normal(5, 1, 3, 2)

    def sigma(op):
        return lambda t: torch.linalg.svdvals(
            torch.func.jacrev(lambda y: op(y, y.sin(), y, causal=True))(t).reshape(6, 6)
        )[0]

    assert_close(torch.func.grad(sigma(attend))(x), torch.func.grad(sigma(reference.forward))(x))


def test_nested_forward_mode_and_third_derivatives_raise():
    def f(y):
        return attend(y, y, y)

    x = normal(5, 1, 3, 2)
    with pytest.raises(NotImplementedError, match="forward mode of forward mode"):
        torch.func.jacfwd(torch.func.jacfwd(f))(x)
    with pytest.raises(NotImplementedError, match="third derivative"):
        torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(f)))(x)
    with pytest.raises(NotImplementedError, match="third derivative"):
        torch.func.jacfwd(torch.func.jacrev(torch.func.jacrev(f)))(x)


def test_a_backward_pass_inside_a_dual_level():
    """Gradients of a loss of output and tangent; their own tangents, a third derivative, are NaN."""
    at, along = ([normal(i, 2, 5, 3) for i in seeds] for seeds in (range(3), range(3, 6)))

    def dense(q, k, v, causal):
        # Written out: a backward pass through the tangent of torch.softmax fails inside a dual level.
        e = (q @ k.mT / 3**0.5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf).exp()
        return (e / e.sum(-1, keepdim=True)) @ v

    def gradients(op):
        leaves = [t.clone().requires_grad_() for t in at]
        with forward_ad.dual_level():
            o, do = forward_ad.unpack_dual(op(*map(forward_ad.make_dual, leaves, along), causal=True))
            found = torch.autograd.grad(o.square().sum() + do.pow(3).sum(), leaves)
            return [forward_ad.unpack_dual(t) for t in found]

    found = gradients(attend)
    for mine, wanted in zip(found, gradients(dense), strict=True):
        assert_close(mine.primal, wanted.primal)
        assert mine.tangent is None or mine.tangent.isnan().all()
    assert any(dual.tangent is not None for dual in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precisions_are_as_accurate_as_their_inputs(dtype):
    q, k, v = qkv((4, 2, 9, 9, 8, 8), dtype)
    o = attend(q, k, v, causal=True)
    assert o.dtype == dtype
    truth = reference.forward(q.double(), k.double(), v.double(), causal=True)
    assert_close(o, truth, max(FLOAT32, 2 * torch.finfo(dtype).eps))


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_derivatives_at_large_scores_in_float32(size):
    # Scores of about 1e6 that differ by 1: a log-sum-exp stored as one number would be off by 3 %.
    q, k = torch.ones(1, 1, 1), torch.tensor([[[size], [size + 1], [size + 2]]])
    v = torch.tensor([[[1.0], [2.0], [4.0]]])
    g = torch.ones(1, 1, 1)
    dv = torch.func.vjp(lambda t: attend(q, k, t, scale=1.0), v)[1](g)[0]
    assert_close(dv, torch.softmax(torch.tensor([0.0, 1.0, 2.0]), 0).view(1, 3, 1), FLOAT32)


def test_strided_and_broadcast_inputs():
    q = normal(1, 2, 5, 3, 4).transpose(-3, -2)  # the layout after a projection
    k, v = normal(2, 3, 5, 4), normal(3, 2, 3, 5, 2)
    assert_close(attend(q, k, v), reference.forward(q, k.expand(2, 3, 5, 4), v))


def test_a_huge_score_of_a_masked_key_changes_nothing():
    q, k, v = qkv((1, 1, 4, 4, 3, 3))
    plain = attend(q, k, v, causal=True)
    k2, v2 = k.clone(), v.clone()
    k2[:, 3], v2[:, 3] = 1e8, 1e8
    assert close(attend(q, k2, v2, causal=True)[:, :3], plain[:, :3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(q=normal(1, 3, 2)), "at least three axes"),
        (dict(q=normal(1, 2, 4, 3)), "q and k of one width"),
        (dict(k=normal(1, 3, 5, 2), v=normal(1, 3, 5, 2)), "multiple of the key heads"),
        (dict(v=normal(1, 2, 4, 2)), "same heads and length"),
        (dict(q=normal(1, 2, 5, 2).float()), "one floating dtype"),
        (dict(score_bias=lambda i, j: torch.zeros(3, 3, requires_grad=True).sum() + i - j), "detach it"),
        (dict(window=0), "window ≥ 1"),
        (dict(softcap=-1.0), "softcap > 0"),
        (dict(scale=float("nan")), "finite scale"),
        (dict(padding=torch.ones(4, dtype=torch.bool)), r"padding of dtype bool and shape \(…, 5\)"),
        (dict(padding=torch.ones(5)), "padding of dtype bool"),
        (dict(score_bias=torch.zeros(3, 3)), "score_bias table of shape"),
        (dict(score_bias=lambda i, j: torch.ones(9, requires_grad=True)[(i - j).abs()]), "detach it"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message):
    arguments = dict(q=normal(1, 2, 5, 2), k=normal(2, 2, 5, 2), v=normal(3, 2, 5, 2)) | change
    with pytest.raises(InputError, match=message):
        attend(**arguments)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_hessian_products_of_torch_autograd_functional(pattern):
    """`hvp` differentiates a gradient in a vector that it is multiplied with, which is no third derivative."""
    at = qkv((4, 2, 5, 6, 3, 2))
    along = tuple(normal(20 + i, *t.shape) for i, t in enumerate(at))
    if "score_bias" in pattern:  # the table has a gradient, too
        table = normal(30, 4, 5, 6)
        at, along, pattern = (*at, table), (*along, normal(31, 4, 5, 6)), {}

    def loss(op):
        def f(q, k, v, table=None):
            o = op(q, k, v, **(pattern if table is None else dict(score_bias=table)))
            return o.pow(3).sum()

        return f

    if len(at) == 4:

        def dense(q, k, v, *, score_bias):
            k, v = (t.repeat_interleave(2, 0) for t in (k, v))
            return torch.softmax(q @ k.mT / 3**0.5 + score_bias, -1) @ v

    else:
        dense = reference.forward
    for product in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        value, found = product(loss(attend), at, along)
        expected_value, expected = product(loss(dense), at, along)
        assert_close(value, expected_value)
        for mine, theirs in zip(found, expected, strict=True):
            assert_close(mine, theirs)


def test_third_derivatives_in_plain_autograd_raise():
    at = [t.requires_grad_() for t in qkv((2, 2, 4, 4, 3, 3))]
    g = normal(9, 2, 4, 3).requires_grad_()
    first = torch.autograd.grad(attend(*at), at, g, create_graph=True)
    second = torch.autograd.grad(sum(t.pow(2).sum() for t in first), at, create_graph=True)
    total = sum(t.sum() for t in second)
    for ask in (lambda: torch.autograd.grad(total, at), lambda: torch.autograd.grad(total, g), total.backward):
        with pytest.raises(NotImplementedError, match="third derivative"):
            ask()

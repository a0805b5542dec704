"""`SelfAttention` as a `torch.nn.Module`: parameters, conversion, copies, and its construction from PyTorch's layer."""

import copy
import pickle

import pytest
import torch
from torch import nn

from howsmooth import InputError, Rotary, SelfAttention, lipschitz_penalty, local_lipschitz, token_gains
from howsmooth.attention import L2Attention, Normalisation, reference
from howsmooth.bounds import every
from tests.attention.cases import LAYERS, distance_bias, layer, normal
from tests.tolerances import assert_close, close, less

NAMES = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


def multihead(bias: bool = True, **options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(6, 2, bias=bias, dtype=torch.float64, **options).eval()
    for parameter in mha.parameters():  # PyTorch starts biases at 0, which would hide a mistake
        nn.init.normal_(parameter)
    return mha


def by_torch(mha: nn.MultiheadAttention, x: torch.Tensor, causal: bool = False) -> torch.Tensor:
    n = x.shape[-2]
    mask = torch.ones(n, n, dtype=torch.bool).triu(1) if causal else None
    batched = x if x.dim() == 2 or mha.batch_first else x.transpose(0, 1)
    y = mha(batched, batched, batched, attn_mask=mask, need_weights=False)[0]
    return y if x.dim() == 2 or mha.batch_first else y.transpose(0, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_from_torch_is_the_same_map_with_the_same_jacobian(causal, bias, batch_first):
    mha, x = multihead(bias, batch_first=batch_first), normal(1, 3, 5, 6)
    f = SelfAttention.from_torch(mha, causal=causal)
    assert_close(f(x), by_torch(mha, x, causal))
    assert_close(f(x[0]), by_torch(mha, x[0], causal))
    dense = torch.autograd.functional.jacobian(lambda y: by_torch(mha, y, causal), x[0]).reshape(30, 30)
    assert_close(f.jacobian(x[0]).dense(), dense)
    assert_close(reference.jacobian(f, x[0]), dense)
    assert f.heads == 2 and f.causal is causal


def test_from_torch_reads_separate_projections():
    mha, x = multihead(), normal(1, 5, 6)
    apart = multihead()
    apart.q_proj_weight, apart.k_proj_weight, apart.v_proj_weight = (
        nn.Parameter(t.clone()) for t in mha.in_proj_weight.detach().chunk(3)
    )
    apart.in_proj_weight = None
    f = SelfAttention.from_torch(apart)
    assert f.wq is apart.q_proj_weight and f.wo is apart.out_proj.weight
    assert_close(f(x), by_torch(mha, x))


def test_from_torch_shares_the_weights_so_that_gradients_and_updates_reach_both():
    mha, x = multihead(), normal(1, 5, 6)
    f = SelfAttention.from_torch(mha)
    optimizer = torch.optim.SGD(mha.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        before = float(lipschitz_penalty(f, x, steps=20).detach())
        lipschitz_penalty(f, x, steps=20).backward()
        assert mha.in_proj_weight.grad.norm() > 0 and mha.out_proj.weight.grad.norm() > 0
        optimizer.step()
        assert_close(f(x), by_torch(mha, x))
    assert less(float(lipschitz_penalty(f, x, steps=20).detach()), before)
    alone = copy.deepcopy(f)
    alone.requires_grad_(False)
    assert len(list(alone.parameters())) == 8 and mha.in_proj_weight.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(add_bias_kv=True), "add_bias_kv=False, got True"),
        (dict(add_zero_attn=True), "add_zero_attn=False, got True"),
        (dict(kdim=4), "kdim and vdim equal to embed_dim=6, got kdim=4 and vdim=6"),
        (dict(vdim=3), "kdim and vdim equal to embed_dim=6, got kdim=6 and vdim=3"),
    ],
)
def test_from_torch_refuses_what_is_not_self_attention(options, message):
    with pytest.raises(InputError, match=f"expected .*{message}; "):
        SelfAttention.from_torch(multihead(**options))


def test_from_torch_refuses_dropout_in_training_mode_and_other_modules():
    mha = multihead(dropout=0.1)
    SelfAttention.from_torch(mha)
    with pytest.raises(InputError, match=r"expected no dropout, got dropout=0.1 in training mode; call \.eval\(\)"):
        SelfAttention.from_torch(mha.train())
    SelfAttention.from_torch(multihead().train())
    with pytest.raises(InputError, match=r"expected a torch.nn.MultiheadAttention, got Linear; "):
        SelfAttention.from_torch(nn.Linear(2, 2))


def test_parameters_keep_their_identity():
    owner = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    leaf, constant = normal(2, 4, 4).requires_grad_(), normal(3, 4, 4)
    f = SelfAttention(owner.weight, leaf, constant)
    assert f.wq is owner.weight and f.wk is leaf
    assert isinstance(f.wv, nn.Parameter) and not f.wv.requires_grad and f.wv.data_ptr() == constant.data_ptr()
    assert [name for name, _ in f.named_parameters()] == ["wq", "wk", "wv"]
    f(normal(4, 3, 4)).sum().backward()
    assert owner.weight.grad is not None and leaf.grad is not None and constant.grad is None


def test_a_weight_that_was_computed_keeps_its_graph():
    fused = normal(1, 18, 6).requires_grad_()
    f = SelfAttention(fused[:6], fused[6:12], fused[12:])
    assert not list(f.parameters()) and set(f.state_dict()) == {"wq", "wk", "wv"}
    f(normal(2, 3, 6)).square().sum().backward()
    assert fused.grad.norm() > 0
    twice = copy.deepcopy(f)
    assert {name for name, _ in twice.named_parameters()} == {"wq", "wk", "wv"}
    assert all(p.is_leaf and p.requires_grad for p in twice.parameters())
    assert close(twice(normal(2, 3, 6)), f(normal(2, 3, 6)))


def test_weights_inside_function_transforms():
    f, x = layer("two heads"), normal(2, 4, 6)

    def output(wq):
        return SelfAttention(wq, f.wk, f.wv, f.wo, bq=f.bq, heads=2)(x)

    wq, t = f.wq.detach(), normal(3, *f.wq.shape)
    by_reverse = torch.tensordot(torch.func.jacrev(output)(wq), t, 2)
    assert_close(torch.func.jvp(output, (wq,), (t,))[1], by_reverse)
    with torch.autograd.forward_ad.dual_level():
        dual = output(torch.autograd.forward_ad.make_dual(wq, t))
        assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, by_reverse)
    swapped = torch.func.functional_call(f, {"wq": 2 * f.wq}, (x,))
    assert_close(swapped, layer("two heads").converted()(x) + swapped - f(x))
    assert not close(swapped, f(x))


def test_weights_made_in_inference_mode():
    with torch.inference_mode():
        weights = [normal(i, 4, 4) for i in range(3)]
    f, x = SelfAttention(*weights), normal(4, 3, 4)
    assert_close(f(x), SelfAttention(*(w.clone() for w in weights))(x))
    assert local_lipschitz(f, x).status == "converged"


@pytest.mark.parametrize("name", LAYERS)
def test_state_dict_deepcopy_and_pickle(name):
    f, x = layer(name), normal(1, 4, 6)
    assert set(f.state_dict()) == set(NAMES)
    other = layer(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not close(other(x), f(x))
    other.load_state_dict(f.state_dict())
    assert close(other(x), f(x))
    copied = copy.deepcopy(f)
    with torch.no_grad():
        copied.wq.zero_()
    assert float(f.wq.norm()) > 0
    reloaded = pickle.loads(pickle.dumps(f))
    for again in (copy.deepcopy(f), reloaded):
        assert repr(again) == repr(f)
        assert close(again(x), f(x))
        assert close(again.jacobian(x).dense(), f.jacobian(x).dense())


def test_heads_of_layers_with_score_offsets_can_be_pickled():
    f, x = layer("bias function"), normal(1, 4, 6)
    assert f.score_bias is distance_bias
    head = f.head(1)
    assert close(pickle.loads(pickle.dumps(head))(x), head(x))


@pytest.mark.parametrize("name", LAYERS)
def test_to_is_in_place_and_moves_everything(name):
    f, x = layer(name), normal(1, 4, 6)
    truth = f.jacobian(x.float().double()).dense()
    assert f.to(torch.float32) is f and f.dtype == torch.float32
    tensors = [*f.parameters(), *f.buffers()]
    assert {t.dtype for t in tensors} == {torch.float32}
    assert_close(f.jacobian(x.float()).dense().double(), truth, 1e-5)
    assert f.double().dtype == torch.float64 and f(x).dtype == torch.float64
    assert close(layer(name).jacobian(x.float().double()).dense(), truth)  # tables shared between layers are untouched


def test_converting_a_head_leaves_its_layer_as_it_is():
    f, x = layer("rotary"), normal(1, 4, 6)
    operator, before = f.jacobian(x), f(x)
    product = operator.matvec(x.flatten())
    f.head(0).to(torch.float32)
    assert close(f(x), before)
    f.to(torch.float32)
    assert close(operator.matvec(x.flatten()), product)


@pytest.mark.parametrize("name", LAYERS)
def test_converted_is_a_copy(name):
    f = layer(name)
    g = f.converted(dtype=torch.float32)
    assert (f.dtype, g.dtype) == (torch.float64, torch.float32)
    same = f.converted()
    assert same is not f and same.wq is not f.wq and same.wq.data_ptr() == f.wq.data_ptr()
    same.to(torch.float32)
    assert f.dtype == torch.float64 and f(normal(1, 4, 6)).dtype == torch.float64


def test_gradients_flow_through_converted():
    f, x = layer("two heads").requires_grad_(), normal(1, 4, 6)
    assert f.converted().wq is f.wq
    f.converted(dtype=torch.float32)(x.float()).sum().backward()
    assert f.wq.grad.norm() > 0 and f.wq.grad.dtype == torch.float64
    with torch.no_grad():
        assert not any(p.requires_grad for p in f.converted().parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_vmap_over_sequences(name):
    f, x = layer(name), normal(1, 3, 4, 6)
    assert_close(torch.func.vmap(f)(x), f(x))


def test_apply_reaches_every_submodule():
    seen = []
    layer("rotary").apply(lambda module: seen.append(type(module)))
    assert seen == [Rotary, SelfAttention]


def test_measuring_a_layer_that_is_trained_builds_no_graph():
    f, x = layer("two heads", d_out=6).requires_grad_(), normal(1, 4, 6)
    found = local_lipschitz(f, x)
    J = f.jacobian(x)
    tensors = [found.direction, found.response, J.image, J.matvec(x.flatten()), J.rmatvec(x.flatten()), J.dense()]
    tensors += [J.w_in, J.w_out, J.linearised.q, J.precise().w_in, J.gradient(x.flatten(), x.flatten())]
    assert not any(t.requires_grad for t in tensors)
    frozen = f.converted().requires_grad_(False)
    assert close(found.check(), local_lipschitz(frozen, x).check())
    assert close(token_gains(f, x).value, token_gains(frozen, x).value)
    for trained, constant in zip(every(f, 4, 1.0), every(frozen, 4, 1.0), strict=True):
        assert close(getattr(trained, "value", 0.0), getattr(constant, "value", 0.0))
    assert all(p.grad is None for p in f.parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Normalisation(normal(1, 6), normal(2, 6)),
        lambda: Normalisation(normal(1, 6), centred=False),
        lambda: L2Attention(normal(1, 6, 6), normal(2, 6, 6), normal(3, 6, 6), heads=2),
    ],
    ids=["LayerNorm", "RMSNorm", "L2Attention"],
)
def test_other_maps_are_modules_too(make):
    f, x = make(), normal(4, 5, 6)
    assert close(pickle.loads(pickle.dumps(f))(x), f(x)) and close(copy.deepcopy(f)(x), f(x))
    other = make().requires_grad_()
    other.load_state_dict({name: 2 * t for name, t in f.state_dict().items()})
    other(x).sum().backward()
    assert all(p.grad is not None for p in other.parameters())
    assert f.to(torch.float32) is f and f(x.float()).dtype == torch.float32

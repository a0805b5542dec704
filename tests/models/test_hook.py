"""attn_implementation="howsmooth" against transformers' own eager attention, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    GPT2LMHeadModel,
    MistralConfig,
    StaticCache,
)
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral

import howsmooth
from howsmooth.attention import attend
from howsmooth.errors import InputError
from howsmooth.models import hook
from tests.tolerances import FLOAT32, at_most, close

from .tiny import tiny_config, tiny_network

FAMILIES = ("gpt2", "bert", "llama")
N = 9


@pytest.fixture(autouse=True)
def _in_float64(monkeypatch):
    """Remove the float32 casts of eager softmax and RMSNorm, which would hide errors below 1e-7."""
    howsmooth.register()
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=None, **_: softmax(x, dim=dim))

    def rms_norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", rms_norm)
    monkeypatch.setattr(modeling_mistral.MistralRMSNorm, "forward", rms_norm)


def eager_and_ours(network):
    """Return copies of a network with eager attention and with ours, each with its own config."""
    pair = []
    for implementation in ("eager", "howsmooth"):
        copied = type(network)._from_config(copy.deepcopy(network.config), attn_implementation=implementation)
        copied.load_state_dict(network.state_dict())
        pair.append(copied.to(torch.float64).eval())
    assert pair[0].config is not pair[1].config
    assert [m.config._attn_implementation for m in pair] == ["eager", "howsmooth"]
    return pair


def embeddings(batch=2, n=N, seed=0):
    return torch.randn(batch, n, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding(kind: str):
    mask = torch.ones(2, N, dtype=torch.long)
    if kind == "right":
        mask[1, -3:] = 0
    if kind == "left":
        mask[1, :4] = 0
    return mask


def additive_mask(visible):
    """Return the additive mask that eager attention takes."""
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)


def assert_near(a, b, tolerance=1e-11):
    assert a.shape == b.shape and torch.isfinite(a).all()
    assert at_most((a - b).abs().max(), tolerance * (1 + b.abs().max()))


@pytest.mark.parametrize("kind", ["none", "left", "right"])
@pytest.mark.parametrize("family", [*FAMILIES, "bert decoder"])
def test_hidden_states_jvp_and_gradients_agree_with_eager(family, kind):
    family, *decoder = family.split()
    eager, ours = eager_and_ours(tiny_network(family, **({"is_decoder": True} if decoder else {})))
    x, direction, cotangent = embeddings(), embeddings(seed=1), embeddings(seed=2)
    mask = padding(kind)
    real = mask.bool()
    # tangents of padded tokens would only test padded outputs
    direction, cotangent = direction * mask[..., None], cotangent * mask[..., None]
    given = None if kind == "none" else mask
    results = []
    for model in (eager, ours):

        def forward(e, model=model):
            return model(inputs_embeds=e, attention_mask=given, use_cache=False).last_hidden_state

        out, tangent = torch.func.jvp(forward, (x,), (direction,))
        leaf = x.clone().requires_grad_()
        (forward(leaf) * cotangent).sum().backward()
        weights = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
        results.append((out[real], tangent[real], leaf.grad[real], weights))
    (out_e, tan_e, grad_e, weights_e), (out, tan, grad, weights) = results
    assert_near(out, out_e)
    assert_near(tan, tan_e)
    assert_near(grad, grad_e)
    assert weights.keys() == weights_e.keys() and len(weights) > 20
    for key in weights:
        assert_near(weights[key], weights_e[key])


def test_the_comparison_can_fail():
    eager, ours = eager_and_ours(tiny_network("gpt2"))
    x = embeddings()
    with pytest.raises(AssertionError):
        assert_near(ours(inputs_embeds=x).last_hidden_state, eager(inputs_embeds=x.flip(1)).last_hidden_state)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_earlier_outputs_ignore_later_tokens(family):
    _, ours = eager_and_ours(tiny_network(family))
    x = embeddings()
    moved = x.clone()
    moved[:, 5:] = 100.0 * embeddings(seed=9)[:, 5:]
    before, after = (ours(inputs_embeds=e).last_hidden_state for e in (x, moved))
    assert close(before[:, :5], after[:, :5], FLOAT32)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_without_the_mask_function_masks_are_dropped(monkeypatch):
    """What `register` avoids: the same attention without its mask function."""
    eager, ours = eager_and_ours(tiny_network("gpt2"))
    x, mask = embeddings(), padding("left")
    real = mask.bool()
    want = eager(inputs_embeds=x, attention_mask=mask).last_hidden_state[real]
    assert_near(ours(inputs_embeds=x, attention_mask=mask).last_hidden_state[real], want)

    received = []

    def attend_by_mask_only(module, query, key, value, mask, scaling=None, **_):
        received.append(mask)
        return attend(query, key, value, scale=scaling, padding=mask).transpose(1, 2).contiguous(), None

    assert AttentionMaskInterface._global_mapping["howsmooth"] is hook.attention_mask
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "howsmooth")
    assert not torch.allclose(ours(inputs_embeds=x, attention_mask=mask).last_hidden_state[real], want)

    monkeypatch.setitem(AttentionInterface._global_mapping, "howsmooth", attend_by_mask_only)
    moved = x.clone()
    moved[:, 5:] = embeddings(seed=9)[:, 5:]
    before, after = (ours(inputs_embeds=e).last_hidden_state[:, :5] for e in (x, moved))
    assert received and all(mask is None for mask in received)
    assert not torch.allclose(before, after)  # earlier outputs depend on later tokens, and nothing warns


@pytest.mark.parametrize("family", FAMILIES)
def test_a_4d_mask_of_the_user_is_applied(family):
    eager, ours = eager_and_ours(tiny_network(family))
    generator = torch.Generator().manual_seed(3)
    visible = torch.rand(2, 1, N, N, generator=generator) < 0.6
    visible |= torch.eye(N, dtype=torch.bool)
    assert not torch.equal(visible[0], visible[1])
    additive = additive_mask(visible)
    additive = additive + torch.randn(2, 1, N, N, generator=generator).double()  # a bias, not only a mask
    x = embeddings()
    want = eager(inputs_embeds=x, attention_mask=additive).last_hidden_state
    assert_near(ours(inputs_embeds=x, attention_mask=additive).last_hidden_state, want)

    plain = additive_mask(visible)
    want = eager(inputs_embeds=x, attention_mask=plain).last_hidden_state
    assert_near(ours(inputs_embeds=x, attention_mask=visible).last_hidden_state, want)


def test_packed_sequences_do_not_see_each_other():
    eager, ours = eager_and_ours(tiny_network("llama"))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 0, 1, 2, 3]])
    x = embeddings()
    want = eager(inputs_embeds=x, position_ids=positions, use_cache=False).last_hidden_state
    got = ours(inputs_embeds=x, position_ids=positions, use_cache=False).last_hidden_state
    assert_near(got, want)
    alone = ours(inputs_embeds=x[:1, :4], use_cache=False).last_hidden_state
    assert_near(got[:1, :4], alone)


@pytest.mark.parametrize("kind", ["none", "left"])
def test_sliding_windows_agree_with_eager(kind):
    config = MistralConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        intermediate_size=32,
        sliding_window=3,
        initializer_range=0.3,
    )
    eager, ours = eager_and_ours(AutoModel.from_config(config))
    x, mask = embeddings(), padding(kind)
    want = eager(inputs_embeds=x, attention_mask=mask, use_cache=False).last_hidden_state
    got = ours(inputs_embeds=x, attention_mask=mask, use_cache=False).last_hidden_state
    assert_near(got[mask.bool()], want[mask.bool()])


@pytest.mark.parametrize(
    "function",
    [
        causal_mask_function,
        bidirectional_mask_function,
        sliding_window_causal_mask_function(3),
        sliding_window_bidirectional_mask_function(2),
        chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int)),
        and_masks(sliding_window_causal_mask_function(3), causal_mask_function),
        and_masks(lambda b, h, q, k: (k > q - 3) & (k != 2), causal_mask_function),
    ],
    ids=["causal", "full", "window", "two-sided window", "chunked", "nested", "custom"],
)
@pytest.mark.parametrize(
    "sizes",
    [(5, 5, 0, 0), (1, 7, 6, 0), (3, 8, 2, 0), (4, 6, 5, 3)],
    ids=["prefill", "decode", "static cache", "sliding cache"],
)
@pytest.mark.parametrize("padded", [False, True])
def test_every_mask_agrees_with_sdpa(function, sizes, padded):
    q, kv, q_offset, kv_offset = sizes
    mask = None
    if padded:
        # shorter than the keys, as with a static cache
        mask = torch.ones(2, kv + kv_offset - 1, dtype=torch.bool)
        mask[1, : kv_offset + 2] = False
    arguments = dict(
        batch_size=2,
        q_length=q,
        kv_length=kv,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=mask,
    )
    want = sdpa_mask(**arguments, allow_is_causal_skip=False)[:, 0]
    got = hook.attention_mask(**arguments)
    # Equal scores: each query has equal weights on the keys that it sees, and the values show which.
    query, key = torch.zeros(2, 1, q, 2), torch.zeros(2, 1, kv, 2)
    value = torch.eye(kv).expand(2, 1, kv, kv)
    weights, none = hook.attention_forward(torch.nn.Identity(), query, key, value, got)
    assert none is None and weights.shape == (2, q, 1, kv) and weights.is_contiguous()
    assert torch.equal(weights[:, :, 0] > 0, want)


def test_simple_masks_take_no_memory():
    window = sliding_window_causal_mask_function(7)
    for function in (causal_mask_function, window, bidirectional_mask_function):
        mask = hook.attention_mask(4, 10**6, 10**6, mask_function=function)
        assert mask.shape == (4, 10**6) and mask.untyped_storage().nbytes() == 1


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_cache_does_not_change_the_output(family):
    _, ours = eager_and_ours(tiny_network(family))
    ids = torch.randint(5, 50, (2, N), generator=torch.Generator().manual_seed(4))
    want = ours(input_ids=ids, use_cache=False).last_hidden_state
    first = ours(input_ids=ids[:, :5], use_cache=True)
    rest = ours(input_ids=ids[:, 5:8], past_key_values=first.past_key_values, use_cache=True)
    last = ours(input_ids=ids[:, 8:], past_key_values=rest.past_key_values, use_cache=True)
    assert_near(torch.cat([first.last_hidden_state, rest.last_hidden_state, last.last_hidden_state], 1), want)

    static = StaticCache(config=ours.config, max_cache_len=16)
    first = ours(input_ids=ids[:, :5], past_key_values=static, use_cache=True).last_hidden_state
    rest = ours(input_ids=ids[:, 5:], past_key_values=static, use_cache=True).last_hidden_state
    assert_near(torch.cat([first, rest], 1), want)


def test_generation_agrees_with_eager():
    network = GPT2LMHeadModel(tiny_config("gpt2", bos_token_id=4, eos_token_id=None, pad_token_id=3))
    eager, ours = eager_and_ours(network)
    ids = torch.tensor([[3, 3, 3, 9, 8, 7], [11, 12, 13, 14, 15, 16]])
    options = dict(attention_mask=(ids != 3).long(), max_new_tokens=8, do_sample=False)
    assert torch.equal(eager.generate(ids, **options), ours.generate(ids, **options))


def test_attention_weights_are_never_formed():
    _, ours = eager_and_ours(tiny_network("bert"))
    out = ours(inputs_embeds=embeddings(), output_attentions=True)
    assert out.attentions is None or all(weights is None for weights in out.attentions)


def test_soft_cap_and_scale_reach_attend():
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator) for _ in range(3))
    got, _ = hook.attention_forward(
        torch.nn.Identity(), q, k, v, None, scaling=0.7, softcap=1.5, is_causal=False, sliding_window=3
    )
    want = attend(q, k, v, scale=0.7, softcap=1.5, window=3)
    assert close(got.transpose(1, 2), want, FLOAT32)
    assert not torch.allclose(want, attend(q, k, v, scale=0.7, window=3))


def test_sinks_agree_with_eager():
    from transformers import GptOssConfig, GptOssModel

    config = GptOssConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=4,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    network = GptOssModel(config)
    for layer in network.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    # The experts of this family have no float64.
    eager, ours = (copied.float() for copied in eager_and_ours(network))
    ids = torch.arange(1, N + 1).unsqueeze(0)
    assert close(ours(ids).last_hidden_state, eager(ids).last_hidden_state, FLOAT32)


def test_refusals_name_a_remedy():
    _, ours = eager_and_ours(tiny_network("gpt2"))
    ours.train()
    with pytest.raises(InputError, match=r"model\.eval\(\)"):
        ours(inputs_embeds=embeddings())
    q = torch.zeros(1, 1, 3, 2)
    call = hook.attention_forward
    with pytest.raises(InputError, match="position_bias"):
        call(torch.nn.Identity(), q, q, q, None, position_bias=torch.zeros(1, 1, 3, 4))
    with pytest.raises(InputError, match="head_mask"):
        call(torch.nn.Identity(), q, q, q, None, head_mask=torch.ones(1))
    with pytest.raises(InputError, match="boolean or additive"):
        call(torch.nn.Identity(), q, q, q, torch.ones(1, 1, 3, 3, dtype=torch.long))
    with pytest.raises(InputError, match="expected a mask of shape"):
        call(torch.nn.Identity(), q, q, q, torch.zeros(1, 1, 3, 4))
    with pytest.raises(InputError, match="expected a mask of shape"):
        call(torch.nn.Identity(), q, q, q, torch.zeros(1, 3, 3))


def test_a_mask_that_a_network_has_joined_is_not_read_as_padding():
    """T5Gemma 2 joins those of self and cross attention and loses the pattern: `find_sites` then asks for 4D masks."""
    q, mask = torch.randn(1, 2, 4, 3), torch.ones(1, 4, dtype=torch.bool)
    with hook.observe_attention(lambda *_: None), pytest.raises(ValueError, match="none of the mask function's"):
        hook.attention_forward(torch.nn.Module(), q, q, q, mask)

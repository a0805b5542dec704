"""Feature-space attacks against dense Jacobians and certified balls; saved and tampered files."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from howsmooth import InputError, SelfAttention, load, local_lipschitz
from howsmooth.attack import linearity
from howsmooth.attack.feature import (
    Budget,
    Duplicate,
    FeatureProblem,
    GradientSign,
    Insert,
    NextToken,
    Noise,
    OutputChange,
    ProjectedGradient,
    Similarity,
    SingularDirection,
    Target,
    load_attack,
    run,
    save_attack,
    verify,
)
from howsmooth.bounds import certify_ball
from tests.attention.cases import layer, normal
from tests.tolerances import FLOAT32, at_most, close, less

ALL = (
    Noise(),
    GradientSign(),
    SingularDirection(tol=1e-4),
    ProjectedGradient(steps=10),
    ProjectedGradient(start=Noise(), steps=10),
)


def some_head() -> torch.nn.Linear:
    head = torch.nn.Linear(5, 9, bias=False, dtype=torch.float64)
    head.weight.data = normal(31, 9, 5)
    return head.requires_grad_(False)


@pytest.fixture(scope="module")
def small() -> Target:
    return Target.of(layer("two heads"), normal(5, 8, 6))


@pytest.fixture(scope="module")
def minilm():
    return load("minilm", dtype=torch.float64)


@pytest.fixture(scope="module")
def minilm_layer(minilm) -> Target:
    return Target.in_model(minilm, minilm.chunks("The river moves slowly under the old stone bridge.", 10, 1)[0], 3)


@pytest.mark.parametrize("attack", ALL, ids=lambda a: a.name)
@pytest.mark.parametrize("where", ["small", "minilm_layer"])
def test_no_gain_above_the_certified_ball(attack, where, request):
    target = request.getfixturevalue(where)
    for eps in (1e-2, 0.3):
        centre = local_lipschitz(target.f, target.x, tol=1e-3)
        certified = certify_ball(target.f, target.x, eps, at_center=centre.upper).value
        found = run(attack, target, Budget(eps, "token"), seed=1)
        assert found.budget.norm_of(found.perturbation) <= eps * (1 + 1e-9)
        assert less(0, found.gain) and at_most(found.gain, certified)
        assert found.gain == pytest.approx(found.change / found.spent)


def test_the_certified_ball_is_nearly_attained(minilm_layer):
    """At a small ε the best attack is within 1 % of the certified value, which is therefore not vacuous."""
    centre = local_lipschitz(minilm_layer.f, minilm_layer.x, tol=1e-3)
    certified = certify_ball(minilm_layer.f, minilm_layer.x, 1e-5, at_center=centre.upper).value
    found = run(SingularDirection(tol=1e-3), minilm_layer, Budget(1e-5), seed=0)
    assert less(0.99 * certified, found.gain) and at_most(found.gain, certified)


@pytest.mark.parametrize("where", ["small", "minilm_layer"])
def test_singular_direction_beats_noise_by_the_predicted_ratio(where, request):
    """For small η noise gains ‖J‖_F/√N in the root mean square, the singular direction σ₁ (within 10 %, 64 draws)."""
    target = request.getfixturevalue(where)
    J = target.f.jacobian(target.x)
    if where == "small":
        dense = J.dense()
        frobenius, N = float(torch.linalg.matrix_norm(dense)), dense.shape[1]
        sigma = float(torch.linalg.matrix_norm(dense, 2))
    else:
        N = J.shape[1]
        probes = torch.randn(200, N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        frobenius = math.sqrt(sum(float(J.matvec(v).square().sum()) for v in probes) / len(probes))
        sigma = local_lipschitz(target.f, target.x, tol=1e-4).value
    eta = Budget(1e-6)
    noise = [run(Noise(), target, eta, seed=seed).gain for seed in range(64)]
    measured = run(SingularDirection(tol=1e-4), target, eta).gain / math.sqrt(sum(g**2 for g in noise) / 64)
    assert measured == pytest.approx(sigma / (frobenius / math.sqrt(N)), rel=0.1)
    assert measured > 2


def test_ascent_is_never_worse_than_its_start_and_finds_more_at_a_finite_size(small):
    budget = Budget(1.0)
    start, ascent = (run(a, small, budget, seed=2) for a in (SingularDirection(), ProjectedGradient(steps=30)))
    assert less(start.change * 1.001, ascent.change)
    from_noise = run(ProjectedGradient(start=Noise(), steps=60), small, Budget(1e-4), seed=2)
    sigma = local_lipschitz(small.f, small.x, tol=1e-6).value
    assert from_noise.gain == pytest.approx(sigma, rel=0.02)  # for small sizes ascent is the power method


@pytest.mark.parametrize("attack", ALL, ids=lambda a: a.name)
@pytest.mark.parametrize("norm", ["frobenius", "token"])
def test_few_tokens(small, attack, norm):
    found = run(attack, small, Budget(0.1, norm, tokens=2), seed=3)
    assert found.touched <= 2 and found.budget.norm_of(found.perturbation) <= 0.1 * (1 + 1e-9)
    assert at_most(0.5 * found.change, run(attack, small, Budget(0.1, norm), seed=3).change)


def test_few_tokens_use_the_restricted_singular_direction(small):
    found = run(SingularDirection(tol=1e-6), small, Budget(1e-6, tokens=2))
    positions = (found.perturbation != 0).any(-1).nonzero().flatten().tolist()
    restricted = small.f.jacobian(small.x).dense().unflatten(1, small.x.shape)[:, positions].flatten(1)
    assert found.gain == pytest.approx(float(torch.linalg.matrix_norm(restricted, 2)), rel=1e-4)


@pytest.mark.parametrize("attack", ALL, ids=lambda a: a.name)
def test_seeds_reproduce(small, attack):
    first, second = (run(attack, small, Budget(0.1), seed=7) for _ in range(2))
    assert close(first.perturbation, second.perturbation) and close(first.change, second.change)
    if attack.name == "noise":
        assert not close(first.perturbation, run(attack, small, Budget(0.1), seed=8).perturbation)


def test_splitting_agrees_with_theory():
    """A = −1, tokens (4, 0.3): max_i ‖V C_i A‖ > ‖D_X f‖, so separating copies gains more."""
    one = torch.ones(1, 1, dtype=torch.float64)
    f, x = SelfAttention(-one, one, one, scale=1.0), torch.tensor([[4.0], [0.3]], dtype=torch.float64)
    target = Target.of(f, x)
    P = torch.softmax(-x @ x.T, -1)
    C = (P * (x.T - P @ x).square()).sum(-1)
    plain = run(SingularDirection(tol=1e-6), target, Budget(1e-6))
    split = run(Duplicate() >> SingularDirection(tol=1e-6), target, Budget(1e-6))
    assert plain.gain == pytest.approx(float(torch.linalg.matrix_norm(f.jacobian(x).dense(), 2)), rel=1e-4)
    assert split.gain == pytest.approx(max(plain.gain, float(C.max())), rel=1e-4)
    assert less(1.05 * plain.gain, split.gain)
    assert split.n == 4 and split.attack["name"].startswith("duplicate all ×2 >> ")


def test_edits_combine(small):
    both = Duplicate((0,), times=3) >> Insert(2, torch.ones(6, dtype=torch.float64)) >> Noise()
    found = run(both, small, Budget(0.1))
    # exact: tokens are copied
    assert found.n == 11 and torch.equal(found.x[0], found.x[3]) and torch.equal(found.x[2], torch.ones(6).double())


@pytest.mark.parametrize(
    "objective",
    [OutputChange(), Similarity(), Similarity(token=0), NextToken(some_head()), NextToken(some_head(), position=None)],
    ids=lambda o: f"{o.name} {getattr(o, 'position', getattr(o, 'token', ''))}",
)
def test_objectives(small, objective):
    """Gradients by gradcheck; to first order the length is that of the coordinates, whose σ₁ is attained."""
    problem = FeatureProblem(small, objective)
    e = normal(9, *small.x.shape) * 0.3
    assert torch.autograd.gradcheck(lambda e: objective.length(small.f(small.x + e), problem.clean), e.requires_grad_())
    jacobian = torch.autograd.functional.jacobian(lambda x: objective.coordinates(small.f(x)), small.x)
    sigma = float(torch.linalg.matrix_norm(jacobian.reshape(-1, small.x.numel()), 2))
    found = run(SingularDirection(tol=1e-6), small, Budget(1e-4), objective)
    assert found.gain == pytest.approx(sigma, rel=2e-3)
    assert close(found.clean, objective.clean_value) and not close(found.attacked, found.clean)


def test_kl_and_cosine_agree_with_their_definitions(small):
    y, clean = small.f(small.x + 0.5), small.f(small.x)
    head = some_head()
    p, q = (torch.softmax(head(t[-1]), -1) for t in (clean, y))
    assert NextToken(head).measure(y, clean) == pytest.approx(float((p * (p / q).log()).sum()))
    cosine = torch.nn.functional.cosine_similarity(y.mean(0), clean.mean(0), dim=0)
    assert Similarity().measure(y, clean) == pytest.approx(float(cosine))


def test_linearity_in_closed_form():
    """For x + x²/2 at 0 the gain is 1 + η/2, which deviates from 1 by 1 % at 0.02 and by 10 % at 0.2."""
    curve = linearity(
        Target.of(lambda x: x + x**2 / 2, torch.zeros(1, 1, dtype=torch.float64)), tuple(10.0**k for k in range(-6, 2))
    )
    assert curve.gains == pytest.approx([1 + eta / 2 for eta in curve.eta], rel=1e-6)
    assert curve.leaves == {0.01: pytest.approx(0.02, rel=1e-3), 0.1: pytest.approx(0.2, rel=1e-3)}
    linear_map = linearity(Target.of(lambda x: 3 * x, torch.ones(2, 2)))
    assert linear_map.leaves == {0.01: None, 0.1: None} and linear_map.sigma == pytest.approx(3)


def test_a_saved_attack_is_verified_and_tampering_is_detected(minilm, minilm_layer, tmp_path):
    path = tmp_path / "attack.safetensors"
    found = run(ProjectedGradient(steps=3), minilm_layer, Budget(0.5))
    save_attack(found, path)
    checked = verify(path, model=minilm)
    assert checked.holds, checked.wrong
    assert checked.value == pytest.approx(found.change, rel=FLOAT32)
    again = load_attack(path)
    # exact: read from the file, which has all digits
    assert again.as_record() == found.as_record() and torch.equal(again.perturbation, found.perturbation)

    def tampered(tensors=None, **record):
        data = load_file(path)
        metadata = {"record": json.dumps(found.as_record() | record), "origin": json.dumps(found.origin), "format": "1"}
        save_file(data | (tensors or {}), tmp_path / "bad.safetensors", metadata=metadata)
        return verify(tmp_path / "bad.safetensors", model=minilm)

    assert tampered().holds
    assert "change" in tampered(change=found.change * 1.01).wrong[0]
    assert not tampered(attacked=found.attacked + 1).holds
    assert any("budget" in line for line in tampered({"perturbation": found.perturbation * 1.5}).wrong)
    assert any("tokens" in line for line in tampered({"tokens": found.x + 0.1}).wrong)
    assert not tampered({"perturbation": found.perturbation.flip(0).contiguous()}).holds
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="expected a saved attack"):
        verify(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_saved_attack_loads_its_model(dtype, tmp_path):
    """The dtype of the model may differ from that of the attack."""
    model = load("minilm", dtype=dtype)
    target = Target.in_model(model, model.chunks("The river moves slowly.", 7, 1)[0], 1)
    save_attack(run(Noise(), target if dtype == torch.bfloat16 else target.double(), Budget(0.5)), tmp_path / "a")
    assert load_attack(tmp_path / "a").dtype != dtype
    assert verify(tmp_path / "a").holds, verify(tmp_path / "a").wrong


def test_a_saved_attack_on_another_map_needs_its_target(small, tmp_path):
    save_attack(run(Noise(), small, Budget(0.1)), tmp_path / "a")
    assert verify(tmp_path / "a", small).holds
    assert not verify(tmp_path / "a", Target.of(layer("two heads", d_out=None), small.x)).holds
    with pytest.raises(InputError, match="give verify the map"):
        verify(tmp_path / "a")


def test_whole_model_and_a_longer_text(minilm):
    chunk = minilm.chunks("The river moves slowly under the old stone bridge.", 8, 1)[0]
    for kind, layer_ in (("block", 1), ("layer", 1), ("model", None)):
        target = Target.in_model(minilm, chunk, layer_, kind)
        found = run(Duplicate((3,)) >> SingularDirection(tol=0.1), target, Budget(1e-3), Similarity())
        assert found.n == 9 and 0 < 1 - found.attacked < 0.1
    assert run(Noise(), target, Budget(1e-3)).change > 0


def test_rounding_is_reported():
    f = layer("two heads").to(torch.float32)
    assert run(Noise(), Target.of(f, normal(5, 8, 6).float()), Budget(1e-7)).status == "rounding"


def test_overflow_is_reported():
    f = layer("two heads").to(torch.float32)
    assert run(Noise(), Target.of(f, normal(5, 8, 6).float()), Budget(1e30)).status == "not finite"


def test_different_attacks_have_different_records():
    row = normal(3, 6)
    pairs = [
        (SingularDirection(0.1), SingularDirection(0.2)),
        (ProjectedGradient(first_step=1.0), ProjectedGradient(first_step=2.0)),
        (ProjectedGradient(SingularDirection(0.1)), ProjectedGradient(SingularDirection(0.2))),
        (Insert(0, row) >> Noise(), Insert(0, row + 1) >> Noise()),
        (Duplicate() >> SingularDirection(0.1), Duplicate() >> SingularDirection(0.2)),
        ((Duplicate() >> Insert(0, row)) >> Noise(), (Duplicate() >> Insert(0, row + 1)) >> Noise()),
    ]
    for one, other in pairs:
        assert json.dumps(one.as_record()) != json.dumps(other.as_record())
    assert json.dumps((Insert(0, row) >> Noise()).as_record()) == json.dumps(
        (Insert(0, row.clone()) >> Noise()).as_record()
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Budget(0.0), "size above 0"),
        (lambda: Budget(-1.0), "size above 0"),
        (lambda: Budget(math.inf), "size"),
        (lambda: Budget(1.0, "max"), "frobenius, token"),
        (lambda: Budget(1.0, tokens=0), "positive whole number"),
        (lambda: run(Noise(), Target.of(layer("two heads"), normal(5, 8, 6)), Budget(1.0, tokens=9)), "length n = 8"),
        (lambda: Target.of(layer("two heads"), normal(5, 8)), "tokens"),
        (lambda: Target.of(layer("two heads"), normal(5, 0, 6)), "n ≥ 1"),
        (lambda: Target.of(3, normal(5, 8, 6)), "SelfAttention"),
        (
            lambda: run(Duplicate((8,)) >> Noise(), Target.of(layer("two heads"), normal(5, 8, 6)), Budget(1.0)),
            "0 to 7",
        ),
        (lambda: run(Insert(9, 0) >> Noise(), Target.of(layer("two heads"), normal(5, 8, 6)), Budget(1.0)), "0 to 8"),
        (lambda: Duplicate() >> 3, "another edit or an attack"),
        (lambda: ProjectedGradient(start=Duplicate() >> Noise()), "without edits"),
        (lambda: ProjectedGradient(steps=0), "steps"),
        (lambda: run(Noise(), Target.of(layer("two heads"), normal(5, 8, 6)), Budget(1.0), seed=-1), "seed"),
        (
            lambda: run(
                Noise(),
                Target.of(layer("two heads"), normal(5, 8, 6)),
                Budget(1.0),
                NextToken(torch.nn.Identity(), position=8),
            ),
            "position among 8",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_single_token(small):
    """A single token attends only to itself: attention is linear, and the gain is the norm of WV."""
    found = run(SingularDirection(), Target.of(small.f, small.x[:1]), Budget(1.0))
    assert found.gain == pytest.approx(local_lipschitz(small.f, small.x[:1]).value, rel=1e-6)

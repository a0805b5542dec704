"""Search methods against brute force on a vocabulary of twelve; counts of calls, limits, seeds, saved attacks."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from howsmooth import InputError, load
from howsmooth.attack.tokens import (
    KL,
    METHODS,
    Cosine,
    Edit,
    EditLimits,
    Flip,
    Greedy,
    Hidden,
    HotFlip,
    Probe,
    Random,
    SentenceSimilarity,
    Singular,
    TargetModel,
    apply,
    attack_text,
    verify,
)
from howsmooth.attack.tokens.attack import whole_chunk
from howsmooth.attack.tokens.edits import positions_after, retokenises

from ...models.tiny import tiny_network, tiny_tokenizer
from ...tolerances import assert_close, close, same_record
from .conftest import NEVER, SMALL_TEXT, TEXT, problem_of

EVERY = [Random(), HotFlip(), Greedy(), Probe(), Singular()]
SUBSTITUTE = EditLimits(allow=("substitute",))


def singles(problem) -> list[tuple[Edit, ...]]:
    tokens = torch.where(problem.target.writable)[0].tolist()
    return [(Edit(p, "substitute", t),) for p in problem.search_space.positions for t in tokens if t != problem.ids[p]]


@torch.no_grad()
def dense_margin(target, ids, attacked) -> float:
    """The value of Flip by the whole network with its tied head, without any code of the attack."""
    before, after = (
        target.model.network(input_ids=torch.as_tensor(t)[None]).last_hidden_state[0, -1]
        @ target.model.network.get_input_embeddings().weight.T
        for t in (ids, attacked)
    )
    original = int(before.argmax())
    others = torch.cat([after[:original], after[original + 1 :]])
    return float(others.max() - after[original])


def test_greedy_with_all_calls_is_brute_force(small):
    problem = problem_of(small, Flip(threshold=NEVER), **vars_of(SUBSTITUTE))
    ids = problem.ids.tolist()
    best = max(dense_margin(small, ids, apply(ids, edits)) for edits in singles(problem))
    Greedy()(problem, seed=0)
    assert problem.best.value == pytest.approx(best, rel=1e-6)
    assert problem.forwards == 1 + len(singles(problem)) and problem.backwards == 0


def vars_of(limits: EditLimits) -> dict:
    return {"edits": limits.edits, "allow": limits.allow}


@pytest.mark.parametrize("objective", [Flip(), KL(), Hidden(), Hidden(layer=1), Cosine()], ids=lambda o: str(o))
def test_batched_values_agree_with_single_ones(decoder, objective):
    """Substitutions, insertions and duplicates in one batch with shared prefixes, against whole texts one by one."""
    problem = problem_of(decoder, objective, TEXT)
    ids = problem.ids.tolist()
    edit_sets = [
        (Edit(3, "substitute", 40),),
        (Edit(9, "insert", 41),),
        (Edit(5, "duplicate", ids[5]),),
        (Edit(1, "substitute", 77), Edit(8, "insert", 60)),
        (Edit(10, "substitute", 99),),
    ]
    together = [candidate.value for candidate in problem.evaluate(edit_sets)]
    for edits, value in zip(edit_sets, together, strict=True):
        vectors = (decoder.embedding.matrix[torch.tensor(apply(t, e))][None] for t, e in ((ids, ()), (ids, edits)))
        with torch.no_grad():
            before, after = (objective.features(decoder.embedding, x) for x in vectors)
        alone = objective.value(after, before, torch.tensor([positions_after(len(ids), edits)]))
        assert_close(torch.tensor([value], dtype=torch.float64), alone, 1e-5)
        assert_close(torch.tensor([problem.forward(edits).candidate.value], dtype=torch.float64), alone, 1e-5)


def test_values_agree_with_their_definitions(decoder):
    """KL, relative change and cosine distance."""
    ids = whole_chunk(decoder.model, TEXT).ids
    attacked = ids.clone()
    attacked[4] = 50
    edits = (Edit(4, "substitute", 50),)
    with torch.no_grad():
        h, g = (decoder.model.network(input_ids=t[None]).last_hidden_state[0] for t in (ids, attacked))
        p, q = (decoder.model.language_head(t[-1:])[0].log_softmax(-1) for t in (h, g))
    references = {
        KL(): torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum"),
        Hidden(): (g - h).norm() / h.norm(),
        Cosine(): 1 - torch.nn.functional.cosine_similarity(h.mean(0), g.mean(0), dim=0),
    }
    for objective, reference in references.items():
        (candidate,) = problem_of(decoder, objective, TEXT).evaluate([edits])
        assert candidate.value == pytest.approx(float(reference), rel=1e-5)


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)
def test_calls_are_limited_and_counted(decoder, method):
    found = attack_text(decoder, TEXT, method, objective=Flip(threshold=NEVER), limits=EditLimits(edits=2), calls=25)
    assert found.calls == found.forwards + found.backwards <= 25
    assert not found.success and 1 <= len(found.edits) <= 2


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_direction_costs_no_more_calls_than_documented(decoder, steps):
    """`Singular` requires this number of calls before it starts, so that the limit holds."""
    problem = problem_of(decoder, Flip(), TEXT)
    direction = Singular(steps=steps).direction(problem)
    assert problem.calls_used - 1 <= 2 + 3 * (steps + 1)
    assert float(direction.norm()) == pytest.approx(1, rel=1e-5)


def test_a_call_is_a_sequence(decoder):
    """The counts agree with the number of sequences in the network's forward and backward passes."""
    seen = {"forward": 0, "backward": 0}
    network, _ = decoder.model.network, decoder.model.language_head  # its first use makes a forward pass

    def count(_module, _args, kwargs, output):
        batch = output.last_hidden_state
        seen["forward"] += len(batch)
        if batch.requires_grad:
            batch.register_hook(lambda grad: seen.__setitem__("backward", seen["backward"] + len(grad)))

    handle = network.register_forward_hook(count, with_kwargs=True)
    try:
        for method in (Random(), HotFlip(), Greedy(), Probe()):
            seen.update(forward=0, backward=0)
            found = attack_text(
                decoder, TEXT, method, objective=Flip(threshold=NEVER), limits=EditLimits(edits=2), calls=17
            )
            assert (found.forwards, found.backwards) == (seen["forward"], seen["backward"]), method.name
    finally:
        handle.remove()


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)
def test_seeds_reproduce_and_saved_attacks_verify(decoder, method):
    first, again = (
        attack_text(decoder, TEXT, method, limits=EditLimits(edits=2), calls=30, seed=3).as_record() for _ in range(2)
    )
    for record in (first, again):
        record.pop("seconds")
    assert same_record(first, again)
    record = json.loads(json.dumps(first))
    checked = verify(decoder, record)
    assert checked.holds and not checked.wrong and close(checked.value, record["value"], tol=1e-3)
    dense = dense_margin(decoder, record["ids"], record["attacked_ids"])
    assert record["value"] == pytest.approx(dense, abs=1e-5)


def test_verification_can_fail(decoder):
    record = attack_text(decoder, TEXT, limits=EditLimits(edits=1), calls=20).as_record()
    other = {**record, "attacked_ids": record["ids"]}
    assert "the edits do not give the attacked tokens" in verify(decoder, other).wrong
    for key, saved in (("value", record["value"] + 1), ("success", not record["success"])):
        checked = verify(decoder, {**record, key: saved})
        assert not checked.holds and [line.split(":")[0] for line in checked.wrong] == [key]
    with pytest.raises(InputError, match="without ids"):
        verify(decoder, {})


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)
def test_limits_are_respected(target, method):
    chunk = whole_chunk(target.model, TEXT)
    limits = EditLimits(edits=3, protected=(-1, 2, 3), similarity=0.05, allow=("substitute", "insert"))
    found = attack_text(target, chunk, method, objective=Hidden(), limits=limits, calls=26)
    matrix = target.embedding.matrix
    for edit in found.edits:
        assert edit.position not in (len(chunk) - 1, 2, 3) and not chunk.special[edit.position]
        assert edit.operation in limits.allow and target.writable[edit.token]
        current = matrix[chunk.ids[edit.position]]
        assert torch.nn.functional.cosine_similarity(matrix[edit.token], current, dim=0) >= 0.05
    assert len(found.edits) <= 3 and found.attacked_ids == tuple(apply(found.ids, found.edits))


def test_writable_tokens_retokenise_to_themselves(target):
    tokenizer = target.model.tokenizer
    tokens = torch.where(target.writable)[0].tolist()
    assert not set(tokens) & set(tokenizer.all_special_ids)
    for token in tokens[::50]:
        assert tokenizer(tokenizer.decode([token]), add_special_tokens=False)["input_ids"] == [token]


def test_retokenisation_is_checked():
    inner = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert retokenises(tokenizer, [1, 0, 2], [False] * 3)
    assert not retokenises(tokenizer, [1, 0, 1], [False] * 3)
    assert retokenises(tokenizer, [0, 2, 1], [False, False, True])  # special tokens are not part of the text


def test_dissimilar_texts_are_rejected(decoder, monkeypatch):
    monkeypatch.setattr("howsmooth.attack.tokens.methods.MAX_REJECTIONS", 20)
    limit = SentenceSimilarity(load(tiny_network("bert"), tokenizer=tiny_tokenizer("bert")), 0.9)
    found = attack_text(decoder, TEXT, Greedy(), objective=KL(), limits=SUBSTITUTE, calls=8, similarity=limit)
    assert limit.similarity(found.original, found.attacked) >= 0.9
    assert limit.similarity(TEXT, TEXT) == pytest.approx(1)


@pytest.mark.parametrize("objective", [KL(), KL(threshold=0.0), Flip()])
def test_without_a_permitted_edit_the_text_is_unchanged(decoder, monkeypatch, objective):
    monkeypatch.setattr("howsmooth.attack.tokens.methods.MAX_REJECTIONS", 5)
    limit = SentenceSimilarity(load(tiny_network("bert"), tokenizer=tiny_tokenizer("bert")), 1.0)
    found = attack_text(decoder, TEXT, Greedy(), objective=objective, limits=SUBSTITUTE, calls=8, similarity=limit)
    assert found.edits == () and close(found.value, found.clean) and not found.success
    assert found.attacked_ids == found.ids and "keeps to the limits" in found.notes["none"]
    assert verify(decoder, found.as_record()).holds
    assert objective.name != "flip" or found.next_tokens[0] == found.next_tokens[1]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"edits": 0}, "at least 1"),
        ({"edits": -1}, "at least 1"),
        ({"edits": True}, "at least 1"),
        ({"allow": ("remove",)}, "expected operations among"),
        ({"allow": ()}, "expected operations among"),
        ({"similarity": 2.0}, "cosine"),
    ],
)
def test_bad_limits(settings, message):
    with pytest.raises(InputError, match=message):
        EditLimits(**settings)


def test_bad_input(small):
    with pytest.raises(InputError, match="empty"):
        attack_text(small, " ")
    with pytest.raises(InputError, match="at least 2 tokens, got 1"):
        attack_text(small, "river")
    with pytest.raises(InputError, match="at most 8"):
        attack_text(small, SMALL_TEXT, limits=EditLimits(edits=9))
    with pytest.raises(InputError, match="protected"):
        attack_text(small, SMALL_TEXT, limits=EditLimits(protected=(40,)))
    with pytest.raises(InputError, match="calls"):
        attack_text(small, SMALL_TEXT, calls=1)
    with pytest.raises(InputError, match="direction takes"):
        attack_text(small, SMALL_TEXT, Singular(), calls=5)
    with pytest.raises(InputError, match="seed"):
        attack_text(small, SMALL_TEXT, seed=-1)
    with pytest.raises(InputError, match="64 positions"):
        attack_text(small, " ".join(["river"] * 64))
    with pytest.raises(InputError, match="layer"):
        attack_text(small, SMALL_TEXT, objective=Hidden(layer=9))


def test_encoders_are_refused_for_next_token_objectives():
    encoder = TargetModel(load(tiny_network("bert"), tokenizer=tiny_tokenizer("bert")))
    with pytest.raises(InputError, match="language head"):
        attack_text(encoder, TEXT)
    assert attack_text(encoder, TEXT, objective=Cosine(), calls=20).value > 0


def test_methods_are_registered_by_name():
    assert set(METHODS) == {"random", "hotflip", "greedy", "probe", "singular"}


def test_random_stops_if_no_token_is_allowed(small):
    problem = problem_of(small, Flip(threshold=NEVER), similarity=0.999999)
    Random()(problem, 0)
    assert problem.best is None and problem.calls_used == 1  # of the original


@pytest.mark.parametrize("method", [Random(), HotFlip(), Greedy(), Singular()], ids=lambda method: method.name)
def test_methods_refuse_limits_without_their_kinds_of_edits(small, method):
    with pytest.raises(InputError, match=f"{method.name}: expected limits that allow one of substitute, got insert"):
        attack_text(small, SMALL_TEXT, method, limits=EditLimits(allow=("insert",)))


def test_cosine_distance_is_not_negative():
    same = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    assert (Cosine().value(same, same, torch.empty(200, 0)) >= 0).all()

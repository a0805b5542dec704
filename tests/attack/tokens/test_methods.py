"""Searches against brute force on a vocabulary of twelve, the count of calls, limits, seeds, saved attacks."""

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
    Flip,
    Greedy,
    Hidden,
    HotFlip,
    Limits,
    Probe,
    Random,
    SentenceJudge,
    Singular,
    Victim,
    apply,
    attack_text,
    verify,
)
from howsmooth.attack.tokens.attack import whole_chunk
from howsmooth.attack.tokens.edits import kept, round_trips

from ...models.tiny import tiny_network, tiny_tokenizer
from ...tolerances import assert_close, close, same_record
from .conftest import NEVER, SMALL_TEXT, TEXT, problem_of

EVERY = [Random(), HotFlip(), Greedy(), Probe(), Singular()]
SUBSTITUTE = Limits(allow=("substitute",))


def singles(problem) -> list[tuple[Edit, ...]]:
    tokens = torch.where(problem.victim.writable)[0].tolist()
    return [(Edit(p, "substitute", t),) for p in problem.room.places for t in tokens if t != problem.ids[p]]


@torch.no_grad()
def dense_margin(victim, ids, attacked) -> float:
    """Flip's value by the whole network and the embedding as head, without anything of the attack's own."""
    before, after = (
        victim.model.network(input_ids=torch.as_tensor(t)[None]).last_hidden_state[0, -1]
        @ victim.model.network.get_input_embeddings().weight.T
        for t in (ids, attacked)
    )
    was = int(before.argmax())
    others = torch.cat([after[:was], after[was + 1 :]])
    return float(others.max() - after[was])


def test_greedy_with_all_calls_is_brute_force(small):
    problem = problem_of(small, Flip(threshold=NEVER), **vars_of(SUBSTITUTE))
    ids = problem.ids.tolist()
    best = max(dense_margin(small, ids, apply(ids, edits)) for edits in singles(problem))
    Greedy()(problem, seed=0)
    assert problem.best.value == pytest.approx(best, rel=1e-6)
    assert problem.forwards == 1 + len(singles(problem)) and problem.backwards == 0


def vars_of(limits: Limits) -> dict:
    return {"edits": limits.edits, "allow": limits.allow}


@pytest.mark.parametrize("objective", [Flip(), KL(), Hidden(), Hidden(layer=1), Cosine()], ids=lambda o: str(o))
def test_batched_is_one_by_one(decoder, objective):
    """Substitutions, insertions and duplicates in one batch, with beginnings shared, against whole texts alone."""
    problem = problem_of(decoder, objective, TEXT)
    ids = problem.ids.tolist()
    candidates = [
        (Edit(3, "substitute", 40),),
        (Edit(9, "insert", 41),),
        (Edit(5, "duplicate", ids[5]),),
        (Edit(1, "substitute", 77), Edit(8, "insert", 60)),
        (Edit(10, "substitute", 99),),
    ]
    together = [trial.value for trial in problem.evaluate(candidates)]
    for edits, value in zip(candidates, together, strict=True):
        vectors = (decoder.embedding.matrix[torch.tensor(apply(t, e))][None] for t, e in ((ids, ()), (ids, edits)))
        with torch.no_grad():
            before, after = (objective.features(decoder.embedding, x) for x in vectors)
        alone = objective.value(after, before, torch.tensor([kept(len(ids), edits)]))
        assert_close(torch.tensor([value], dtype=torch.float64), alone, 1e-5)
        assert_close(torch.tensor([problem.forward(edits).trial.value], dtype=torch.float64), alone, 1e-5)


def test_values_are_what_they_say(decoder):
    """KL, change and cosine by their definitions."""
    ids = whole_chunk(decoder.model, TEXT).ids
    attacked = ids.clone()
    attacked[4] = 50
    edits = (Edit(4, "substitute", 50),)
    with torch.no_grad():
        h, g = (decoder.model.network(input_ids=t[None]).last_hidden_state[0] for t in (ids, attacked))
        p, q = (decoder.model.language_head(t[-1:])[0].log_softmax(-1) for t in (h, g))
    truths = {
        KL(): torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum"),
        Hidden(): (g - h).norm() / h.norm(),
        Cosine(): 1 - torch.nn.functional.cosine_similarity(h.mean(0), g.mean(0), dim=0),
    }
    for objective, truth in truths.items():
        (trial,) = problem_of(decoder, objective, TEXT).evaluate([edits])
        assert trial.value == pytest.approx(float(truth), rel=1e-5)


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)
def test_calls_are_kept_to_and_counted(decoder, method):
    found = attack_text(decoder, TEXT, method, objective=Flip(threshold=NEVER), limits=Limits(edits=2), calls=25)
    assert found.calls == found.forwards + found.backwards <= 25
    assert not found.success and 1 <= len(found.edits) <= 2


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_direction_costs_what_it_says(decoder, steps):
    """No more than what is asked for at the door, so that calls are kept to."""
    problem = problem_of(decoder, Flip(), TEXT)
    direction = Singular(steps=steps).direction(problem)
    assert problem.spent - 1 <= 2 + 3 * (steps + 1)
    assert float(direction.norm()) == pytest.approx(1, rel=1e-5)


def test_a_call_is_a_sequence(decoder):
    """The count against the sequences that the network itself sees, forwards and backwards."""
    seen = {"forward": 0, "backward": 0}
    network, _ = decoder.model.network, decoder.model.language_head  # which is checked once, by a pass of its own

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
                decoder, TEXT, method, objective=Flip(threshold=NEVER), limits=Limits(edits=2), calls=17
            )
            assert (found.forwards, found.backwards) == (seen["forward"], seen["backward"]), method.name
    finally:
        handle.remove()


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)
def test_seeds_reproduce_and_saved_attacks_hold(decoder, method):
    first, again = (
        attack_text(decoder, TEXT, method, limits=Limits(edits=2), calls=30, seed=3).as_record() for _ in range(2)
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
    record = attack_text(decoder, TEXT, limits=Limits(edits=1), calls=20).as_record()
    other = {**record, "attacked_ids": record["ids"]}
    assert "the edits do not give the attacked tokens" in verify(decoder, other).wrong
    for key, saved in (("value", record["value"] + 1), ("success", not record["success"])):
        checked = verify(decoder, {**record, key: saved})
        assert not checked.holds and [line.split(":")[0] for line in checked.wrong] == [key]
    with pytest.raises(InputError, match="without ids"):
        verify(decoder, {})


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)
def test_limits_are_kept(victim, method):
    chunk = whole_chunk(victim.model, TEXT)
    limits = Limits(edits=3, protected=(-1, 2, 3), similarity=0.05, allow=("substitute", "insert"))
    found = attack_text(victim, chunk, method, objective=Hidden(), limits=limits, calls=26)
    matrix = victim.embedding.matrix
    for edit in found.edits:
        assert edit.position not in (len(chunk) - 1, 2, 3) and not chunk.special[edit.position]
        assert edit.kind in limits.allow and victim.writable[edit.token]
        there = matrix[chunk.ids[edit.position]]
        assert torch.nn.functional.cosine_similarity(matrix[edit.token], there, dim=0) >= 0.05
    assert len(found.edits) <= 3 and found.attacked_ids == tuple(apply(found.ids, found.edits))


def test_writable_tokens_read_as_themselves(victim):
    tokenizer = victim.model.tokenizer
    tokens = torch.where(victim.writable)[0].tolist()
    assert not set(tokens) & set(tokenizer.all_special_ids)
    for token in tokens[::50]:
        assert tokenizer(tokenizer.decode([token]), add_special_tokens=False)["input_ids"] == [token]


def test_a_text_that_reads_otherwise_is_noticed():
    inner = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert round_trips(tokenizer, [1, 0, 2], [False] * 3)
    assert not round_trips(tokenizer, [1, 0, 1], [False] * 3)
    assert round_trips(tokenizer, [0, 2, 1], [False, False, True])  # what is special is no part of the text


def test_a_judge_refuses_what_is_too_far(decoder, monkeypatch):
    monkeypatch.setattr("howsmooth.attack.tokens.methods.TRIES", 20)
    judge_model = load(tiny_network("bert"), tokenizer=tiny_tokenizer("bert"))
    judge = SentenceJudge(judge_model, 0.9)
    found = attack_text(decoder, TEXT, Greedy(), objective=KL(), limits=SUBSTITUTE, calls=8, judge=judge)
    assert judge.similarity(found.original, found.attacked) >= 0.9
    assert judge.similarity(TEXT, TEXT) == pytest.approx(1)


@pytest.mark.parametrize("objective", [KL(), KL(threshold=0.0), Flip()])
def test_a_text_without_a_permitted_edit_stays_as_it_is(decoder, monkeypatch, objective):
    monkeypatch.setattr("howsmooth.attack.tokens.methods.TRIES", 5)
    judge = SentenceJudge(load(tiny_network("bert"), tokenizer=tiny_tokenizer("bert")), 1.0)
    found = attack_text(decoder, TEXT, Greedy(), objective=objective, limits=SUBSTITUTE, calls=8, judge=judge)
    assert found.edits == () and close(found.value, found.clean) and not found.success
    assert found.attacked_ids == found.ids and "keeps to the limits" in found.notes["none"]
    assert verify(decoder, found.as_record()).holds
    assert objective.name != "flip" or found.says[0] == found.says[1]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"edits": 0}, "at least 1"),
        ({"edits": -1}, "at least 1"),
        ({"edits": True}, "at least 1"),
        ({"allow": ("remove",)}, "kinds of edits"),
        ({"allow": ()}, "kinds of edits"),
        ({"similarity": 2.0}, "cosine"),
    ],
)
def test_bad_limits(settings, said):
    with pytest.raises(InputError, match=said):
        Limits(**settings)


def test_bad_input(small):
    with pytest.raises(InputError, match="empty"):
        attack_text(small, " ")
    with pytest.raises(InputError, match="at least 2 tokens, got 1"):
        attack_text(small, "river")
    with pytest.raises(InputError, match="at most 8"):
        attack_text(small, SMALL_TEXT, limits=Limits(edits=9))
    with pytest.raises(InputError, match="protected"):
        attack_text(small, SMALL_TEXT, limits=Limits(protected=(40,)))
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


def test_an_encoder_has_no_next_token():
    encoder = Victim(load(tiny_network("bert"), tokenizer=tiny_tokenizer("bert")))
    with pytest.raises(InputError, match="language head"):
        attack_text(encoder, TEXT)
    assert attack_text(encoder, TEXT, objective=Cosine(), calls=20).value > 0


def test_every_method_has_its_name():
    assert set(METHODS) == {"random", "hotflip", "greedy", "probe"} and Singular.name == "singular"


def test_random_ends_where_no_token_may_come(small):
    problem = problem_of(small, Flip(threshold=NEVER), similarity=0.999999)
    Random()(problem, 0)
    assert problem.best is None and problem.spent == 1  # the original alone


@pytest.mark.parametrize("method", [Random(), HotFlip(), Greedy(), Singular()], ids=lambda method: method.name)
def test_methods_make_no_edits_that_are_not_allowed(small, method):
    with pytest.raises(InputError, match=f"{method.name}: expected limits that allow one of substitute, got insert"):
        attack_text(small, SMALL_TEXT, method, limits=Limits(allow=("insert",)))


def test_a_text_is_no_less_than_like_itself():
    same = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    assert (Cosine().value(same, same, torch.empty(200, 0)) >= 0).all()

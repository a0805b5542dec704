"""The monitor of a training: its numbers against dense ones, what it leaves alone, and what it says."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, OPTConfig

import howsmooth
from howsmooth.attention import attention_statistics
from howsmooth.errors import InputError
from howsmooth.training.monitor import Monitor
from tests.tolerances import FLOAT32, assert_close, at_most

N, VOCABULARY = 8, 24


def make_network(seed: int = 0, **changes) -> GPT2LMHeadModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = dict(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
        sizes |= dict(bos_token_id=0, eos_token_id=0)
        return GPT2LMHeadModel(GPT2Config(**(sizes | changes))).train()


def batches(seed: int = 0, n: int = N):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(VOCABULARY, (4, n), generator=generator)


def train(network, steps: int, monitor: Monitor | None = None, wrapped=None, **options):
    """Train and call the monitor after each step; return what it measured."""
    torch.manual_seed(1)  # of dropout
    optimiser = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-2)
    given, found = batches(**options), []
    for step in range(steps):
        ids = next(given)
        logits = (network if wrapped is None else wrapped)(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if monitor is not None and (measured := monitor.step(step)) is not None:
            found.append(measured)
    return found


def dense_norm(network, layer: int, ids: torch.Tensor, kind: str = "attention") -> float:
    """The norm of a map of a network as it is, by its dense Jacobian in float64."""
    training = network.training
    model = howsmooth.load(network.eval())
    at = model.map_at(ids, layer, kind)
    f = at.f.converted(dtype=torch.float64) if kind == "attention" else at.f.double()
    J = torch.func.jacrev(lambda x: f(x.view_as(at.x)).flatten())(at.x.double().flatten())
    network.train(training)
    return float(torch.linalg.matrix_norm(J, 2))


@pytest.mark.parametrize("kind", ["attention", "layer"])
def test_values_are_those_of_the_dense_jacobian_all_the_way(kind):
    network, probe = make_network(), torch.arange(N)
    monitor, optimiser = Monitor(network, every=4, maps=kind, probe=probe), None
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    given, compared = batches(), 0
    for step in range(9):
        ids = next(given)
        network(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        for record in monitor.step(step) or ():
            copied = make_network()  # a copy in float64 must not touch what is trained
            copied.load_state_dict(network.state_dict())
            exact = dense_norm(copied, record["layer"], probe, kind)
            assert record["value"] == pytest.approx(exact, rel=0.01)
            assert at_most(record["value"], exact, tol=FLOAT32) and at_most(record["lower"], exact)
            assert at_most(record["residual"], 0.02 * record["value"]) and record["upper"] is None
            compared += 1
    assert compared == 6  # three measurements of two layers


def test_training_is_the_same_with_and_without_it():
    first, second = make_network(), make_network()  # with dropout, which draws
    train(first, 7)
    assert len(train(second, 7, Monitor(second, every=2, maps=("attention", "layer")))) == 4
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)  # exact: the same operations on the same numbers


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_statistics_are_those_of_the_models_own_attention(family):
    """Llama has groups of keys; OPT has no adapter."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCABULARY, num_hidden_layers=2, num_attention_heads=4, hidden_size=16)
    if family == "gpt2":
        network = make_network()
    elif family == "llama":
        network = LlamaForCausalLM(
            LlamaConfig(**sizes, intermediate_size=16, num_key_value_heads=2, initializer_range=0.3)
        )
    else:
        from transformers import OPTForCausalLM

        sizes = sizes | dict(ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=16, init_std=0.3)
        network = OPTForCausalLM(OPTConfig(**sizes))
    network.train().set_attn_implementation("eager")
    ids = torch.arange(N)
    found = Monitor(network, probe=ids).step(0)
    with torch.no_grad():
        weights = network.eval()(input_ids=ids[None], output_attentions=True).attentions
    for record in found:
        p = weights[record["layer"]][0].double()
        assert_close(record["entropy"], float(-torch.special.xlogy(p, p).sum(-1).mean()), FLOAT32)
        assert_close(record["sink_share"], float(p.mean((0, 1)).max()), FLOAT32)
        assert record["sink_position"] == int(p.mean((0, 1)).argmax())


def test_statistics_of_masks_and_sinks():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 5, 3, generator=generator, dtype=torch.float64)
    sinks, padding = torch.tensor([0.5, -1.0]), torch.tensor([[True, True, True, False, True]])
    s = (q @ k.mT / math.sqrt(3)).masked_fill(~padding[:, None, None] | (torch.ones(5, 5).tril() == 0), -math.inf)
    p = torch.cat([s, sinks.double()[None, :, None, None].expand(1, 2, 5, 1)], -1).softmax(-1)[..., :5]
    found = attention_statistics(q, k, k, causal=True, padding=padding, sinks=sinks)
    assert_close(found.largest_logit, float(s.max()))
    assert_close(found.entropy, float(-torch.special.xlogy(p, p).sum(-1).mean()))
    assert_close(found.sink_share, float(p.mean((0, 1, 2)).max()))


class TestHowItIsTrained:
    """Each case is measured as a copy in float32 without any of it is."""

    @pytest.mark.parametrize(
        "case", ["autocast", "bfloat16", "checkpointing", "compiled", "in place", "frozen", "no_grad", "parallel"]
    )
    def test_values_are_those_of_the_plain_model(self, case):
        network = make_network()
        wrapped: torch.nn.Module = network
        if case == "bfloat16":
            network.bfloat16()
        if case == "checkpointing":
            network.gradient_checkpointing_enable()
        if case == "frozen":
            network.transformer.h[0].requires_grad_(False)
        if case == "compiled":
            wrapped = torch.compile(network, backend="eager", fullgraph=True)
        if case == "in place":
            network.compile(backend="eager", fullgraph=True)
        if case == "parallel":
            wrapped = torch.nn.DataParallel(network)  # without a GPU it calls the module itself
        monitor = Monitor(wrapped, every=1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case == "autocast"):
            found = train(network, 2, monitor, wrapped)[-1]
        if case == "no_grad":
            with torch.no_grad():
                found = monitor.step(2)
        assert found is not None and monitor.active
        plain = make_network()
        plain.load_state_dict({key: value.float() for key, value in network.state_dict().items()})
        given = batches()
        ids = [next(given) for _ in range(2)][-1][0]
        for record in found:
            exact = dense_norm(plain, record["layer"], ids)
            # In bfloat16 the tokens that enter attention are rounded, by 8 bits.
            assert record["value"] == pytest.approx(exact, rel=0.03 if case == "bfloat16" else 0.01)

    def test_weights_that_were_moved_are_found_again(self):
        network = make_network()
        monitor = Monitor(network, probe=torch.arange(N))
        monitor.step(0)
        network.double()  # new memory
        (record, _) = monitor.step(50)
        assert record["model_dtype"] == "float64"
        assert record["value"] == pytest.approx(dense_norm(network, 0, torch.arange(N)), rel=0.01)

    def test_low_rank_updates(self):
        peft = pytest.importorskip("peft")
        network = make_network()
        wrapped = peft.get_peft_model(network, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.5)
        monitor = Monitor(wrapped.train(), probe=torch.arange(N))
        (record, _) = monitor.step(0)
        merged = wrapped.eval().merge_and_unload()
        assert record["value"] == pytest.approx(dense_norm(merged.requires_grad_(), 0, torch.arange(N)), rel=0.01)

    def test_only_rank_0_measures(self, monkeypatch):
        network = make_network()
        monitor = Monitor(network, probe=torch.arange(N))
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        assert monitor.step(0) is None and monitor.active and not monitor.records


class TestProbe:
    def test_a_batch_of_them(self):
        ids = torch.stack([torch.arange(N), torch.arange(N) + 3])
        found = Monitor(make_network(), probe=ids).step(0)
        assert [(r["layer"], r["sample"]) for r in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert found[0]["text_sha256"] == found[1]["text_sha256"] != found[2]["text_sha256"]

    def test_the_current_batch_without_its_padding(self):
        network = make_network()
        monitor = Monitor(network)
        mask = torch.tensor([[1] * 5 + [0] * 3] * 2)
        network(input_ids=torch.arange(2 * N).view(2, N), attention_mask=mask)
        assert [record["n"] for record in monitor.step(0)] == [5, 5]

    def test_before_the_first_batch_it_is_off_with_a_reason(self):
        monitor = Monitor(make_network())
        with pytest.warns(UserWarning, match=r"off from step 0 on, and the training goes on: expected a forward pass"):
            assert monitor.step(0) is None
        assert not monitor.active and monitor.step(50) is None

    def test_another_shape_is_said_once(self):
        network = make_network()
        monitor = Monitor(network, every=1)
        for step, n in enumerate((4, 5, 6)):
            network(input_ids=torch.arange(n)[None])
            if n == 5:
                with pytest.warns(UserWarning, match="expected batches of one shape, got another at step 1"):
                    monitor.step(step)
            else:
                monitor.step(step)  # a warning would be an error
        assert {record["n"] for record in monitor.records} == {4, 5, 6}


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"every": 0}, "expected every as a whole number of steps from 1, got 0"),
            ({"maps": ("attentoin",)}, "expected a map among attention, .*, got 'attentoin'"),
            ({"maps": "head"}, "expected a map among .*, got 'head'"),
            ({"maps": ()}, "expected maps among .*, got none"),
            ({"layers": [7]}, "expected layers of GPT2LMHeadModel between 0 and 1, got 7"),
            ({"probe": torch.tensor([99])}, "expected token numbers from 0 to 23"),
            ({"tol": 0}, "expected tol as a number between 0 and 1"),
            ({"path": "constants.csv"}, "expected a path that ends in .jsonl"),
        ],
    )
    def test_arguments(self, options, message):
        with pytest.raises(InputError, match=message):
            Monitor(make_network(), **options)

    def test_a_model_without_gradients(self):
        with pytest.raises(InputError, match="expected a model that is trained, got one without a weight that"):
            Monitor(make_network().requires_grad_(False))

    def test_no_model(self):
        with pytest.raises(InputError, match="expected a transformers model, got str"):
            Monitor("gpt2")

    def test_a_model_in_evaluation_mode_is_measured_and_said_once(self):
        monitor = Monitor(make_network().eval(), every=1, probe=torch.arange(N))
        with pytest.warns(UserWarning, match="expected a model in training mode, got one in evaluation mode at step 0"):
            assert monitor.step(0) is not None
        assert monitor.step(1) is not None

    def test_a_map_that_the_model_does_not_have(self):
        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
        network = BertModel(config)
        network.encoder.layer[0].attention.output.LayerNorm = torch.nn.Identity()
        with pytest.raises(InputError, match="block: expected"):
            Monitor(network.train(), maps="block")

    def test_its_mode_is_left_alone(self):
        network = make_network()
        network.transformer.h[1].eval()
        Monitor(network)
        assert [module.training for module in network.transformer.h] == [True, False]

    def test_an_error_of_its_own_switches_it_off(self):
        network = make_network()
        monitor = Monitor(network, every=1, probe=torch.arange(N))
        with torch.no_grad():
            network.transformer.h[0].attn.c_attn.weight.fill_(math.nan)
        with pytest.warns(UserWarning, match="the monitor is off from step 0 on, and the training goes on"):
            monitor.step(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert monitor.step(1) is None


class TestRecords:
    def test_they_are_those_of_measure_with_names_for_loggers(self, tmp_path):
        network = make_network()
        monitor = Monitor(network, every=2, maps=("attention", "layer"), path=str(tmp_path / "constants.jsonl"))
        train(network, 5, monitor)
        read = howsmooth.read(tmp_path / "constants.jsonl")
        assert read.records == monitor.records and len(read) == 3 * 2 * 2
        assert read.notes == []
        names = monitor.scalars(prefix="smooth")
        assert "smooth/attention/lipschitz/layer_1/n_8/value" in names
        assert "smooth/attention/lipschitz/layer_1/n_8/largest_logit" in names
        assert sum(name.endswith("entropy") for name in names) == 2  # once for each layer
        last = [record for record in monitor.records if record["training_step"] == 4]
        assert names["smooth/layer/lipschitz/layer_0/n_8/value"] == last[2]["value"]  # exact: copied

    def test_they_are_drawn_against_steps(self, tmp_path):
        network = make_network()
        monitor = Monitor(network, every=1, maps=("attention", "layer"))
        train(network, 3, monitor)
        from howsmooth.report.charts import growth_charts

        constants, logits, layers = growth_charts(monitor.records, {})
        assert constants.x_axis.label == "training step" and logits.y_axis.label == "largest logit of attention"
        assert list(layers.series[1].x) == [0, 1, 2]
        page = monitor.measurements.report(tmp_path / "page.html").read_text()
        assert "training step" in page and "expected to miss" not in page
        assert "in training: Lip of its attention layers, steps 0 to 2" in str(monitor.measurements)

    def test_a_file_is_continued(self, tmp_path):
        path = str(tmp_path / "constants.jsonl")
        first = make_network()
        train(first, 5, Monitor(first, every=2, path=path))
        monitor = Monitor(first, every=2, path=path, probe=torch.arange(N))
        monitor.step(6)
        steps = [record["training_step"] for record in howsmooth.read(path)]
        assert steps == [0, 0, 2, 2, 4, 4, 6, 6]
        assert len({record["run"] for record in monitor.records}) == 1

    def test_a_training_that_is_taken_back_replaces_later_steps(self, tmp_path):
        path = str(tmp_path / "constants.jsonl")
        network = make_network()
        train(network, 5, Monitor(network, every=2, path=path))
        monitor = Monitor(network, every=2, path=path, probe=torch.arange(N))
        with pytest.warns(UserWarning, match="continues at step 2: 4 records of this step and later ones are replaced"):
            monitor.step(2)
        assert [record["training_step"] for record in howsmooth.read(path)] == [0, 0, 2, 2]

    def test_another_file_is_refused(self, tmp_path):
        path = tmp_path / "constants.jsonl"
        path.write_text('{"kind": "bound"}\n{"kind": "bound"}\n')
        with pytest.raises(InputError, match="expected records of a monitor, one JSON object per line"):
            Monitor(make_network(), path=str(path))

    def test_its_state_continues_a_checkpoint(self):
        network = make_network()
        monitor = Monitor(network, every=2, probe=torch.arange(N))
        assert monitor.step() is not None and monitor.step() is None
        resumed = Monitor(network, every=2, probe=torch.arange(N))
        resumed.load_state_dict(monitor.state_dict())
        (record, _) = resumed.step()
        assert record["training_step"] == 2 and record["steps"] == 4  # warm: the weights are the same

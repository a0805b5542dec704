"""The monitor in transformers' Trainer, in Lightning and in two processes, each with the real library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

import howsmooth
from howsmooth.errors import InputError
from howsmooth.training import LightningMonitor, TrainerMonitor
from tests import reasons
from tests.training.test_monitor import VOCABULARY, N, dense_norm, make_network

PROBE = list(range(N))


def examples() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"input_ids": ids, "labels": ids} for ids in torch.randint(VOCABULARY, (16, N), generator=generator).unbind()
    ]


def run_trainer(folder, callback: TrainerMonitor, network) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        max_steps=4,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(network, arguments, train_dataset=examples(), callbacks=[callback])
    trainer.train()
    return trainer


class TestTrainer:
    def test_it_measures_and_logs(self, tmp_path):
        callback, network = TrainerMonitor(every=2, path=str(tmp_path / "constants.jsonl")), make_network()
        trainer = run_trainer(tmp_path, callback, network)
        assert callback.monitor.active
        logged = [entry for entry in trainer.state.log_history if any(name.startswith("howsmooth/") for name in entry)]
        assert [entry["step"] for entry in logged] == [2, 4]
        records = howsmooth.read(tmp_path / "constants.jsonl")
        assert [record["training_step"] for record in records] == [2, 2, 4, 4]
        last = records[-1]
        assert logged[-1]["howsmooth/lipschitz/layer_1/n_8/value"] == last["value"]  # exact: copied

    def test_it_sends_scalars_where_it_is_told(self, tmp_path):
        callback, sent = TrainerMonitor(every=4, probe=PROBE), []
        callback.log = sent.append
        network = make_network()
        run_trainer(tmp_path, callback, network)
        value = sent[0]["howsmooth/lipschitz/layer_0/n_8/value"]
        assert value == pytest.approx(dense_norm(network, 0, torch.tensor(PROBE)), rel=0.01)

    def test_names_are_checked_before_training_and_the_model_when_it_begins(self, tmp_path):
        with pytest.raises(InputError, match="expected a map among"):
            TrainerMonitor(maps="attentoin")
        callback = TrainerMonitor(probe=[99])
        with pytest.warns(UserWarning, match="there is no monitor, and the training goes on: expected token numbers"):
            trainer = run_trainer(tmp_path, callback, make_network())
        assert callback.monitor is None and trainer.state.global_step == 4


class TestLightning:
    @pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own
    @pytest.mark.filterwarnings("ignore::UserWarning:lightning")
    def test_it_measures_and_logs(self, tmp_path):
        lightning = pytest.importorskip("lightning.pytorch", reason=reasons.LIGHTNING)
        from lightning.pytorch.loggers import CSVLogger

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.network = make_network()

            def training_step(self, batch, index):
                return self.network(**batch).loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def run(steps: int, module, callback, checkpoint=None):
            trainer = lightning.Trainer(
                max_steps=steps,
                callbacks=[callback],
                logger=CSVLogger(str(tmp_path)),
                log_every_n_steps=1,
                accelerator="cpu",
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=str(tmp_path),
            )
            trainer.fit(module, torch.utils.data.DataLoader(examples(), batch_size=4), ckpt_path=checkpoint)
            return trainer

        callback, module = LightningMonitor(every=2), Module()
        trainer = run(4, module, callback)
        assert [record["training_step"] for record in callback.monitor.records] == [2, 2, 4, 4]
        written = Path(trainer.logger.log_dir, "metrics.csv").read_text().splitlines()
        assert "howsmooth/lipschitz/layer_1/n_8/value" in written[0]
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        again = LightningMonitor(every=2)
        run(6, Module(), again, str(tmp_path / "last.ckpt"))
        assert [record["training_step"] for record in again.monitor.records] == [6, 6]

    def test_without_it_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "lightning", None)
        with pytest.raises(InputError, match=r"howsmooth\[lightning\]"):
            LightningMonitor()


def _train_in_process(rank: int, folder: str) -> None:
    from howsmooth.training.monitor import Monitor

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    network = make_network()
    wrapped = torch.nn.parallel.DistributedDataParallel(network)
    monitor = Monitor(wrapped, every=2, path=f"{folder}/constants-{rank}.jsonl")
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for step in range(3):
        batch = torch.stack([example["input_ids"] for example in examples()[4 * rank : 4 * rank + 4]])
        optimiser.zero_grad()
        wrapped(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        measured = monitor.step(step)
        assert (measured is None) == (rank == 1 or step == 1)
    torch.save(network.state_dict(), f"{folder}/weights-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_of_two_processes_one_measures(tmp_path):
    torch.multiprocessing.spawn(_train_in_process, (str(tmp_path),), nprocs=2)
    records = howsmooth.read(tmp_path / "constants-0.jsonl")
    assert [record["training_step"] for record in records] == [0, 0, 2, 2]
    assert not (tmp_path / "constants-1.jsonl").exists()
    network = make_network()
    network.load_state_dict(torch.load(tmp_path / "weights-1.pt", weights_only=True))  # the same on both
    exact = dense_norm(network, 0, examples()[0]["input_ids"])
    assert records[2]["value"] == pytest.approx(exact, rel=0.01)

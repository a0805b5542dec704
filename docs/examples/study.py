"""Run a study, interrupt it and resume it: stored records are not computed again."""

from pathlib import Path

from howsmooth.fits import growth_laws
from howsmooth.records import CURVE
from howsmooth.report import draw, growth_picture, save_figure
from howsmooth.studies import Store, read_study, run_study

Path("growth.toml").write_text(
    """
models = ["minilm"]
texts = ["embedded"]
cutting = "prefixes"             # nested chunks: only n changes
lengths = "16..128*2"
samples = 2
layers = [0, 3]
engine = { workers = 0 }         # run in this process; or a number of processes, or name = "ray"
""",
    encoding="utf-8",
)
study = read_study("growth.toml")


def stop_halfway(state):
    """Interrupt the study after half of its tasks."""
    if state.done * 2 >= state.total:
        raise KeyboardInterrupt  # as Ctrl-C does


try:
    run_study(study, "growth.sqlite", progress=stop_halfway)
except KeyboardInterrupt:
    with Store.read("growth.sqlite") as store:
        counts = store.counts()
    print(f"stopped with {counts['done']} of {counts['planned']} records stored")
print(f"again: {run_study(study, 'growth.sqlite')['done']} records")

with Store.read("growth.sqlite") as store:
    records = list(store.records())
laws = growth_laws(records)
for curve, law in laws.items():
    print(f"layer {curve[CURVE.index('layer')]}: {law.verdict}", end="")
    print(f", n^{law.exponent:.2f}" if law.shown else "")  # a rejected law has no exponent
save_figure(draw(growth_picture(records, laws)), "example-study.png")

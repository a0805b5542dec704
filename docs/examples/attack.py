"""Compare two attacks on a layer at equal budget, and search for tokens with a large Lipschitz constant."""

import torch

import howsmooth
from howsmooth.attack import Ellipsoid, worst_case
from howsmooth.attack.feature import Budget, Noise, SingularDirection, Target, run

model = howsmooth.load("minilm")
(chunk,) = model.chunks("The river moves slowly under the old stone bridge.", 12, 1)
layer = Target.in_model(model, chunk, 3)
for attack in (Noise(), SingularDirection()):
    found = run(attack, layer, Budget(0.5))  # ‖E‖ ≤ 0.5
    name = type(attack).__name__
    print(f"{name:<17} moves the output by {found.change:.2f}, {found.gain:.2f} per unit")

f = model.attention(3).to(torch.float64)
worst = worst_case(f, 8, Ellipsoid(model.normalisation(3)), restarts=2, steps=15)
print(f"8 tokens behind the same LayerNorm, by ascent: {worst.value:.0f}")

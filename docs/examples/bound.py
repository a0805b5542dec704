"""Compare the measured constant with bounds at this input and for all outputs of the LayerNorm."""

import howsmooth
from howsmooth import bounds
from howsmooth.bounds.normalisation import radius

model = howsmooth.load("minilm")
x = model.inputs("The harbour was quiet, and the keeper counted the ships.", layer=3)
f = model.attention(3)
found = howsmooth.local_lipschitz(f, x)
R = float(radius(model.normalisation(3)))  # the largest norm of a token

print(f"measured {found.value:.2f} on {len(x)} tokens within R = {R:.2f}")
for bound in bounds.every(f, len(x), R, x):
    if isinstance(bound, bounds.Bound) and bound.value is not None and bound.value < 1e9:
        sign = "≤" if bound.side == "upper" else "≥"
        print(f"{sign} {bound.value:9,.1f}  {bound.holds:<9} {bound.title}")

ball = bounds.certify_ball(f, x, 1e-3, at_center=found.upper)
print(f"certified for every input with each token within 0.001 of its value: {ball.value:.2f}")

"""Measure one layer on one text: the constant, its interval, and the tokens of the worst perturbation."""

import howsmooth

model = howsmooth.load("minilm")  # or a folder, a .gguf file, a name on the hub
text = "The harbour was quiet, and the keeper counted the ships."
x = model.inputs(text, layer=3)  # the tokens that enter attention, (n, d)
f = model.attention(3)  # the map: all heads, no residual

found = howsmooth.local_lipschitz(f, x)
print(f"σ₁ = {found.value:.3f} in [{found.lower:.3f}, {found.upper:.3f}], {found.confidence:.1%} sure")
print(f"relative: an input error of 1 % becomes up to {found.relative:.0f} % of the output")
print(f"by finite differences along the worst direction: {found.check():.3f}")

words = model.tokenizer.tokenize(text, add_special_tokens=True)
gains = howsmooth.token_gains(f, x).value  # the amplification if each token is perturbed alone
for word, position, share in found.with_tokens(words).top_tokens(3):
    print(f"{word:>8}  {share:4.0%} of the worst direction, {gains[position]:5.2f} if it moves alone")

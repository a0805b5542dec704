"""Do the constants predict what an attacker can do? Many texts, one attack each, and rank correlations over texts.

    predictors      local constants, bounds, splitting, norms, attention entropy
    measurements    predictors and attacks, one record per text and place (a layer, the model, the tokens)
    correlation     rank correlations over texts with intervals and p-values
    evaluation      correlations and calibration of all predictors and outcomes
    __main__        python -m experiments.prediction

The page docs/robustness.md has the answer.
"""

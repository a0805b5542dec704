"""Do the constants predict what an attacker can do? Many texts, one attack each, and rank correlations over texts.

    measurements    predictors and attacks, one record per text and place
    statistics      rank correlations with intervals over texts, adjusted p-values, calibration
    __main__        python -m experiments.prediction

The page docs/prediction.md has the answer.
"""

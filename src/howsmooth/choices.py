"""The names among which a user chooses: the only lists of them, for Python, commands, studies and docs.

Nothing here imports torch, so that options are checked quickly. The classes behind the names take them from here.
"""

STOPS = INTERVAL, RESIDUAL = ("interval", "residual")  # what ends a solve
CUTTINGS = ("consecutive", "documents", "prefixes")  # how chunks are cut from a text
FORMATS = ("auto", "text", "ag_news")  # of a text
TOKENS = ("all", "no-special", "no-first")  # that a perturbation may move
MATRIX_NAMES = IDENTITY, MINUS_IDENTITY, ROTATION, RANDOM_MATRIX = ("identity", "-identity", "rotation", "random")
OPERATIONS = SUBSTITUTE, INSERT, DUPLICATE = ("substitute", "insert", "duplicate")  # of an edit of a text
METHODS = RANDOM, HOTFLIP, GREEDY, PROBE, SINGULAR = ("random", "hotflip", "greedy", "probe", "singular")
ONLY_SUBSTITUTE = (RANDOM, HOTFLIP, GREEDY, SINGULAR)  # of those
FEATURE_OBJECTIVES = OUTPUT, NEXT_TOKEN, COSINE = ("output", "next-token", "cosine")
TEXT_OBJECTIVES = FLIP, KL, HIDDEN, _ = ("flip", "kl", "hidden", COSINE)

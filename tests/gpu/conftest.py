"""`--share i/n` runs every n-th test from the i-th on: `python -m tests.gpu` runs all shares side by side."""


def pytest_addoption(parser):
    parser.addoption("--share", default="0/1", help="i/n: every n-th test, from the i-th on")


def pytest_collection_modifyitems(config, items):
    # Unknown to pytest where the whole tree is asked for: then this folder is found after the options were read.
    i, n = map(int, config.getoption("--share", "0/1").split("/"))
    config.hook.pytest_deselected(items=[item for j, item in enumerate(items) if j % n != i])
    items[:] = items[i::n]

"""`--share i/n` runs every n-th test from the i-th on; `python -m tests.gpu` runs all shares in parallel."""


def pytest_addoption(parser):
    parser.addoption("--share", default="0/1", help="i/n: every n-th test, from the i-th on")


def pytest_collection_modifyitems(config, items):
    # If pytest collects the whole tree, it reads the options before it finds this folder: then the default holds.
    i, n = map(int, config.getoption("--share", "0/1").split("/"))
    config.hook.pytest_deselected(items=[item for j, item in enumerate(items) if j % n != i])
    items[:] = items[i::n]

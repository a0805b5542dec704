"""Engines run bundles of tasks: in this process, in several processes of this machine, or on a Ray cluster.

    engine(bundles, work, …) -> Iterator[list[TaskResult]]

`work(bundle)` yields lists of results. A bundle has `tasks`, a list of hashes, and `without(done)`. An engine takes a
bundle from the iterable whenever it can start one. It retries the unfinished tasks of a lost worker, and returns those
that cannot be computed as results with an error message.
"""

"""Where bundles run. An engine takes bundles and a `work` function, and yields rows as they come.

    engine(bundles, work, …) -> Iterator[list[Row]]

`work(bundle)` yields lists of rows. A bundle has `tasks` (hashes) and `without(done)`. An engine asks for bundles as it
has room for them, tries again what a lost worker had in hand, and ends what cannot be done with rows that say why.
"""

"""The views over real rows: loads what a query needs and puts the views on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from dataplane.sql.load import Source
from dataplane.sql.plan import Planner
from dataplane.sql.render import base_reads, plain_select, samples_select, texts_of, tokens_select
from dataplane.sql.views import VOCABULARY


class Builder:
    """Builds the views of one store, called ``PREFIXsamples`` and so on, in a planner's connection."""

    def __init__(self, planner: Planner, prefix: str, source: Source) -> None:
        self.planner, self.prefix, self.source = planner, prefix, source

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self.planner.connection

    def build(self, needed: Mapping[str, Sequence[str]]) -> None:
        """Put rows behind the views in *needed* (view → columns that have to be right); the others stay empty."""
        for view in needed.keys() & {"steps", "events", "blocks"}:
            base = f"{self.prefix}base_{view}"
            self.connection.register(base, self.source.whole(view))
            self._replace(view, [plain_select(self.source.views[view], base)])
        if needed.keys() & {"samples", "tokens"}:
            self._build_over_partitions(needed)

    def _build_over_partitions(self, needed: Mapping[str, Sequence[str]]) -> None:
        views = self.source.views
        reads = [read for view in ("samples", "tokens") for read in base_reads(view, views[view], needed.get(view, ()))]
        if VOCABULARY in reads:
            self.connection.register(texts_of(self.prefix), self.source.vocabulary())
        bases = {name: f"{self.prefix}base_{number}" for number, name in enumerate(self.source.partitions)}
        for partition, base in bases.items():
            self.connection.register(base, self.source.base(partition, reads))
        if names := needed.get("samples"):
            selects = [samples_select(views["samples"], names, *each) for each in bases.items()]
            self._replace("samples", selects)
        if names := needed.get("tokens"):
            selects = [tokens_select(names, *each, texts_of(self.prefix)) for each in bases.items()]
            self._replace("tokens", selects)

    def _replace(self, view: str, selects: Sequence[str]) -> None:
        """The empty SELECT comes first: it gives each column its type, and is all there is without partitions."""
        name = self.prefix + view
        body = " union all ".join([self.planner.empty(name), *selects])
        self.connection.execute(f"create or replace view {name} as {body}")

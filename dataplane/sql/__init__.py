"""SQL over a store: ``run_sql`` (Arrow), ``stream_sql`` (record batches), ``explain_sql`` (what a query reads)."""

from dataplane.sql.run import explain_sql, run_sql, stream_sql
from dataplane.sql.session import Limits

__all__ = ["Limits", "explain_sql", "run_sql", "stream_sql"]

"""``docs/columns.md`` says what is declared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dataplane import open_plane
from dataplane.sql import run_sql
from dataplane.sql.docs import columns_page
from schemas.columns import REGISTRY

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def test_the_page_is_rendered_from_what_is_declared() -> None:
    assert PAGE.read_text() == columns_page(), "run: python -m dataplane.sql.docs > docs/columns.md"


def test_every_column_that_a_store_shows_is_on_the_page() -> None:
    page = columns_page()
    with open_plane("memory://") as plane:
        plane.create_partition("train", list(REGISTRY))
        for view in ("samples", "tokens", "steps", "events", "blocks"):
            for column in run_sql(plane, f"describe {view}").to_pylist():
                assert f"| `{column['column_name']}` |" in page and column["doc"] in page.replace("\\|", "|")


def test_a_table_row_names_type_unit_and_meaning() -> None:
    row = "| `gap` | `float` | nats | teacher_logprob - student_logprob |"
    assert row in columns_page().splitlines()
    assert str(pa.float32()) == "float"

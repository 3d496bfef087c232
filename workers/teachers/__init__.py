"""Teachers on resources of their own: where their ranks go, how they are reserved, started and asked.

    placement.py     which nodes; pure
    cluster.py       the reservation, one Ray placement group a teacher
    resources.py     what the recipe says about one teacher: engine, sizes, ranks
    padding.py       rows that fill up a batch for replicas, and never come back
    groups.py        a teacher's ranks as one scorer, for Python
    coordinator.py   rows of a store, routed to such groups

A job hosts each teacher as a role (``workers/roles/teacher.py``) on what ``cluster.py`` reserved; groups and the
coordinator do the same work without a job.
"""

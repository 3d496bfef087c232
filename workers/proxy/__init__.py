"""``opd build-proxy``: deterministic tiny teachers, a sloppy student and prompts, for trying everything on a laptop."""

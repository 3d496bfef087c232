"""Columns as immutable Arrow files, and back under suspicion."""

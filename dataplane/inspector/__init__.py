"""The inspector: one sample whole, and the local page over a run."""

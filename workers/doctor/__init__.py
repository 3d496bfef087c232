"""What must hold before a run's first update, and at every weight sync: tried on real rows, never assumed."""

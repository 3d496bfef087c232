"""Measurements of the store against what one would use instead. ``make bench`` runs them."""

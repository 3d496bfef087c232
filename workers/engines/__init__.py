"""Model engines behind the protocols of :mod:`stages.protocols`."""

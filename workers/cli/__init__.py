"""The command line: ``opd``."""

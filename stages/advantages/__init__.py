"""Per-token advantages: one idea a file, put together by ``opd.OPDAdvantageEstimator``."""

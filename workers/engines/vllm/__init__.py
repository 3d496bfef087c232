"""vLLM: continuous batching for generation, and scores of given tokens. Runs inside the role's own process.

settings    environment and engine arguments; nothing here imports vllm
heads       attention heads narrower than vLLM's CPU kernels know, widened exactly
engine      one vLLM engine: start, run requests, take weights
sync        what runs inside vLLM's worker: weights in place, tied heads packed again
generator   VLLMGenerator
scorer      VLLMScorer
"""

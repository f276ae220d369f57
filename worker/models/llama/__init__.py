"""Dense decoders of the Llama shape: Llama, SmolLM2, Qwen2 (bias on q, k, v) and Qwen3 (norm on q and k)."""

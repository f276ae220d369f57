"""Qwen3.5 text: most layers are gated delta nets with a recurrent state, every fourth is gated full attention.

Reads the text model's own checkpoints and the language part of the vision-language ones.
"""

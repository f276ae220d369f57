"""Whisper: speech in windows of at most 30 s, by an encoder whose output a decoder attends to."""

"""Codecs: stateless transforms of the blocks of a layout into payloads of a known size."""

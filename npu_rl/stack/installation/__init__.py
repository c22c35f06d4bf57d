"""The packages of a manifest's host, installed into a training interpreter by uv."""

"""Patches as data: read strictly, order, place against a text, and tell later what became of each hunk.

Nothing here runs git or writes a file.
"""

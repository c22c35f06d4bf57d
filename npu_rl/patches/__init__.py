"""Patches as data: parsing, order, the place of each hunk in a text, and later its state.

Nothing here runs git or writes a file.
"""

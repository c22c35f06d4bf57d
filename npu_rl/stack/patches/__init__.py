"""Patches as data: parsing, order, hunk places and states. Nothing here runs git or writes a file."""

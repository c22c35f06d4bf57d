"""Requirements that components declare, read from their files as text and compared with the manifest's."""

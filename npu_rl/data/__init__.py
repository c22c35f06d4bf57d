"""Download, preparation and checks of datasets."""

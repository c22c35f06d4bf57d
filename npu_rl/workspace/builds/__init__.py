"""`setup --build`: runs the manifest's build commands on copies of components, and collects the products."""

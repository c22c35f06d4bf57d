"""Code that every room may use: errors, secrets, files, processes, and YAML that people write."""

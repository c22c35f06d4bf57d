"""What people see of a run while it lasts, and what is known about its failures."""

"""Write a checkpoint in another format, one file at a time; each file appears only once it is complete."""

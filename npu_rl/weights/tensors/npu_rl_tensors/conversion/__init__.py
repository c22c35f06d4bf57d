"""Write a checkpoint in another format: unit by unit, each a file that is whole or not there."""

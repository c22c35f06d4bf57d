"""Downloads of datasets and weights: the commands that fetch them, and the proof that they are complete."""

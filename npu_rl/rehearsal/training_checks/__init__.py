"""What a rehearsed training has to show: equal weights, alike probabilities, new noise, and a resume."""

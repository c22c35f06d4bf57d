"""Rules that a recipe's sizes and settings have to follow, and the upstream code that each rests on."""

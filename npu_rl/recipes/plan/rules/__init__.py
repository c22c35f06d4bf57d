"""Rules on a recipe's sizes and settings, and the upstream code that each rests on."""
